"""What the operator's plans read: an object, what is known of the world around it, and now.

`observe` makes these values, once a pass; the plans read nothing else. A fact is known, absent, or
unknown: a read that failed is `Unknown` and never `Absent`, and a plan waits for it. Values of
Secrets are in `Input.data` and in the `Put` that carries them, and nowhere else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from isolet.api import execution, executionclass, executionnode
from isolet.base import errors
from isolet.plan.objects import AnyRecord, CheckpointFacts, ExecutionFacts, Facts, Record, Work
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.node import Amounts, NodeObserved

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """It was read, and this is it."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Absent:
    """It was looked for and is not there."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It could not be read, or has not been yet."""

    why: str = "not read yet"


Fact = Known[T_co] | Absent | Unknown


@dataclass(frozen=True, slots=True)
class InputRef:
    """A Secret or ConfigMap that an object's environment names."""

    kind: str
    """Secret or ConfigMap."""
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A Secret or ConfigMap that was read."""

    uid: str
    resource_version: str
    data: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Decoded values by key. Kept out of `repr`, so that no log or assertion shows them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """One node, as its object, its agent and the operator's own watching of it tell."""

    object: executionnode.ExecutionNode
    report: NodeObserved | None = None
    """The agent's last account, kept while it cannot be reached; None before the first."""
    reachable: bool = False
    """The agent is heard now (`plan.node.is_heard`)."""
    synced: bool = False
    """A complete snapshot of this agent's epoch was read since this leader began, and its changes
    have been followed since. Stays true while the agent cannot be reached: nobody else gives it
    work. Back to false when its epoch changes, until the new snapshot is read."""
    record: Fact[Record] = field(default_factory=Unknown)
    """This agent's record of the uid in question: the newest answer, snapshot entry or change.
    Absent only when `synced`, or on the agent's own NotFound; Unknown before."""
    checkpoint: Fact[CheckpointObserved] = field(default_factory=Unknown)
    """The same of the Checkpoint in question: the pass's own, or the one that it starts from."""
    promised: Amounts = Amounts()
    """Bound to this node but not yet in the agent's `allocated` (`plan.placement.promised`)."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.object.metadata.name


class ErrorKind(StrEnum):
    """What a failed call means for whoever decides next."""

    INVALID = "Invalid"
    REFUSED = "Refused"
    NOT_FOUND = "NotFound"
    CONFLICT = "Conflict"
    FENCED = "Fenced"
    UNAVAILABLE = "Unavailable"
    UNCONFIRMED = "Unconfirmed"
    OTHER = "Other"


_KINDS: tuple[tuple[type[BaseException], ErrorKind], ...] = (
    (errors.Invalid, ErrorKind.INVALID),
    (errors.Refused, ErrorKind.REFUSED),
    (errors.NotFound, ErrorKind.NOT_FOUND),
    (errors.Fenced, ErrorKind.FENCED),
    (errors.Conflict, ErrorKind.CONFLICT),
    (errors.Unconfirmed, ErrorKind.UNCONFIRMED),
    (errors.Unavailable, ErrorKind.UNAVAILABLE),
)
"""Subclasses stand before their bases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The action of the last pass that failed; later ones of that pass were not tried.

    The shell keeps it for the object until a pass in which every action succeeded.
    """

    action: str
    """Name of the action's class, such as `Put`."""
    node: str = ""
    """The agent that was asked; empty for the API server."""
    kind: ErrorKind
    reason: str
    message: str
    retry_after: float = 1.0


def failure_of(action: object, error: BaseException) -> Failure:
    """What to remember of an action that failed."""
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), ErrorKind.OTHER)
    known = error if isinstance(error, errors.IsoletError) else None
    return Failure(
        action=type(action).__name__,
        node=str(getattr(action, "node", "")),
        kind=kind,
        reason=known.reason if known else "InternalError",
        message=known.message if known else type(error).__name__,
        retry_after=known.retry_after if isinstance(known, errors.Unavailable) else 1.0,
    )


class Pass(Protocol):
    """What a pass over any object that is bound to a node knows."""

    @property
    def object(self) -> Facts:
        """The object itself."""
        ...

    @property
    def nodes(self) -> Sequence[NodeFacts]:
        """One for each ExecutionNode object."""
        ...

    @property
    def nodes_complete(self) -> bool:
        """`nodes` is a complete list: a name that is not in it has no object."""
        ...

    @property
    def leader_since(self) -> datetime:
        """When this leader began, by its own wall clock."""
        ...

    @property
    def failure(self) -> Failure | None:
        """What failed in the pass before."""
        ...

    @property
    def now(self) -> datetime:
        """Wall time, UTC."""
        ...

    @property
    def reckoned(self) -> datetime | None:
        """Wall time when this leader began, and what its boot-time clock has gone since.

        None: not known.
        """
        ...

    def record_of(self, facts: NodeFacts) -> Fact[AnyRecord]:
        """What the agent of a node knows of the object."""
        ...


def surely(seen: Pass) -> datetime:
    """The time that it is at least: for what cannot be taken back.

    A clock that is set ahead while a leader leads must not delete what people count on, nor the
    name of a run, which keeps it from being begun again. One that was behind when the leader began
    and is put right makes these things late by as much, until another leads.
    """
    return seen.now if seen.reckoned is None else min(seen.now, seen.reckoned)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The Execution that a Process runs in, or wants to, or whose workspace is to be taken."""

    object: ExecutionFacts
    record: Fact[Record] = field(default_factory=Unknown)
    """What the agent of its node knows of it; Unknown where no node is bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Everything one pass over one Execution or Process knows."""

    object: Work
    host: Fact[Host] = field(default_factory=Unknown)
    """The Execution that the object names; Unknown for an object that names none."""
    checkpoint: Fact[CheckpointFacts] = field(default_factory=Unknown)
    """The Checkpoint that the object starts from; Unknown for an object that names none."""
    granted_at: datetime | None = None
    """When this leader last got its node the right to read that Checkpoint on another."""
    namespace_labels: Fact[Mapping[str, str]] = field(default_factory=Unknown)
    classes: Fact[tuple[executionclass.ExecutionClass, ...]] = field(default_factory=Unknown)
    """All classes of the cluster (a complete list, maybe empty), or Unknown."""
    inputs: Mapping[InputRef, Fact[Input]] = field(default_factory=dict)
    """What `plan.values.inputs_of` names; one that is missing here is Unknown."""
    nodes: tuple[NodeFacts, ...] = ()
    """One for each ExecutionNode object."""
    nodes_complete: bool = False
    """`nodes` is a complete list: a name that is not in it has no object."""
    leader_since: datetime
    """When this leader began, by its own wall clock."""
    installation: str = ""
    """The operator's own; an agent of another one gets no work."""
    failure: Failure | None = None
    now: datetime
    """Wall time, UTC."""
    reckoned: datetime | None = None

    def record_of(self, facts: NodeFacts) -> Fact[AnyRecord]:
        """What the agent of a node knows of the object."""
        return facts.record


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPass:
    """Everything one pass over one Checkpoint knows; see `Observed` for what is the same there."""

    object: CheckpointFacts
    source: Fact[Host] = field(default_factory=Unknown)
    """The Execution whose workspace is to be taken."""
    restoring: tuple[str, ...] = ()
    """Names of Executions that are bound to start from it and have not been seen to start."""
    nodes: tuple[NodeFacts, ...] = ()
    nodes_complete: bool = False
    leader_since: datetime
    installation: str = ""
    failure: Failure | None = None
    now: datetime
    reckoned: datetime | None = None

    def record_of(self, facts: NodeFacts) -> Fact[AnyRecord]:
        """What the agent of a node knows of the Checkpoint."""
        return facts.checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Contact:
    """How this operator hears one agent, on the operator's own monotonic clock."""

    watched_since: float
    """When this leader first tried."""
    heard_at: float | None = None
    """When anything last came that had not been seen before: an answer, a change, a bookmark."""
    problem: str = ""
    """Why it is not heard, as far as the last attempt tells."""
    reason: str = ""
    """The reason of that error, such as `CertificateRefused`."""
    now: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePass:
    """Everything one pass over one ExecutionNode knows."""

    object: executionnode.ExecutionNode
    contact: Contact
    report: NodeObserved | None = None
    """The agent's last account, whenever that was."""
    installation: str = ""
    """The operator's own installation; an agent of another one is not ours to use."""
    remaining: int | None = None
    """Objects bound to it that have not finished; None while that is not known."""
    now: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectList:
    """One complete list of all objects that agents hold, as uids, and of none that broke off."""

    uids: frozenset[str]
    started_at: float
    """Monotonic time right before the list's first page was asked for."""


@dataclass(frozen=True, slots=True)
class Held:
    """A thing that an agent holds: a record (`name` empty) or a stray, with its uid."""

    node: str
    epoch: str
    uid: str
    name: str = ""
    kind: str = execution.KIND
    """Of a record: Execution, Process or Checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanNode:
    """What one agent holds, for the orphan pass."""

    object: executionnode.ExecutionNode
    report: NodeObserved | None
    reachable: bool
    synced: bool
    records: tuple[AnyRecord, ...] = ()
    """All records of this agent's epoch, as the operator follows them."""


class Cause(StrEnum):
    """Why an object was given up without its agent's word."""

    NODE_DELETED = "NodeDeleted"
    OUT_OF_SERVICE = "OutOfService"
    NODE_REPLACED = "NodeReplaced"
    """The agent is back with another boot or store, and without the object."""
    FORCED = "Forced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tombstone:
    """What must still be removed from `node`, should it come back. Outlives object and node."""

    uid: str
    namespace: str
    name: str
    node: str
    cause: Cause
    detail: str = ""
    """For `Forced`: the reason that the annotation gave."""
    written_at: datetime


class OrphanPolicy(StrEnum):
    """What is done about things whose object is gone."""

    REPORT = "Report"
    REMOVE = "Remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanPass:
    """Everything one orphan pass knows. Times are of the operator's monotonic clock."""

    lists: tuple[ObjectList, ...] = ()
    """The last two complete lists since this leader began, the older one first."""
    nodes: tuple[OrphanNode, ...] = ()
    nodes_complete: bool = False
    tombstones: tuple[Tombstone, ...] = ()
    tombstones_complete: bool = False
    suspects: Mapping[Held, float] = field(default_factory=dict)
    """What the pass before returned: since when each has been without an object."""
    policy: OrphanPolicy = OrphanPolicy.REMOVE
    monotonic: float
    now: datetime
