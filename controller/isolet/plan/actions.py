"""What the operator's plans ask for, as data. `apply` performs them in order.

Apply stops at the first action that fails and keeps a `model.Failure` of it; the next pass computes
afresh. Every action can be repeated. An answer of an agent (a record) goes into the
operator's view of that node at once, before the next pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from isolet.api import execution, executionnode
from isolet.plan.model import Held, Tombstone
from isolet.plan.objects import AnyStatus, ObjectRef
from isolet.wire.checkpoint import CheckpointWanted, StoreCopy
from isolet.wire.execution import Amendment, ExecutionWanted
from isolet.wire.pool import PoolsWanted
from isolet.wire.process import ProcessAmendment, ProcessWanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """ONE merge-patch at `object.resource_version`: finalizer, `spec.nodeName`, binding annotation.

    The finalizer is added by value to those in `finalizers`, which are the object's own.
    """

    object: ObjectRef
    node: str
    annotation: str
    """The value of `binding.ANNOTATION`."""
    finalizers: tuple[str, ...]
    """The whole list to write, ours included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the content of a Checkpoint can be had from, beside the node's own copy."""

    checkpoint_uid: str
    reader: str = ""
    """Name in the certificate of the agent that will read."""
    peer: str = ""
    """Node with a copy whose agent is asked for a grant, right before the message goes."""
    peer_name: str = ""
    """Name in the certificate of that node's agent."""
    endpoint: str = ""
    """Where that agent listens."""
    in_store: StoreCopy | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Put:
    """`AgentAPI.put` or its like for other kinds. Only ever after the binding is stored."""

    node: str
    wanted: ExecutionWanted | ProcessWanted | CheckpointWanted = field(repr=False)
    """Holds the values of env, stdin and files."""
    source: Source | None = None
    """What becomes `restore_from`. A plan holds no grant: none can get into a log from here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amend:
    """`AgentAPI.amend` or `amend_process`."""

    node: str
    uid: str
    change: Amendment | ProcessAmendment


@dataclass(frozen=True, kw_only=True, slots=True)
class Remove:
    """`AgentAPI.remove` or its like for other kinds."""

    node: str
    uid: str
    kind: str = execution.KIND


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Merge-patch of the finalizer list at `object.resource_version`, without ours."""

    object: ObjectRef
    finalizers: tuple[str, ...]
    """The whole list to write, ours taken out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteObject:
    """Delete with uid and resource version as preconditions. An absent object is a success."""

    object: ObjectRef


class EventType(StrEnum):
    """As in core/v1."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, kw_only=True, slots=True)
class Emit:
    """An Event. Told once for each `key`: the recorder names the Event after it.

    A failure to write it is logged and never stops the actions after it.
    """

    object: ObjectRef
    type: EventType
    reason: str
    message: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteTombstone:
    """Store a tombstone; one that is there already, by uid and node, is kept."""

    tombstone: Tombstone


@dataclass(frozen=True, kw_only=True, slots=True)
class DropTombstone:
    """Forget a tombstone."""

    uid: str
    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveStrays:
    """`AgentAPI.remove_strays`."""

    node: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PutPools:
    """`AgentAPI.put_pools`."""

    node: str
    wanted: PoolsWanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """Someone must look: a warning Event on the node, a metric, a log line; once for each `key`."""

    node: str
    reason: str
    message: str
    key: str


Action = (
    Bind
    | Put
    | Amend
    | Remove
    | Release
    | DeleteObject
    | Emit
    | WriteTombstone
    | DropTombstone
    | RemoveStrays
    | PutPools
    | Alert
)


class Flag(StrEnum):
    """What a metric counts objects by."""

    CLEANUP_BLOCKED = "cleanup_blocked"
    UNSCHEDULABLE = "unschedulable"
    AWAITING_INPUTS = "awaiting_inputs"
    NODE_UNREACHABLE = "node_unreachable"
    INVALID = "invalid"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to do about one object, what to say of it, and when to look again.

    No action, no status to write and no `look_again_at`: nothing to do until something changes.
    """

    actions: tuple[Action, ...] = ()
    status: AnyStatus
    """The whole status as it is now known."""
    write_status: bool = False
    """Whether `status` differs from the stored one in something worth a write now."""
    look_again_at: datetime | None = None
    """Always later than now."""
    flags: frozenset[Flag] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """What to say of one node, and how soon to look again."""

    status: executionnode.ExecutionNodeStatus
    write_status: bool = False
    look_again_in: float | None = None
    """Seconds, always greater than 0."""
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanPlan:
    """What to remove, and what was found. `suspects` goes into the next pass as it is."""

    actions: tuple[Action, ...] = ()
    suspects: Mapping[Held, float] = field(default_factory=dict)
    orphans: Mapping[str, int] = field(default_factory=dict)
    """How many confirmed orphans each node holds, for a metric."""
    stopped: frozenset[str] = frozenset()
    """Nodes whose orphans the circuit breaker keeps."""
    look_again_in: float
    """Seconds, always greater than 0."""
