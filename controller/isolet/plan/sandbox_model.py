"""The values that the sandbox plan reads and returns: record, facts, actions.

A `SandboxRecord` is what the agent's store holds of one Execution: what is wanted, which step was
reached, what was seen to happen. It holds no env value, no argument and no output.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from isolet.wire.execution import (
    ExecutionObserved,
    Medium,
    Outcome,
    OutputFacts,
    Resources,
    State,
    Step,
    Waiting,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedSpec:
    """The part of an ExecutionSpec that is kept: everything but values and arguments."""

    image: str
    runtime: str
    user: str
    resources: Resources
    medium: Medium
    workspace_executable: bool
    tmp_executable: bool
    retain_seconds: int
    session: bool
    maximum_deadline_seconds: int
    idle_timeout_seconds: int | None
    status_tail_bytes: int
    env_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A recorded wish to end the sandbox; the first one decides the outcome."""

    reason: str
    message: str
    succeeded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxRecord:
    """One Execution in the agent's store. `revision` is compared and set at every update."""

    uid: str
    namespace: str
    name: str
    class_name: str
    generation: int
    spec_digest: str
    spec: PinnedSpec
    state: State
    active_deadline_seconds: int
    step: Step = Step.RECORDED
    removing: bool = False
    """Its owner wants nothing of it left, the record included."""
    container_name: str
    container_id: str | None = None
    image_id: str | None = None
    boot_id: str | None = None
    """Boot in which it was dispatched; a boottime means nothing in another."""
    dispatched_at: datetime | None = None
    dispatched_boottime: float | None = None
    started_at: datetime | None = None
    started_boottime: float | None = None
    last_activity_boottime: float | None = None
    stop: Stop | None = None
    outcome: Outcome | None = None
    waiting: Waiting | None = None
    output: OutputFacts = OutputFacts()
    output_collected: bool = False
    ended_at: datetime | None = None
    ended_boottime: float | None = None
    nothing_left: bool = False
    created_at: datetime
    updated_at: datetime
    revision: int = 0
    sequence: int = 0

    def with_(self, **changes: object) -> "SandboxRecord":
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def deadline_boottime(self) -> float | None:
        """When it must be dead, on the boot-time clock; None before the dispatch."""
        base = self.started_boottime if self.started_boottime is not None else None
        base = base if base is not None else self.dispatched_boottime
        return None if base is None else base + self.active_deadline_seconds


def observed(record: SandboxRecord, deadline_at: datetime | None) -> ExecutionObserved:
    """The record as it is told to others."""
    return ExecutionObserved(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        sequence=record.sequence,
        spec_digest=record.spec_digest,
        generation=record.generation,
        step=record.step,
        removing=record.removing,
        outcome=record.outcome,
        waiting=record.waiting,
        image_id=record.image_id,
        started_at=record.started_at,
        deadline_at=deadline_at,
        ended_at=record.ended_at,
        output=record.output,
        nothing_left=record.nothing_left,
    )


class Seen(StrEnum):
    """How a read went. A failed read is UNKNOWN, never ABSENT."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Life(StrEnum):
    """A present container's state, as far as a decision needs it."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    REMOVING = "removing"
    EXITED = "exited"
