"""How the operator speaks of Kubernetes: kinds, keys, objects, and the calls it needs.

Objects are plain dicts as the API server sent them; they are read through `isolet.api` types where
a decision needs them. `Cluster` is what the rest of the operator sees; `cluster.py` has the real
one.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from isolet.api import meta

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of the API server."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


def _ours(plural: str, kind: str, *, namespaced: bool = True) -> Kind:
    return Kind(meta.GROUP, meta.VERSION, plural, kind, namespaced)


EXECUTIONS = _ours("executions", "Execution")
PROCESSES = _ours("processes", "Process")
CHECKPOINTS = _ours("checkpoints", "Checkpoint")
CLASSES = _ours("executionclasses", "ExecutionClass", namespaced=False)
NODES = _ours("executionnodes", "ExecutionNode", namespaced=False)
OURS = (EXECUTIONS, PROCESSES, CHECKPOINTS, CLASSES, NODES)
WORK = (EXECUTIONS, PROCESSES, CHECKPOINTS)
"""Kinds that are bound to a node, and whose uids agents hold."""

NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Kind("", "v1", "secrets", "Secret")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
EVENTS = Kind("", "v1", "events", "Event")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
CRDS = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)


class Key(NamedTuple):
    """What the queue carries: which object, and nothing about what happened to it."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


def key_of(kind: Kind, obj: Object) -> Key:
    """The key of an object of `kind`."""
    metadata = obj["metadata"]
    return Key(kind.kind, metadata.get("namespace", ""), metadata["name"])


def uid_of(obj: Object) -> str:
    """The object's uid; empty for a thing the server has not stored."""
    return str(obj["metadata"].get("uid", ""))


def version_of(obj: Object) -> int:
    """The resource version as a number.

    Versions of one kind in one cluster are comparable (Kubernetes 1.35 promises it; etcd has always
    kept it), until etcd is restored from a backup: see `cache.ObjectCache.replace`.
    """
    return int(obj["metadata"].get("resourceVersion") or 0)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    items: list[Object]
    version: int
    """Resource version of the whole list: the same on every page."""
    token: str | None = None
    """Asks for the next page; None on the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """What must still hold for a delete."""

    uid: str | None = None
    version: str | None = None

    def document(self) -> dict[str, str]:
        """As `DeleteOptions.preconditions`."""
        named = {"uid": self.uid, "resourceVersion": self.version}
        return {key: value for key, value in named.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """How to list."""

    limit: int = 500
    token: str | None = None
    labels: str = ""
    namespace: str = ""


class Cluster(Protocol):
    """The calls of the API server that the operator makes.

    Errors: NotFound (404), Conflict (409, or 410 with reason `Expired`), Invalid (400, 422),
    Refused (401, 403), Unavailable (429, 5xx, no connection); Unconfirmed when a write was sent and
    no answer came, or one that says nothing of it (500, 502, 504). Every patch and replace of an
    existing object carries a resource version, so that repeating one is safe: it was either
    applied, and conflicts, or it was not.
    """

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object, from the store and not from a cache."""
        ...

    async def list(self, kind: Kind, options: ListOptions) -> Page:
        """One page."""
        ...

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """A new object; Conflict (`AlreadyExists`) if the name is taken."""
        ...

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Object, subresource: str = ""
    ) -> Object:
        """Merge-patch."""
        ...

    async def replace(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """The whole object."""
        ...

    async def delete(self, kind: Kind, namespace: str, name: str, only_if: Precondition) -> None:
        """Delete; an absent object is NotFound."""
        ...
