"""The process runner's words: requests, operations as they stand, results. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from isolet.base import errors, names
from isolet.plan import reasons
from isolet.wire.execution import EnvVar, Step
from isolet.wire.node import Stray
from isolet.wire.process import (
    Artifact,
    Code,
    OutputPolicy,
    ProcessObserved,
    ProcessSpec,
    Sandbox,
    StagedFile,
)


class State(StrEnum):
    """Where an operation stands."""

    STARTING = "starting"
    RUNNING = "running"
    NEEDS_RECONCILE = "needs-reconcile"
    CANCEL_REQUESTED = "cancel-requested"
    EXITED = "exited"
    CANCELLED = "cancelled"
    LOST = "lost"
    FAILED = "failed"
    DISPOSED = "disposed"


TERMINAL = frozenset({State.EXITED, State.CANCELLED, State.LOST, State.FAILED, State.DISPOSED})

_EXITED = frozenset(
    {reasons.SUCCEEDED, reasons.NON_ZERO_EXIT, reasons.OOM_KILLED, reasons.WORKSPACE_FULL}
)
_CANCELLED = frozenset({reasons.CANCELLED, reasons.DEADLINE_EXCEEDED, reasons.DRAINED})
_LOST = frozenset({reasons.CONTAINER_LOST, reasons.NODE_LOST})


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """One operation. The same id with the same request continues it; with another it conflicts."""

    operation_id: str
    scope: str
    sandbox: Sandbox | None = None
    execution_uid: str | None = None
    """Runs in this session instead of a sandbox of its own."""
    command: tuple[str, ...] = ()
    shell: str | None = None
    code: Code | None = None
    env: tuple[EnvVar, ...] = ()
    files: tuple[StagedFile, ...] = ()
    stdin: bytes | None = None
    cwd: str = ""
    timeout_seconds: int | None = None
    deadline_at: datetime | None = None
    artifacts: tuple[str, ...] = ()
    output: OutputPolicy = OutputPolicy()

    def spec(self) -> ProcessSpec:
        """As the agent is told. Raises Invalid."""
        try:
            return ProcessSpec(
                sandbox=self.sandbox,
                execution_uid=self.execution_uid,
                command=self.command,
                shell=self.shell,
                code=self.code,
                env=self.env,
                files=self.files,
                stdin=self.stdin,
                cwd=self.cwd,
                timeout_seconds=self.timeout_seconds,
                deadline_at=self.deadline_at,
                artifacts=self.artifacts,
                output=self.output,
            )
        except ValueError as error:
            # Not its own text, which quotes the values it met.
            raise errors.Invalid("; ".join(_what_is_wrong(error))) from None


@dataclass(frozen=True, kw_only=True)
class Session:
    """An operation as it stands."""

    operation_id: str
    scope: str
    state: State
    exit_code: int | None
    reason: str
    """A reason of the closed list; empty while all is well."""
    message: str
    container_id: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    deadline_at: datetime | None
    artifacts: tuple[Artifact, ...]
    durable_timeout: bool = True
    """The deadline holds while neither the host nor the agent runs."""

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is kept of both streams."""

    stdout: bytes
    stderr: bytes
    truncated: tuple[str, ...]
    """Streams of which only the end is kept."""
    incomplete: bool


@dataclass(frozen=True, kw_only=True)
class ReadArtifact:
    """A file with its digest, which can back a claim about it."""

    path: str
    size: int
    digest: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """What a look at everything found."""

    matched: tuple[Session, ...]
    lost: tuple[Session, ...]
    orphans: tuple[Stray, ...]
    removed: tuple[Stray, ...]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a one-shot run did. `exit_code` is None if nothing ran or it was killed for its time."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    truncated: tuple[str, ...] = ()
    timed_out: bool = False


def uid_of(scope: str, operation_id: str) -> str:
    """The agent's id of an operation; scopes are apart."""
    return f"op-{names.short_digest(scope, operation_id)}"


def session(seen: ProcessObserved) -> Session:
    """What the agent says of an operation, in the runner's words."""
    outcome = seen.outcome
    told = outcome or seen.waiting
    return Session(
        operation_id=seen.name,
        scope=seen.namespace,
        state=_state(seen),
        exit_code=outcome.exit_code if outcome else None,
        reason=told.reason if told else "",
        message=told.message if told else "",
        container_id=seen.container_id,
        created_at=_created_at(seen),
        updated_at=changed_at(seen),
        started_at=seen.started_at,
        deadline_at=seen.deadline_at,
        artifacts=seen.artifacts,
    )


def _state(seen: ProcessObserved) -> State:
    if seen.nothing_left and (seen.disposed or seen.execution_uid is None):
        return State.DISPOSED
    if seen.outcome is None:
        if seen.cancel_requested:
            return State.CANCEL_REQUESTED
        if seen.step is Step.DISPATCHED:
            return State.NEEDS_RECONCILE
        return State.RUNNING if seen.step is Step.RUNNING else State.STARTING
    for state, meant in (
        (State.EXITED, _EXITED),
        (State.CANCELLED, _CANCELLED),
        (State.LOST, _LOST),
    ):
        if seen.outcome.reason in meant:
            return state
    return State.FAILED


def _created_at(seen: ProcessObserved) -> datetime:
    assert seen.created_at is not None
    return seen.created_at


def changed_at(seen: ProcessObserved) -> datetime:
    """When its record last changed in a way that counts."""
    return seen.updated_at or _created_at(seen)


def _what_is_wrong(error: ValueError) -> list[str]:
    found = getattr(error, "errors", None)
    if found is None:
        return ["the request is malformed"]
    said = found(include_input=False, include_url=False, include_context=False)
    return [".".join(map(str, each["loc"])) + ": " + str(each["msg"]) for each in said]
