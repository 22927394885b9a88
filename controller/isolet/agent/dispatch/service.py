"""The runs of a node: begun, followed, ended, and taken up again after a restart."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import timedelta

from isolet.agent.dispatch.ports import Slot, Slots
from isolet.agent.dispatch.run import Parts, Run, again, let_go
from isolet.agent.dispatch.spool import Begun, Ended, Spool, Spools
from isolet.agent.dispatch.steps import DispatchStep
from isolet.base import errors, log, names
from isolet.base.clock import Clock
from isolet.base.steps import reach
from isolet.plan import dispatch_document, reasons
from isolet.plan.dispatch_outcome import Stop
from isolet.wire.dispatch import (
    CancelAnswer,
    DispatchEvent,
    DispatchLine,
    DispatchObserved,
    DispatchWanted,
    Reservation,
    ReserveRequest,
)
from isolet.wire.execution import Outcome

_PIECE = 256 << 10
_SMALL = 64 << 10
"""A larger document is read in a thread."""
_BEGIN_SECONDS = 10.0
"""How long a run may take from its durable step until it is followed; it takes microseconds."""
_HANDOVER_GLANCE_SECONDS = 0.02
"""How long an answer lets its document go first; one that is taken slowly is not waited for."""
_log = log.get("agent.dispatch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Seconds, and what may be kept."""

    heartbeat_seconds: float = 10.0
    keep_seconds: float = 3600.0
    """How long the events of an ended run can still be read."""
    keep_bytes: int = 4 << 30
    """Of events of ended runs in all; the oldest go first."""
    prune_seconds: float = 60.0
    handover_seconds: float = 5.0
    """How long one that closes waits for documents that are on their way."""


class DispatchService:
    """Implements `isolet.wire.dispatch.DispatchAPI`. Use it within one event loop."""

    def __init__(
        self,
        slots: Slots,
        spools: Spools,
        clock: Clock,
        *,
        boot_id: str,
        times: Times | None = None,
    ) -> None:
        self._slots = slots
        self._spools = spools
        self._clock = clock
        self._boot_id = boot_id
        self._times = times or Times()
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """Set, and replaced, when a run begins to be followed."""

    async def recover(self) -> None:
        """Take up every run that has not been concluded; call once, before anything else."""
        slots = await self._slots.adopt()
        await asyncio.to_thread(self._spools.forget_all_but, {slot.uid for slot in slots})
        for slot in slots:
            spool = self._spools.of(slot.uid)
            ended, begun = spool.ended(), spool.begun()
            if ended is not None:
                self._settle(slot, ended.outcome)
            elif begun is None or begun.boot_id != self._boot_id:
                self._settle(slot, _unfollowed(begun))
            else:
                self._go(slot, spool, begun, None)

    async def prune_loop(self) -> None:
        """Forget, now and then, the events that have been kept for long enough."""
        while True:
            await asyncio.sleep(self._times.prune_seconds)
            await self.prune()

    async def prune(self) -> None:
        """Forget them now."""
        before = self._clock.now() - timedelta(seconds=self._times.keep_seconds)
        await asyncio.to_thread(self._spools.prune, before, self._times.keep_bytes)

    async def close(self) -> None:
        """Stop following. Runs go on, and the next agent takes them up.

        It will not have the documents of those that have just begun: these are handed over first.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.handover_seconds):
                for run in list(self._runs.values()):
                    await run.sent.wait()
        for task in list(self._tasks.values()):
            await let_go(task)

    # DispatchAPI

    async def reserve(self, request: ReserveRequest) -> Reservation:
        """See DispatchAPI."""
        return await self._slots.reserve(request)

    async def release(self, reservation: Reservation) -> None:
        """See DispatchAPI."""
        await self._slots.release(reservation)

    async def begin(
        self, reservation: Reservation | None, wanted: DispatchWanted, payload: bytes
    ) -> DispatchObserved:
        """See DispatchAPI."""
        try:
            envelope = await self._envelope(wanted, payload)
            known = self._known(wanted)
        except errors.IsoletError:
            await self._release(reservation)
            raise
        if known is not None:
            await self._release(reservation)
            return known
        if reservation is None:
            reservation = await self.reserve(ReserveRequest(class_name=wanted.class_name))
        reach(DispatchStep.ASSIGN_BEFORE)
        try:
            slot = await self._slots.assign(reservation, wanted)
        except errors.Unconfirmed:
            self._keep(wanted.uid, self._find_out(wanted.uid))
            raise
        reach(DispatchStep.ASSIGN_AFTER)
        spool = self._spools.of(wanted.uid)
        begun = Begun(
            wanted=wanted,
            begun_at=self._clock.now(),
            boot_id=self._boot_id,
            boottime=self._clock.boottime(),
        )
        try:
            spool.begin(begun)
        except OSError as error:
            self._settle(slot, _unfollowed(None))
            raise errors.Unconfirmed(f"the run cannot be kept: {error.strerror}") from error
        reach(DispatchStep.BEGIN_AFTER)
        run = self._go(slot, spool, begun, envelope)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANDOVER_GLANCE_SECONDS):
                await run.sent.wait()
        return run.observed()

    async def dispatch(self, uid: str) -> DispatchObserved:
        """See DispatchAPI."""
        run = self._runs.get(uid)
        if run is not None:
            return run.observed()
        spool = self._spools.of(uid)
        begun, ended = spool.begun(), spool.ended()
        if begun is None or ended is None:
            raise errors.NotFound(f"no run {uid} is kept here")
        return _observed(begun, ended)

    def stop(self, uid: str, stop: Stop) -> None:
        """Have a run end, if it goes on here."""
        run = self._runs.get(uid)
        if run is not None:
            run.stop(stop)

    async def cancel(self, uid: str) -> CancelAnswer:
        """See DispatchAPI."""
        due = asyncio.get_running_loop().time() + _BEGIN_SECONDS
        while True:
            changed = self._changed
            answer = await self._cancelled(uid)
            if answer is not None:
                return answer
            try:
                async with asyncio.timeout_at(due):
                    await changed.wait()
            except TimeoutError:
                raise errors.Unavailable(f"run {uid} is being begun; ask again") from None

    async def _cancelled(self, uid: str) -> CancelAnswer | None:
        """What came of it; None where the run is just being begun, and cannot be ended yet."""
        run, task = self._runs.get(uid), self._tasks.get(uid)
        if run is not None and task is not None:
            run.stop(Stop(reason=reasons.CANCELLED, message="it was cancelled"))
            await asyncio.wait({task}, timeout=run.begun.wanted.budgets.cleanup_seconds)
            seen = run.observed() if not run.given_up else await self.dispatch(uid)
            return CancelAnswer(known=True, dispatch=seen)
        if task is not None:
            return CancelAnswer(known=True)
        with contextlib.suppress(errors.NotFound):
            return CancelAnswer(known=True, dispatch=await self.dispatch(uid))
        try:
            await self._slots.fence(uid)
        except errors.Conflict:
            return None
        return CancelAnswer(known=False)

    async def follow(self, uid: str, after: int) -> AsyncIterator[DispatchLine]:
        """See DispatchAPI."""
        await self.dispatch(uid)
        reader = _Reader(self._spools.of(uid), after)
        run = self._runs.get(uid)
        while run is not None and run.outcome is None:
            if run.given_up:
                raise errors.Unavailable(f"run {uid} failed here and is taken up again; ask again")
            async for event in reader.events(run.whole_bytes):
                yield DispatchLine(event=event)
            if run.outcome is not None or run.whole_bytes > reader.offset:
                continue
            if not await run.news(self._times.heartbeat_seconds):
                yield DispatchLine(heartbeat=True)
        ended = self._spools.of(uid).ended()
        if ended is None:
            raise errors.NotFound(f"the events of run {uid} are not kept any more")
        async for event in reader.events(ended.whole_bytes):
            yield DispatchLine(event=event)
        if reader.offset < ended.whole_bytes:
            raise errors.NotFound(f"the events of run {uid} are not kept any more")
        yield DispatchLine(ended=ended.outcome)

    # Within

    async def _release(self, reservation: Reservation | None) -> None:
        if reservation is not None:
            await self._slots.release(reservation)

    async def _envelope(self, wanted: DispatchWanted, payload: bytes) -> bytes:
        """Check the document again: the caller may be wrong, and a slot is not spent on that."""

        def check() -> bytes:
            if names.digest(payload) != wanted.payload_digest:
                raise errors.Invalid("document: is not the one that was announced")
            dispatch_document.parse(payload)
            return dispatch_document.envelope(wanted.mode, payload)

        if len(payload) != wanted.payload_bytes:
            raise errors.Invalid("document: has another size than was announced")
        return check() if len(payload) <= _SMALL else await asyncio.to_thread(check)

    def _known(self, wanted: DispatchWanted) -> DispatchObserved | None:
        run, begun = self._runs.get(wanted.uid), self._spools.of(wanted.uid).begun()
        if begun is None:
            return None
        if begun.wanted != wanted:
            raise errors.Conflict(f"{wanted.uid} stands for another run")
        ended = self._spools.of(wanted.uid).ended()
        if run is None and ended is None:
            raise errors.Conflict(f"{wanted.uid} was here before")
        return run.observed() if run is not None else _observed(begun, ended)

    def _go(self, slot: Slot, spool: Spool, begun: Begun, envelope: bytes | None) -> Run:
        run = Run(Parts(slot=slot, spool=spool, begun=begun, clock=self._clock), envelope)
        self._runs[slot.uid] = run
        self._keep(slot.uid, self._to_its_end(slot, spool, run))
        return run

    async def _to_its_end(self, slot: Slot, spool: Spool, run: Run) -> None:
        """See a run to its end, also where we fail at it.

        It is then taken up again, after a pause that grows, as a restarted agent takes it up: the
        sandbox goes on or has to be confirmed dead, and only whoever follows it can say how it
        ended. An end that is written stands, and is concluded alone. This one task does all of it,
        one after the other, so a run never has two followers. Its readers' streams end with
        `Unavailable`, since what they waited on tells nothing more; they come back by sequence.
        """
        async for _ in again():
            try:
                return await run.perform()
            except Exception as error:
                _log.error("a run failed here", exc_info=error, extra={"uid": slot.uid})
            run.give_up()
            found = await _left_of(run, spool)
            if isinstance(found, Ended):
                del self._runs[slot.uid]
                return await _settled(slot, found.outcome, spool)
            run = self._runs[slot.uid] = found

    def _keep(self, uid: str, work: Coroutine[None, None, None]) -> None:
        task = self._tasks[uid] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._done(uid, done))
        self._changed.set()
        self._changed = asyncio.Event()

    def _done(self, uid: str, task: "asyncio.Task[None]") -> None:
        self._runs.pop(uid, None)
        self._tasks.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a run is not followed any more", exc_info=error, extra={"uid": uid})

    def _settle(self, slot: Slot, outcome: Outcome) -> None:
        """Have a slot destroyed and its run concluded, however long that takes."""
        self._keep(slot.uid, _settled(slot, outcome, self._spools.of(slot.uid)))

    async def _find_out(self, uid: str) -> None:
        """Settle a run of which nobody could say whether a slot was assigned to it, if one was."""
        async for _ in again():
            try:
                found = await self._slots.adopt()
            except errors.IsoletError as error:
                _log.warning("a run is in doubt", extra={"uid": uid, "why": error.reason})
                continue
            except Exception as error:  # Ours; there is nobody else to try again.
                _log.error("a run is in doubt", exc_info=error, extra={"uid": uid})
                continue
            for slot in found:
                if slot.uid == uid:
                    await _settled(slot, _unfollowed(None), self._spools.of(uid))
            return


class _Reader:
    """Reads a spool from its beginning, and gives what comes after a sequence number."""

    def __init__(self, spool: Spool, after: int) -> None:
        self._spool = spool
        self._after = after
        self._sequence = 0
        self._rest = bytearray()
        self.offset = 0

    async def events(self, until: int) -> AsyncIterator[DispatchEvent]:
        """Events in the bytes up to `until`, where an event ends."""
        while self.offset < until:
            limit = min(_PIECE, until - self.offset)
            piece = await asyncio.to_thread(self._spool.read, self.offset, limit)
            if not piece:
                return
            self.offset += len(piece)
            self._rest += piece
            *lines, rest = self._rest.split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                self._sequence += 1
                if self._sequence > self._after:
                    event = json.loads(line)
                    kind = event["event_type"]
                    yield DispatchEvent(sequence=self._sequence, type=kind, event=event)


async def _left_of(run: Run, spool: Spool) -> Ended | Run:
    """The end of a run that was given up, if that is written, else who goes on with it.

    What it failed of (a full disk, too many open files) may keep the spool from being read too.
    """
    async for _ in again():
        with contextlib.suppress(Exception):
            return spool.ended() or run.successor()
    raise AssertionError("it is tried for ever")


async def _settled(slot: Slot, outcome: Outcome, spool: Spool) -> None:
    async for _ in again():
        try:
            await slot.destroy()
            await slot.conclude(outcome)
            if spool.ended() is None:
                spool.remove()  # Nothing tells how far its events go.
            return
        except (errors.IsoletError, OSError) as error:
            _log.warning("a slot is not gone yet", extra={"why": type(error).__name__})
        except Exception as error:  # Ours; there is nobody else to try again.
            _log.error("a slot is not gone yet", exc_info=error, extra={"uid": slot.uid})


def _unfollowed(begun: Begun | None) -> Outcome:
    """How a run ended that cannot be taken up: its document is not handed over again."""
    if begun is None:
        reason, why = reasons.START_UNCONFIRMED, "the agent did not come to hand its document over"
    else:
        reason, why = reasons.CONTAINER_LOST, "the node was restarted"
    return Outcome(succeeded=False, reason=reason, message=why)


def _observed(begun: Begun, ended: Ended | None) -> DispatchObserved:
    wanted = begun.wanted
    return DispatchObserved(
        uid=wanted.uid,
        run_id=wanted.run_id,
        mode=wanted.mode,
        payload_digest=wanted.payload_digest,
        last_sequence=ended.last_sequence if ended else 0,
        begun_at=begun.begun_at,
        outcome=ended.outcome if ended else None,
    )
