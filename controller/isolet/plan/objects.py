"""Executions, Processes and Checkpoints as the API server has them, read once for a pass. PURE.

The first two are work on one node, and most of what is decided about them is the same. What they
share has one name here, whatever a kind calls it; where they differ, a plan asks which it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pydantic

from isolet.api import bounds, checkpoint, execution, meta, process, sandbox
from isolet.api import conditions as cond
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.execution import ExecutionObserved
from isolet.wire.process import DEFAULT_TIMEOUT_SECONDS, ProcessObserved

Status = execution.ExecutionStatus | process.ProcessStatus
AnyStatus = Status | checkpoint.CheckpointStatus
Spec = execution.ExecutionSpec | process.ProcessSpec
Record = ExecutionObserved | ProcessObserved
"""What an agent knows of work."""
AnyRecord = Record | CheckpointObserved
"""What an agent knows of anything that has a uid."""


def kind_of(record: AnyRecord) -> str:
    """The kind of the object that a record belongs to."""
    if isinstance(record, CheckpointObserved):
        return checkpoint.KIND
    return process.KIND if isinstance(record, ProcessObserved) else execution.KIND


_M = TypeVar("_M", bound=meta.Model)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectRef:
    """One object at one version, for a write that must not hit another."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sought:
    """A sandbox of its own, as an object asks for it."""

    where: str = ""
    """What stands before a field's name in a message."""
    class_name: str | None
    image: str | None
    resources: bounds.Resources | None
    workspace: sandbox.Workspace
    node_selector: meta.Labels | None
    scheduling_deadline_seconds: int | None
    idle_timeout_seconds: int | None = None
    session: bool = False
    restore_from: str | None = None
    """Name of the Checkpoint that it starts with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is the same of all kinds, also of one whose spec cannot be read.

    `spec` is None exactly when `invalid` says why; metadata, node and status are read for
    themselves, so that an object no version of Isolet understands can still be deleted.
    """

    KIND: ClassVar[str] = ""

    metadata: meta.ObjectMeta
    node_name: str | None = None
    invalid: str = ""

    @property
    def uid(self) -> str:
        """The object's uid."""
        return self.metadata.uid

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return self.metadata.namespace or ""

    @property
    def deleting(self) -> bool:
        """Whether its deletion was asked for."""
        return self.metadata.deletion_timestamp is not None

    @property
    def ref(self) -> ObjectRef:
        """The object at the version that was read."""
        return ObjectRef(
            kind=self.KIND,
            namespace=self.namespace,
            name=self.metadata.name,
            uid=self.metadata.uid,
            resource_version=self.metadata.resource_version,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionFacts(Facts):
    """An Execution."""

    KIND: ClassVar[str] = execution.KIND

    spec: execution.ExecutionSpec | None = None
    status: execution.ExecutionStatus = field(default_factory=execution.ExecutionStatus)

    @property
    def sought(self) -> Sought | None:
        """The sandbox that it asks for."""
        spec = self.spec
        if spec is None:
            return None
        return Sought(
            class_name=spec.class_name,
            image=spec.image,
            resources=spec.resources,
            workspace=spec.workspace,
            node_selector=spec.node_selector,
            scheduling_deadline_seconds=spec.scheduling_deadline_seconds,
            idle_timeout_seconds=spec.idle_timeout_seconds,
            session=spec.command is None,
            restore_from=spec.restore_from.checkpoint_name if spec.restore_from else None,
        )

    @property
    def host(self) -> str | None:
        """Name of the Execution that it runs in."""
        return None

    @property
    def is_session(self) -> bool:
        """Whether Ready is spoken of; an unreadable object is what its status says."""
        if self.spec is not None:
            return self.spec.command is None and self.spec.dispatch is None
        return cond.get(self.status.conditions, cond.READY) is not None

    @property
    def ending(self) -> bool:
        """Whether its owner wants it ended."""
        return (
            self.spec is not None and self.spec.desired_state is execution.DesiredState.TERMINATED
        )

    @property
    def seconds(self) -> int | None:
        """How long it may run, by its own word."""
        return self.spec.active_deadline_seconds if self.spec is not None else None

    @property
    def asked_seconds(self) -> int | None:
        """The same, only where the object says so itself."""
        return self.seconds

    @property
    def changeable_seconds(self) -> int | None:
        """The same, where it may be changed after the binding."""
        return self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts(Facts):
    """A Process."""

    KIND: ClassVar[str] = process.KIND

    spec: process.ProcessSpec | None = None
    status: process.ProcessStatus = field(default_factory=process.ProcessStatus)

    @property
    def sought(self) -> Sought | None:
        """The sandbox that it asks for; None where it runs in an Execution."""
        template = self.spec.template if self.spec is not None else None
        if template is None:
            return None
        return Sought(
            where="template.",
            class_name=template.class_name,
            image=template.image,
            resources=template.resources,
            workspace=template.workspace,
            node_selector=template.node_selector,
            scheduling_deadline_seconds=template.scheduling_deadline_seconds,
        )

    @property
    def host(self) -> str | None:
        """Name of the Execution that it runs in."""
        reference = self.spec.execution_ref if self.spec is not None else None
        return reference.name if reference is not None else None

    @property
    def is_session(self) -> bool:
        """Never: it is one command."""
        return False

    @property
    def ending(self) -> bool:
        """Whether its owner wants it ended."""
        return self.spec is not None and self.spec.desired_state is process.DesiredState.CANCELLED

    @property
    def seconds(self) -> int | None:
        """How long it may run, by its own word."""
        spec = self.spec
        if spec is None:
            return None
        return spec.timeout_seconds or (None if spec.command else DEFAULT_TIMEOUT_SECONDS)

    @property
    def asked_seconds(self) -> int | None:
        """The same, only where the object says so itself."""
        return self.spec.timeout_seconds if self.spec is not None else None

    @property
    def changeable_seconds(self) -> int | None:
        """None: it is fixed from the start."""
        return None


Work = ExecutionFacts | ProcessFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts(Facts):
    """A Checkpoint."""

    KIND: ClassVar[str] = checkpoint.KIND

    spec: checkpoint.CheckpointSpec | None = None
    status: checkpoint.CheckpointStatus = field(default_factory=checkpoint.CheckpointStatus)

    @property
    def source(self) -> str:
        """Name of the Execution whose workspace is taken."""
        return self.spec.execution_ref.name if self.spec is not None else ""

    @property
    def over(self) -> bool:
        """Whether it is written that it was taken or has failed, which is never taken back."""
        return self.status.completion_time is not None

    @property
    def taken(self) -> bool:
        """Whether it is written that it was taken whole; where copies are now is another matter."""
        return self.over and self.status.manifest_digest is not None


def read_execution(raw: Mapping[str, Any]) -> ExecutionFacts:
    """An Execution from what the API server sent. Never raises on data the server can hold."""
    parsed, invalid = _spec(raw, execution.ExecutionSpec)
    return ExecutionFacts(
        metadata=meta.ObjectMeta.model_validate(raw["metadata"]),
        node_name=_node(raw),
        spec=parsed,
        invalid=invalid,
        status=_status(raw, execution.ExecutionStatus),
    )


def read_process(raw: Mapping[str, Any]) -> ProcessFacts:
    """A Process from what the API server sent. Never raises on data the server can hold."""
    parsed, invalid = _spec(raw, process.ProcessSpec)
    return ProcessFacts(
        metadata=meta.ObjectMeta.model_validate(raw["metadata"]),
        node_name=_node(raw),
        spec=parsed,
        invalid=invalid,
        status=_status(raw, process.ProcessStatus),
    )


def read_checkpoint(raw: Mapping[str, Any]) -> CheckpointFacts:
    """A Checkpoint from what the API server sent. Never raises on data the server can hold."""
    parsed, invalid = _spec(raw, checkpoint.CheckpointSpec)
    return CheckpointFacts(
        metadata=meta.ObjectMeta.model_validate(raw["metadata"]),
        node_name=_node(raw),
        spec=parsed,
        invalid=invalid,
        status=_status(raw, checkpoint.CheckpointStatus),
    )


def read(kind: str, raw: Mapping[str, Any]) -> Work:
    """Work of either kind."""
    return read_process(raw) if kind == process.KIND else read_execution(raw)


def explain(error: pydantic.ValidationError) -> str:
    """Field and rule of each mistake, without the value: it may be a secret in a wrong place."""
    lines = (
        f"spec.{'.'.join(map(str, item['loc']))}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False, include_context=False)
    )
    return "; ".join(lines)


def _given(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = raw.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _node(raw: Mapping[str, Any]) -> str | None:
    node = _given(raw).get("nodeName")
    return node if isinstance(node, str) and node else None


def _spec(raw: Mapping[str, Any], model: type[_M]) -> tuple[_M | None, str]:
    try:
        return model.model_validate(_given(raw)), ""
    except pydantic.ValidationError as error:
        return None, explain(error)


def _status(raw: Mapping[str, Any], model: type[_M]) -> _M:
    try:
        return model.model_validate(raw.get("status") or {})
    except pydantic.ValidationError:
        # Written by something else; the facts give a whole new one.
        return model()
