"""The values that the sandbox plan reads and returns: record, facts, and actions as data.

A `SandboxRecord` is what the agent's store holds of one Execution, Process or Checkpoint: what is
wanted, which step was reached, what was seen to happen. It holds no env value, no argument and no
output.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from isolet.plan.checkpoint_model import Save as Save
from isolet.plan.checkpoint_model import Take as Take
from isolet.plan.checkpoint_model import Thaw as Thaw
from isolet.plan.git_model import GitAction, GitPart, TreeFacts
from isolet.plan.sandbox_parts import CheckpointPart as CheckpointPart
from isolet.plan.sandbox_parts import ProcessPart as ProcessPart
from isolet.plan.sandbox_parts import SlotPart as SlotPart
from isolet.wire.checkpoint import Restore
from isolet.wire.execution import (
    Medium,
    OOMSeen,
    Outcome,
    OutputFacts,
    Resources,
    State,
    Step,
    Waiting,
)


class Kind(StrEnum):
    """What a record is of; also the label of its container."""

    EXECUTION = "execution"
    PROCESS = "process"
    CHECKPOINT = "checkpoint"
    SLOT = "slot"  # a warm one that nobody was given yet


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
    program: str
    """First word of the command, for messages; empty for a session."""
    maximum_deadline_seconds: int
    idle_timeout_seconds: int | None
    status_tail_bytes: int
    env_names: tuple[str, ...] = ()
    restore: Restore | None = None
    """What the workspace starts with."""

    @property
    def session(self) -> bool:
        """Whether it lives until it is ended, rather than with one command."""
        return not self.program

    def with_retention(self, seconds: int) -> "PinnedSpec":
        """The same, kept for another time after the end."""
        return replace(self, retain_seconds=seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A recorded wish to end the sandbox; the first one decides the outcome."""

    reason: str
    message: str
    succeeded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxRecord:
    """One Execution, Process or Checkpoint in the agent's store.

    `revision` is compared and set at every update.
    """

    uid: str
    namespace: str
    name: str
    class_name: str
    generation: int
    spec_digest: str
    spec: PinnedSpec
    kind: Kind = Kind.EXECUTION
    process: ProcessPart | None = None
    """Set exactly when `kind` is PROCESS."""
    checkpoint: CheckpointPart | None = None
    """Set exactly when `kind` is CHECKPOINT."""
    restored: bool = False
    """The workspace holds all that `spec.restore` names, and nothing has run in it before.

    Before the dispatch it says so of the boot `boot_id` alone.
    """
    git: GitPart | None = None
    """Set exactly when its workspace begins with a Git revision."""
    slot: SlotPart | None = None
    """Set from the moment it is given a warm slot."""
    awaits_slot: bool = False
    """It is not to be started cold while its class has a pool."""
    dispatch: bool = False
    """It is a run of its class's runner: `isolet.agent.dispatch` follows it to its end."""
    state: State
    stop_reason: str | None = None
    """Why `state` is Terminated when that is not the user's own wish."""
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

    @property
    def to_be_filled(self) -> bool:
        """Whether its workspace still lacks the Checkpoint that it starts with."""
        return self.spec.restore is not None and not self.restored

    @property
    def place(self) -> str:
        """Under which id its disk lies and its labels speak."""
        return self.slot.uid if self.slot else self.uid

    @property
    def engine_name(self) -> str:
        """By what the engine is asked; a slot gets its new name some time after it was given."""
        if self.slot is not None and self.container_id is not None:
            return self.container_id
        return self.container_name

    def deadline_boottime(self) -> float | None:
        """When it must be dead, on the boot-time clock; None before the dispatch."""
        base = self.started_boottime if self.started_boottime is not None else None
        base = base if base is not None else self.dispatched_boottime
        if base is None:
            return None
        cap = self.process.deadline_at_boottime if self.process else None
        own = base + self.active_deadline_seconds
        return own if cap is None else min(own, cap)


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


class Control(StrEnum):
    """What the launch script said before the program's own output."""

    STARTED = "started"
    START_FAILED = "start-failed"
    EXEC_FAILED = "exec-failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Now, on the clocks that matter, and the boot they belong to."""

    wall: datetime
    boottime: float
    boot_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerFacts:
    """The container under the record's name."""

    id: str
    ours: bool
    """Its labels name our installation, this uid and this spec digest."""
    life: Life
    exit_code: int | None = None
    oom: OOMSeen | None = None
    """What was seen of memory running out; None: nothing."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    end_unknown: bool = False
    """It has ended and the engine has forgotten how: its code says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxFacts:
    """What was seen of one sandbox in this pass."""

    container: Seen
    seen: ContainerFacts | None = None
    """Set exactly when `container` is PRESENT."""
    started_since_dispatch: Seen = Seen.UNKNOWN
    """Whether the engine's events since the dispatch hold a `start`; read only when it decides."""
    image: Seen = Seen.UNKNOWN
    image_problem: str | None = None
    """Why the image cannot serve (a missing tool, a secret-looking ENV name)."""
    source: bool = False
    """What its workspace is to start with lies on the node, or its owner has said where."""
    inputs: bool = False
    """Arguments and env values are at hand, in memory or in the launch folder."""
    tree: TreeFacts = TreeFacts()
    """Only before the start, of what begins with a Git revision."""
    control: Control | None = None
    control_detail: str = ""
    """Why it could not be started: `missing`, `not-executable`, `bad-cwd`, or the shell's code."""
    output_done: bool = False
    """The follower has read the log to its end, or has given up and said so."""
    output_incomplete: bool = False
    """What it has read is not all that was written."""
    heard_since: float | None = None
    """Boot-time seconds since when engine and log have answered without a break, while it runs."""
    slot: Seen = Seen.ABSENT
    """Of one that awaits a slot: whether one is ready; UNKNOWN while its pool is empty."""
    overflow: bool = False
    workspace_full: bool = False
    ended_by_watchdog: bool = False
    ended_for: Stop | None = None
    """Of a session that ended though nobody ended it: which of its Processes was to end it."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Have the Checkpoint that the workspace starts with at hand, and check it."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill the workspace from that Checkpoint, and record that it is whole."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make disk, volume and launch folder, create the container, read its bounds back."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Record durably that the next thing is the one start."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the container. Issued once for a dispatch."""


@dataclass(frozen=True, slots=True)
class Undispatch:
    """Record that the dispatched start is proved never to have happened."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Give it a ready slot, if there still is one: one transaction, then one line to the slot."""


@dataclass(frozen=True, slots=True)
class Unassign:
    """Remove the slot it was given, in which it is proved never to have run, and record that."""


@dataclass(frozen=True, slots=True)
class RecordRunning:
    """Record when it began to run."""

    started_at: datetime


@dataclass(frozen=True, slots=True)
class RecordStop:
    """Record why it is to end, before anything is done about it."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class End:
    """End the sandbox: TERM, `grace_seconds`, KILL; KILL at once for 0."""

    grace_seconds: int


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    """Remove the container and confirm it."""


@dataclass(frozen=True, slots=True)
class Collect:
    """Digest and keep the files that a Process names, from its stopped workspace."""


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """Record the outcome, once."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Dispose:
    """Remove container, volume, disk and launch folder; confirm and record that nothing is left."""


@dataclass(frozen=True, slots=True)
class Bury:
    """Replace the record by a tombstone and drop its output."""


CheckpointAction = Dispatch | Thaw | Take | RecordEnd | Save | Dispose | Bury
"""What is done about a Checkpoint."""

Action = (
    GitAction
    | Fetch
    | Fill
    | Create
    | Dispatch
    | Start
    | Undispatch
    | Assign
    | Unassign
    | RecordRunning
    | RecordStop
    | End
    | RemoveContainer
    | Collect
    | RecordEnd
    | Dispose
    | Bury
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What to do now, what to tell those who wait, and when to look again at the latest.

    No action and no `look_again_in` means: nothing to do until something changes.
    """

    actions: tuple[Action | CheckpointAction, ...] = ()
    waiting: Waiting | None = None
    look_again_in: float | None = None
    """Seconds; always greater than 0."""
