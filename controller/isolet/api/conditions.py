"""Conditions: `metav1.Condition` and pure helpers over a list of them.

The time is always passed in. `lastTransitionTime` moves only when the status flips, so writing the
same truth twice changes nothing and a controller never wakes itself.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from isolet.api import meta, rules

# Execution, Process, Checkpoint
SCHEDULED = "Scheduled"
READY = "Ready"
FINISHED = "Finished"
SUCCEEDED = "Succeeded"
WORKSPACE_COMPLETE = "WorkspaceComplete"
RECONCILING = "Reconciling"
STALLED = "Stalled"

# ExecutionNode, beside READY
REACHABLE = "Reachable"
WIRE_COMPATIBLE = "WireCompatible"
ENGINE_READY = "EngineReady"
RUNTIME_QUALIFIED = "RuntimeQualified"
STATE_USABLE = "StateUsable"
LIVE_RESTORE = "LiveRestore"
DISK_WORKSPACES = "DiskWorkspaces"
GIT_REPOSITORIES = "GitRepositories"
CAPACITY_LEFT = "CapacityLeft"
DRAINED = "Drained"

EXECUTION_TYPES = (
    SCHEDULED,
    READY,
    FINISHED,
    SUCCEEDED,
    WORKSPACE_COMPLETE,
    RECONCILING,
    STALLED,
)
PROCESS_TYPES = (SCHEDULED, FINISHED, SUCCEEDED, WORKSPACE_COMPLETE, RECONCILING, STALLED)
CHECKPOINT_TYPES = (READY, RECONCILING, STALLED)
CLASS_TYPES = (READY,)
NODE_TYPES = (
    READY,
    REACHABLE,
    WIRE_COMPATIBLE,
    ENGINE_READY,
    LIVE_RESTORE,
    RUNTIME_QUALIFIED,
    STATE_USABLE,
    DISK_WORKSPACES,
    GIT_REPOSITORIES,
    CAPACITY_LEFT,
    DRAINED,
)

NODE_OPTIONAL = frozenset({READY, DISK_WORKSPACES, GIT_REPOSITORIES, CAPACITY_LEFT, DRAINED})
"""Conditions of an agent that close one capability, not the node."""

MEANINGS: dict[str, str] = {
    SCHEDULED: "A node is bound (`spec.nodeName`). False while none can take it, with the reason.",
    READY: (
        "It can be used now: a session takes commands, a Checkpoint can be restored, a node takes"
        " work. Not set on an Execution that has a command."
    ),
    FINISHED: "The end is reached and known. Never taken back.",
    SUCCEEDED: (
        "Unknown while work goes on; then True or False once, never changed. A session that ended"
        " as asked has succeeded."
    ),
    WORKSPACE_COMPLETE: (
        "Only ever False: the Git tree has submodules, left as empty folders, or pointers to"
        " content of Git LFS; the message names them. It is imported all the same."
    ),
    RECONCILING: "Isolet is working towards what the spec asks for (kstatus).",
    STALLED: "Isolet cannot get on without someone's help; the message says whose (kstatus).",
    REACHABLE: "The agent answers the operator.",
    WIRE_COMPATIBLE: "Operator and agent share a version of their protocol.",
    ENGINE_READY: "The node's container engine answers in time.",
    LIVE_RESTORE: "Sandboxes outlive a restart of the node's engine.",
    RUNTIME_QUALIFIED: "A real sandbox was started and proved to be gVisor.",
    STATE_USABLE: "The agent's store is on a usable local file system and not of a newer version.",
    DISK_WORKSPACES: "The node can give Disk workspaces.",
    GIT_REPOSITORIES: (
        "The node can read the Git repositories that its policy names. Not set where it names none."
    ),
    CAPACITY_LEFT: "The node has room for at least one more small Execution.",
    DRAINED: "A drain was asked for and no work is left on the node.",
}
"""What each condition type says, for people."""

_MAX_MESSAGE = 32768
_DECIDED_ONCE = frozenset({FINISHED, SUCCEEDED})


class Status(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(meta.Model):
    """One aspect of the current state, as `metav1.Condition`."""

    type: str = Field(max_length=316, min_length=1)
    """Type of the condition, in CamelCase."""
    status: Status
    """Status of the condition: True, False or Unknown."""
    observed_generation: meta.Int64 | None = Field(default=None, ge=0)
    """The metadata.generation of the object that this condition was set for."""
    last_transition_time: meta.Time
    """When the status last changed from one value to another."""
    reason: str = Field(
        max_length=1024, min_length=1, pattern="^[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    )
    """Why the condition has its status: one CamelCase word from the documented list."""
    message: str = Field(max_length=_MAX_MESSAGE)
    """The same for people; may be empty."""


Conditions = Annotated[tuple[Condition, ...], rules.list_map("type")]
"""Conditions of one object, told apart by type."""


def get(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of this type, if it is there."""
    return next((c for c in conditions if c.type == kind), None)


def status_of(conditions: Iterable[Condition], kind: str) -> Status:
    """The status of this type; a missing condition reads as Unknown."""
    found = get(conditions, kind)
    return Status.UNKNOWN if found is None else found.status


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether this condition is there and True."""
    return status_of(conditions, kind) is Status.TRUE


def is_decided(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether a condition that is decided once has been: its value will not change any more."""
    status = status_of(conditions, kind)
    return status is Status.TRUE or (kind == SUCCEEDED and status is Status.FALSE)


def put(
    conditions: Iterable[Condition],
    kind: str,
    status: Status,
    reason: str,
    message: str,
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """The list with one condition set.

    The transition time of a condition whose status stays is kept. `Succeeded` once True or False,
    and `Finished` once True, stay as they were recorded: an outcome is written once.

    Args:
        conditions: the list as it is.
        kind: the condition's type.
        status: its new status.
        reason: a word from `isolet.api.reasons`.
        message: the same for people; cut to what Kubernetes allows.
        generation: the generation of the object this was decided for.
        now: the time to record if the status flips; whole seconds are kept.

    Returns:
        The new list; the order of types already there is kept.
    """
    listed = tuple(conditions)
    old = get(listed, kind)
    if old is not None and kind in _DECIDED_ONCE and is_decided(listed, kind):
        return listed
    flipped = old is None or old.status is not status
    new = Condition(
        type=kind,
        status=status,
        observed_generation=generation,
        last_transition_time=now.replace(microsecond=0)
        if old is None or flipped
        else old.last_transition_time,
        reason=reason,
        message=message[:_MAX_MESSAGE],
    )
    if old is None:
        return (*listed, new)
    return tuple(new if c.type == kind else c for c in listed)


def drop(conditions: Iterable[Condition], kind: str) -> tuple[Condition, ...]:
    """The list without conditions of this type."""
    return tuple(c for c in conditions if c.type != kind)
