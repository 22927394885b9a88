"""One-shot dispatch: what a front door tells an agent about one run, and what the agent answers.

A dispatch is an Execution that gets a prewarmed sandbox, one JSON document on its stdin, and is
gone afterwards. The document (the payload) travels beside these messages and is in none of them:
they hold its size and its digest. Events are numbered from 1, in the order the runner wrote them.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Protocol, Self

from pydantic import Field, model_validator

from isolet.wire.base import Uid, Wire
from isolet.wire.execution import EnvVar, Outcome
from isolet.wire.process import StagedFile

MAX_DOCUMENT_BYTES = 8 << 20
"""Of a payload, and of the envelope around it with its newline."""
MAX_EVENT_BYTES = 1 << 20
"""Of one line of a runner's stdout, its newline apart."""
MAX_EVENTS_BYTES = 64 << 20
"""Of all that a runner writes to stdout."""

RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
"""Ids of runs: first alphanumeric, then [A-Za-z0-9_.:-], at most 128."""
RunId = Annotated[str, Field(pattern=RUN_ID_PATTERN)]

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

HEARTBEAT = "heartbeat"
"""Type of what is sent while a run is quiet; no event of a runner may have it."""
COMPLETED = "completed"
"""Type of the terminal event."""


class Mode(StrEnum):
    """How the runner tells of its result, beside its events."""

    CALLBACK = "callback"
    CALLBACK_QUEUED = "callback-queued"
    """From a queue: the runner must have its terminal status acknowledged before it ends."""
    STREAM = "stream"


class Budgets(Wire):
    """How long each part of a run may take, in seconds; `isolet.plan.dispatch_budget` derives."""

    startup_seconds: int = Field(default=120, ge=1, le=600)
    """From the assignment until the runner has taken its document."""
    execution_seconds: int = Field(default=3600, ge=1, le=86_400)
    """From then until its terminal event."""
    finalization_seconds: int = Field(default=60, ge=1, le=300)
    """From the terminal event until it has ended."""
    cleanup_seconds: int = Field(default=30, ge=1, le=300)
    """From its end until all of it is confirmed gone; what takes longer is quarantined."""


class RunnerContract(Wire):
    """What a pool starts ahead of any tenant, and how it is known to be ready."""

    command: tuple[str, ...] = Field(min_length=1)
    env: tuple[EnvVar, ...] = ()
    """Nothing of a tenant: it is the same for every run of the class."""
    files: tuple[StagedFile, ...] = ()
    """As `env`, such as the public key that documents are verified with."""
    ready_line: str = Field(default="ready", min_length=1, max_length=32)
    """The first line it writes to stdout once it waits for its document."""
    budgets: Budgets = Budgets()


class DispatchWanted(Wire):
    """One run. Its uid is never used twice; the document is handed over at most once."""

    uid: Uid
    namespace: str = Field(default="default", max_length=253)
    name: str = Field(max_length=253)
    run_id: RunId
    class_name: str = Field(max_length=253)
    mode: Mode
    payload_digest: Digest
    payload_bytes: int = Field(ge=1, le=MAX_DOCUMENT_BYTES)
    budgets: Budgets = Budgets()


class ReserveRequest(Wire):
    """Asks for a slot of a class, for a short while and for nobody in particular."""

    class_name: str = Field(max_length=253)
    seconds: float = Field(default=10.0, gt=0, le=60)


class Reservation(Wire):
    """A slot that nobody else is given for a while. Nothing of a tenant is in it."""

    slot: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.-]+$")
    """The name under which it is assigned or released."""


class DispatchObserved(Wire):
    """One run as the agent knows it."""

    uid: str
    run_id: str
    mode: Mode
    payload_digest: str
    last_sequence: int = 0
    """The number of events so far."""
    begun_at: datetime
    outcome: Outcome | None = None
    """How it ended; only once every process of it is confirmed dead."""
    quarantined: bool = False
    """It has ended and its removal could not be confirmed in time; it is tried on."""


class DispatchEvent(Wire):
    """One line that the runner wrote."""

    sequence: int = Field(ge=1)
    type: str
    event: dict[str, Any]
    """The line as it is: its `event_type`, its `payload` and whatever else it has."""


class DispatchLine(Wire):
    """One line of an event stream: an event, a sign of life, or the end."""

    event: DispatchEvent | None = None
    heartbeat: bool = False
    ended: Outcome | None = None
    """The last line."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.event is not None) + self.heartbeat + (self.ended is not None) != 1:
            raise ValueError("exactly one of event, heartbeat and ended")
        return self


class BeginRequest(Wire):
    """What stands before the document in the body of a begin."""

    reservation: Reservation | None = None
    """None: whichever slot is ready."""
    wanted: DispatchWanted


class CancelAnswer(Wire):
    """What came of a cancellation."""

    known: bool
    """False: the run never was here, and can not be begun here any more."""
    dispatch: DispatchObserved | None = None
    """The run; without an outcome its end is not confirmed yet."""


class DispatchAPI(Protocol):
    """What an agent does about runs. Errors are those of `isolet.base.errors`."""

    async def reserve(self, request: ReserveRequest) -> Reservation:
        """Keep a fresh slot for a while.

        Raises:
            Unavailable: none is ready now (`NoCapacity`); nothing was changed.
            NotFound: this node has no pool for the class.
        """
        ...

    async def release(self, reservation: Reservation) -> None:
        """Put an unassigned slot back; one that is unknown or assigned is left alone."""
        ...

    async def begin(
        self, reservation: Reservation | None, wanted: DispatchWanted, payload: bytes
    ) -> DispatchObserved:
        """Make the slot this run's and hand the document over, once.

        Without a reservation it is whichever slot of the class is ready. A reservation is for those
        who have something to do between the two that only a run with a slot is worth. The answer
        comes as soon as the run is owned; repeated, it answers with what is.

        Raises:
            Invalid: the document is not one JSON object, or not the one that was announced.
            Conflict: the uid was here before with another run, or was cancelled.
            NotFound: this node has no pool for the class.
            Unavailable: the reservation ran out, or no slot is ready (`NoCapacity`); nothing was
                changed.
            Unconfirmed: nobody can say; the run must not be tried again.
        """
        ...

    async def dispatch(self, uid: str) -> DispatchObserved:
        """One run. Raises NotFound: never here, or its events are not kept any more."""
        ...

    def follow(self, uid: str, after: int) -> AsyncIterator[DispatchLine]:
        """Events after a sequence number, then live ones, then the end.

        Whoever stops following, or stalls, holds up nothing and may come back.

        Raises:
            NotFound: never here, or its events are not kept any more.
            Unavailable: the agent failed at it and takes it up again; come back after a pause.
        """
        ...

    async def cancel(self, uid: str) -> CancelAnswer:
        """End a run; one that is not here can not be begun here afterwards."""
        ...
