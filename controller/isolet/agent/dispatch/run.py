"""One run, from the hand-over of its document until nothing of it is left.

Each thing is written down before the next begins (`spool`), so another agent goes on where this one
was killed. The document is handed over at most once: whoever takes a run up does not have it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from isolet.agent.dispatch.ports import Slot
from isolet.agent.dispatch.spool import Begun, Ended, Spool
from isolet.agent.dispatch.steps import DispatchStep
from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.base.fairness import Turns
from isolet.base.steps import reach
from isolet.plan import dispatch_budget, reasons
from isolet.plan.dispatch_events import Decoder, Violation
from isolet.plan.dispatch_outcome import Evidence, Exit, Stop, decide
from isolet.wire.dispatch import COMPLETED, MAX_EVENTS_BYTES, DispatchEvent, DispatchObserved
from isolet.wire.execution import Outcome

_CHUNK = 256 << 10
_ERROR = "error"
_RETRY_SECONDS = (0.2, 10.0)
"""First and longest pause before something that failed is tried again."""
_log = log.get("agent.dispatch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a run is made of."""

    slot: Slot
    spool: Spool
    begun: Begun
    clock: Clock


class _NotKept(Exception):
    """An event could not be written down."""


class Run:
    """A run that has not been concluded.

    `envelope` is what it is to be handed, and None for one that is taken up again. It is let go of
    as soon as it was sent.
    """

    def __init__(self, parts: Parts, envelope: bytes | None) -> None:
        self._envelope = envelope
        self.sent = asyncio.Event()
        """Set once nothing of its document is here any more."""
        if envelope is None:
            self.sent.set()
        self._parts = parts
        self._slot, self._spool, self.begun = parts.slot, parts.spool, parts.begun
        self._clock = parts.clock
        self._log = log.get("agent.dispatch", uid=parts.begun.wanted.uid)
        self._decoder = Decoder()
        # What is begun with a document has nothing to go on from.
        self._delivered = self._spool.delivered() if envelope is None else None
        self._completed_at: float | None = None
        self._timer: asyncio.Timeout | None = None
        self._watching: asyncio.Task[Exit] | None = None
        self._news = asyncio.Event()
        self._exit: Exit | None = None
        self._handed_on = False
        """Taken up from an agent that was killed before it knew that the document was taken."""
        self._stop = self._spool.stopped() if envelope is None else None
        self.outcome: Outcome | None = None
        self.quarantined = False
        self.given_up = False
        """Another goes on with it: nothing more will be heard here."""

    @property
    def whole_bytes(self) -> int:
        """How much of the spool is events."""
        return self._decoder.whole

    def observed(self) -> DispatchObserved:
        """Where it stands."""
        wanted = self.begun.wanted
        return DispatchObserved(
            uid=wanted.uid,
            run_id=wanted.run_id,
            mode=wanted.mode,
            payload_digest=wanted.payload_digest,
            last_sequence=self._decoder.sequence,
            begun_at=self.begun.begun_at,
            outcome=self.outcome,
            quarantined=self.quarantined,
        )

    async def news(self, seconds: float) -> bool:
        """Wait until something has changed; False if nothing did for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def stop(self, stop: Stop) -> None:
        """End it for this reason, unless it is being ended for another."""
        if self._stop is None and self.outcome is None and self._exit is None:
            reach(DispatchStep.STOP_BEFORE)
            self._stop = stop
            try:
                self._spool.stop(stop)
            except OSError as error:
                # It is ended all the same; only another agent would not know why.
                self._log.warning("a stop is not written", extra={"why": error.strerror})
        if self._stop is not None and self._watching is not None:
            self._watching.cancel()

    def give_up(self) -> None:
        """Let go of everything, and wake whoever waits for news."""
        self._envelope = None
        self.sent.set()
        self.given_up = True
        self._tell()

    def successor(self) -> "Run":
        """Another one to go on with it, as after a restart, that knows why it is being ended."""
        after = Run(self._parts, None)
        after._stop = after._stop or self._stop
        return after

    async def perform(self) -> None:
        """See the run to its end. What it raises is a fault of ours."""
        self._handed_on = self._envelope is None and self._delivered is None
        if self._envelope is None:
            await asyncio.to_thread(self._replay)
        if self._stop is None:
            await self._to_its_exit()
        self._envelope = None
        self.sent.set()
        await self._destroy()
        await self._conclude()

    def _replay(self) -> None:
        """Read again what was kept before; what breaks the contract breaks it again."""
        try:
            while self._decoder.total < self._spool.size():
                piece = self._spool.read(self._decoder.total, _CHUNK)
                for event in self._decoder.feed(piece):
                    self._note(event)
        except Violation as broken:
            self.stop(Stop(reason=broken.reason, message=broken.message))

    async def _to_its_exit(self) -> None:
        pause, longest = _RETRY_SECONDS
        while self._exit is None and self._stop is None:
            self._watching = asyncio.create_task(self._watch())
            try:
                await asyncio.wait({self._watching})
            finally:
                self._watching.cancel()
            trouble = self._settled(self._watching)
            if trouble is not None and self._left() <= 0:
                # An engine that refuses at once leaves no moment in which its time could run out.
                self.stop(self._overdue())
            elif trouble is not None:
                self._log.warning("a run cannot be followed", extra={"why": trouble})
                await asyncio.sleep(min(pause, self._left()))
                pause = min(2 * pause, longest)
        self._watching = None

    def _settled(self, watching: "asyncio.Task[Exit]") -> str | None:
        """Take up how the watching ended; says why it has to be begun again, if it has."""
        if watching.cancelled():
            return None
        match watching.exception():
            case None:
                self._exit = watching.result()
            case Violation() as broken:
                self.stop(Stop(reason=broken.reason, message=broken.message))
            case TimeoutError() if self._left() <= 0:
                self.stop(self._overdue())
            case _NotKept() as error:
                self.stop(Stop(reason=reasons.NODE_STORAGE_FULL, message=str(error)))
            case (errors.IsoletError() | OSError()) as error:
                return type(error).__name__
            case error:
                self._log.error("a run failed here", exc_info=error)
                self.stop(Stop(reason="InternalError", message="the agent failed; see its log"))
        return None

    async def _watch(self) -> Exit:
        # What ended by itself while nobody looked has given all it will: time is no matter then.
        over = self._envelope is None and await self._slot.over()
        async with asyncio.timeout(None if over else self._left()) as self._timer:
            if self._envelope is not None:
                await self._hand_over()
            elif self._delivered is None:
                # It may have got a part: seeing the end of it, the runner refuses it as such.
                await self._slot.close_input()
            self._reschedule()
            turns = Turns()
            async for chunk in self._slot.output(self._spool.size()):
                self._take(chunk)
                await turns.give()
            ended = await self._slot.exit()
            well = ended.code == 0 and self._decoder.completed
            if over and not well and self._left() <= 0:
                raise TimeoutError  # The watchdog ends what is due as well.
            if (
                not ended.output_lost
            ):  # Otherwise a line that was cut off is no lie of the runner's.
                self._decoder.finish()
            return ended

    async def _hand_over(self) -> None:
        """At most once: what was begun to be sent is not at hand any more."""
        reach(DispatchStep.DELIVER_BEFORE)
        envelope, self._envelope = self._envelope, None
        assert envelope is not None
        try:
            await self._slot.deliver(envelope)
        except (errors.IsoletError, OSError) as error:
            # It may have died of itself: how it ended says more than this.
            self._log.warning("a document was not taken whole", extra={"why": type(error).__name__})
            return
        finally:
            self.sent.set()
        reach(DispatchStep.DELIVER_AFTER)
        self._mark_delivered()

    def _mark_delivered(self) -> None:
        self._delivered, self._handed_on = self._clock.boottime(), False
        try:
            self._spool.deliver(self._delivered)
        except OSError as error:
            # It goes on all the same; only another agent would not know.
            self._log.warning("a hand-over is not written", extra={"why": error.strerror})
        reach(DispatchStep.DELIVERED_AFTER)

    def _take(self, chunk: bytes) -> None:
        try:
            self._spool.append(chunk[: max(MAX_EVENTS_BYTES - self._decoder.total, 0)])
        except OSError as error:
            raise _NotKept(f"its events cannot be kept: {error.strerror}") from error
        reach(DispatchStep.SPOOL_AFTER)
        try:
            for event in self._decoder.feed(chunk):
                self._note(event)
        finally:
            self._tell()
        self._reschedule()

    def _note(self, event: DispatchEvent) -> None:
        # An error may be its word that it was given half a document.
        if self._delivered is None and event.type != _ERROR:
            self._mark_delivered()
        if event.type == COMPLETED:
            self._completed_at = self._clock.boottime()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Time

    def _left(self) -> float:
        """Seconds until the present part of it has taken too long."""
        budgets = self.begun.wanted.budgets
        start = self.begun.boottime
        last = start + dispatch_budget.run_deadline(budgets)
        if self._delivered is None:
            due = start + budgets.startup_seconds
        elif self._completed_at is not None:
            due = self._completed_at + budgets.finalization_seconds
        else:
            due = self._delivered + budgets.execution_seconds
        return min(due, last) - self._clock.boottime()

    def _reschedule(self) -> None:
        timer = self._timer
        if timer is not None and timer.when() is not None and not timer.expired():
            timer.reschedule(asyncio.get_running_loop().time() + self._left())

    def _overdue(self) -> Stop:
        budgets = self.begun.wanted.budgets
        if self._delivered is None:
            return Stop(
                reason=reasons.HANDOVER_TIMEOUT,
                message=f"its document was not taken within {budgets.startup_seconds} s",
            )
        if self._completed_at is not None:
            return Stop(
                reason=reasons.FINALIZATION_TIMEOUT,
                message=f"it did not end within {budgets.finalization_seconds} s of its result",
            )
        return Stop(
            reason=reasons.DEADLINE_EXCEEDED,
            message=f"it gave no result within {budgets.execution_seconds} s",
        )

    # The end

    async def _destroy(self) -> None:
        """Until it is confirmed. A slot that resists is quarantined; the node goes on."""
        reach(DispatchStep.DESTROY_BEFORE)
        late = self._clock.boottime() + self.begun.wanted.budgets.cleanup_seconds
        async for _ in again():
            try:
                await self._slot.destroy()
                break
            except (errors.IsoletError, OSError) as error:
                self._log.warning("a slot is not gone yet", extra={"why": type(error).__name__})
            self.quarantined = self._clock.boottime() >= late
        reach(DispatchStep.DESTROY_AFTER)
        self.quarantined = False

    async def _conclude(self) -> None:
        outcome = decide(
            Evidence(
                confirmed_dead=True,
                stop=self._stop,
                exit=self._exit,
                completed=self._decoder.completed,
                delivery_unknown=self._handed_on,
            )
        )
        assert outcome is not None
        ended = Ended(
            outcome=outcome,
            ended_at=self._clock.now(),
            last_sequence=self._decoder.sequence,
            whole_bytes=self._decoder.whole,
        )
        async for _ in again():
            try:
                await asyncio.to_thread(self._spool.end, ended)
                reach(DispatchStep.END_AFTER)
                await self._slot.conclude(outcome)
                break
            except (errors.IsoletError, OSError) as error:
                self._log.warning("an end is not written", extra={"why": type(error).__name__})
        reach(DispatchStep.CONCLUDE_AFTER)
        self.outcome = outcome
        self._tell()
        self._log.info("a run has ended", extra={"reason": outcome.reason})


async def again() -> AsyncIterator[None]:
    """Once, and again with growing pauses for whoever does not break off."""
    pause, longest = _RETRY_SECONDS
    while True:
        yield
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def let_go(task: "asyncio.Task[None]") -> None:
    """Stop following without ending the run."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
