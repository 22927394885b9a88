"""The CustomResourceDefinitions: names, scope, columns, schema.

`hack/generate` writes them to `crds/`; `python -m isolet.api.crd` prints them as one JSON list that
`kubectl apply -f -` takes.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from isolet.api import (
    checkpoint,
    execution,
    executionclass,
    executionnode,
    meta,
    process,
    schema,
)

_API_VERSION_TEXT = (
    "Version of the schema of this representation of an object. More:"
    " https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"
)
_KIND_TEXT = (
    "The REST resource this object represents. More:"
    " https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    text: str

    def document(self) -> dict[str, Any]:
        """The column as an entry of `additionalPrinterColumns`."""
        return {
            "name": self.name,
            "type": self.type,
            "description": self.text,
            "jsonPath": self.path,
            "priority": 1 if self.wide else 0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of the group."""

    model: type[meta.Resource]
    plural: str
    short: str
    """Short name; none that Kubernetes or another sandbox project uses (sbx, cp, swp, tr …)."""
    namespaced: bool
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """The kind, in CamelCase."""
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{meta.GROUP}"


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _outcome(kind: str, text: str) -> tuple[Column, Column]:
    return (
        Column(name=kind, path=_condition(kind, "status"), text=text),
        Column(name="Reason", path=_condition(kind, "reason"), text="Why, in one word."),
    )


_SUCCEEDED = _outcome("Succeeded", "Unknown while work goes on, then True or False.")
_BOUND_NODE = Column(name="Node", path=".spec.nodeName", text="Node that it is bound to.")
_AGE = Column(
    name="Age", path=".metadata.creationTimestamp", type="date", text="Time since it was created."
)
_EXIT = Column(
    name="Exit",
    path=".status.exitCode",
    type="integer",
    wide=True,
    text="Exit code of the command.",
)
_IMAGE = Column(
    name="Image", path=".status.resolved.image", wide=True, text="Image as it was asked for."
)
_DEADLINE = Column(
    # Not of type date: kubectl shows a date as the time since, and this one lies ahead.
    name="Deadline",
    path=".status.deadline",
    wide=True,
    text="When it is ended at the latest.",
)
_RUN = Column(
    name="Run", path=".spec.dispatch.runID", wide=True, text="Id of the run, of a dispatch."
)

EXECUTION = Kind(
    model=execution.Execution,
    plural=execution.PLURAL,
    short="iexec",
    namespaced=True,
    columns=(*_SUCCEEDED, _BOUND_NODE, _AGE, _EXIT, _IMAGE, _DEADLINE, _RUN),
)
PROCESS = Kind(
    model=process.Process,
    plural=process.PLURAL,
    short="iproc",
    namespaced=True,
    columns=(
        *_SUCCEEDED,
        _BOUND_NODE,
        _AGE,
        _EXIT,
        Column(
            name="Execution",
            path=".spec.executionRef.name",
            wide=True,
            text="Execution that it runs in.",
        ),
        _IMAGE,
        _DEADLINE,
    ),
)
CHECKPOINT = Kind(
    model=checkpoint.Checkpoint,
    plural=checkpoint.PLURAL,
    short="ickpt",
    namespaced=True,
    columns=(
        *_outcome("Ready", "Whether it is whole and can be restored."),
        Column(
            name="Execution",
            path=".spec.executionRef.name",
            text="Execution that it was taken from.",
        ),
        _BOUND_NODE,
        _AGE,
        Column(
            name="Bytes",
            path=".status.sizeBytes",
            type="integer",
            wide=True,
            text="Bytes of all files together.",
        ),
        Column(name="Image", path=".status.image", wide=True, text="Image of the Execution."),
    ),
)
EXECUTION_CLASS = Kind(
    model=executionclass.ExecutionClass,
    plural=executionclass.PLURAL,
    short="iclass",
    namespaced=False,
    columns=(
        Column(
            name="Default",
            path=".spec.isDefault",
            type="boolean",
            text="Whether objects that name no class get it.",
        ),
        Column(name="Runtime", path=".spec.runtimeHandler", text="Runtime in the node's engine."),
        _AGE,
        Column(
            name="Image",
            path=".spec.images.default",
            wide=True,
            text="Image of whoever names none.",
        ),
    ),
)
EXECUTION_NODE = Kind(
    model=executionnode.ExecutionNode,
    plural=executionnode.PLURAL,
    short="inode",
    namespaced=False,
    columns=(
        *_outcome("Ready", "Whether it takes work."),
        Column(
            name="Unschedulable",
            path=".spec.unschedulable",
            type="boolean",
            text="Whether it was told to take no new work.",
        ),
        Column(
            name="Executions",
            path=".status.allocated.executions",
            type="integer",
            text="Sandboxes that are promised.",
        ),
        Column(name="Agent", path=".status.agentVersion", text="Version of the agent."),
        _AGE,
        Column(
            name="CPU", path=".status.capacity.cpu", wide=True, text="CPUs that can be promised."
        ),
        Column(
            name="Memory",
            path=".status.capacity.memory",
            wide=True,
            text="Memory that can be promised.",
        ),
        Column(
            name="Quarantined",
            path=".status.quarantined",
            type="integer",
            wide=True,
            text="Sandboxes whose removal is not confirmed.",
        ),
        Column(name="Endpoint", path=".spec.endpoint", wide=True, text="Where the agent listens."),
    ),
)

KINDS = (EXECUTION, PROCESS, CHECKPOINT, EXECUTION_CLASS, EXECUTION_NODE)


def object_schema(kind: Kind) -> schema.Schema:
    """The schema of whole objects of a kind, as the API server wants it."""
    whole = schema.structural(kind.model)
    properties = whole["properties"]
    properties["apiVersion"] = {"type": "string", "description": _API_VERSION_TEXT}
    properties["kind"] = {"type": "string", "description": _KIND_TEXT}
    whole["required"] = ["spec"]
    return whole


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "group": meta.GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": [meta.CATEGORY],
            },
            "versions": [
                {
                    "name": meta.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.document() for column in kind.columns],
                    "schema": {"openAPIV3Schema": object_schema(kind)},
                }
            ],
        },
    }


def documents(kinds: Iterable[Kind] = KINDS) -> list[dict[str, Any]]:
    """All CustomResourceDefinitions."""
    return [definition(kind) for kind in kinds]


if __name__ == "__main__":
    listing = {"apiVersion": "v1", "kind": "List", "items": documents()}
    json.dump(listing, sys.stdout, indent=1)
