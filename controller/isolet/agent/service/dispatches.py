"""Runs of runners in warm slots: the pool's side of `isolet.agent.dispatch`.

A run is a record as any other, with the slot's container, and ends as any other: disposed of at
once, kept as a tombstone. What differs is who follows it while it goes on: its events, its budgets
and its outcome are `DispatchService`'s, and its worker only sees to it that its owner's wish to end
it is heard.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.dispatch.service import DispatchService
from isolet.agent.dispatch.spool import Spools
from isolet.agent.engine.base import Container, Status, Stream
from isolet.agent.service.admission import Admission
from isolet.agent.service.assign import SLOT_TAKEN, Assigner
from isolet.agent.service.context import Context
from isolet.agent.service.due import deadline_entry
from isolet.agent.service.facts import Facts
from isolet.agent.service.pools import Lease, Pools
from isolet.agent.service.worker import Driver
from isolet.agent.workspace import script
from isolet.base import errors, log, names
from isolet.plan import dispatch_budget, reasons
from isolet.plan.dispatch_events import Violation
from isolet.plan.dispatch_outcome import Exit, Stop
from isolet.plan.sandbox_model import Action, CheckpointAction, Decision, Kind, SandboxRecord
from isolet.wire.dispatch import (
    MAX_EVENTS_BYTES,
    DispatchWanted,
    Reservation,
    ReserveRequest,
)
from isolet.wire.execution import Outcome, State, Step

NO_CAPACITY = "NoCapacity"

_DEATH_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_EVENTS_LOOK_SECONDS = 0.5
_FOLDER = "dispatch"
_PROGRAM = "runner"
_ALIVE = frozenset({Status.RUNNING, Status.PAUSED, Status.RESTARTING})
_log = log.get("agent.dispatches")

Told = Callable[[SandboxRecord], None]


class RunnerSlot:
    """Implements `isolet.agent.dispatch.ports.Slot` over the slot's container."""

    def __init__(self, record: SandboxRecord, owner: "RunnerSlots", lease: Lease | None) -> None:
        self._record = record
        self._owner = owner
        self._lease = lease
        assert record.container_id is not None
        self._container = record.container_id

    @property
    def uid(self) -> str:
        """Whose it is."""
        return self._record.uid

    async def deliver(self, data: bytes) -> None:
        """The deadline, then the document; its end is that of its line."""
        lease = self._lease
        if lease is None:
            raise errors.Unconfirmed("the slot's input is not at hand any more")
        try:
            await self._owner.guard(self._record, lease)
            await lease.input.write(script.line(data))
        finally:
            self._lease = None
            self._owner.given(lease, self.uid)

    async def close_input(self) -> None:
        """Nothing: half a document never looks whole, and the startup budget ends the wait."""

    async def output(self, offset: int) -> AsyncIterator[bytes]:
        """What it wrote after its own two lines; the log is read again from its beginning.

        Its stderr goes nowhere, but that of PID 1 is open to it, and in the log.
        """
        await self._owner.calm.lull()
        lines, skip, room = 2, offset, MAX_EVENTS_BYTES
        after = dict.fromkeys(Stream, 0)
        frames = self._owner.engine.output(self._container, after=after, follow=True)
        try:
            async for frame in frames:
                data = frame.data if frame.stream is Stream.STDOUT else b""
                room -= len(frame.data) - len(data)
                if room < 0:
                    text = f"it wrote more than {MAX_EVENTS_BYTES} bytes to a stderr"
                    raise Violation(reasons.OUTPUT_LIMIT_EXCEEDED, text)
                while lines and data:
                    _, newline, data = data.partition(b"\n")
                    lines -= bool(newline)
                skipped = min(skip, len(data))
                skip -= skipped
                if data[skipped:]:
                    yield data[skipped:]
        except errors.NotFound:
            return

    async def over(self) -> bool:
        """Whether the container is not alive any more."""
        try:
            return (await self._owner.engine.inspect(self._container)).status not in _ALIVE
        except errors.NotFound:
            return True

    async def exit(self) -> Exit:
        """How the container ended."""
        await self._owner.calm.wait()
        while True:
            seen = await self._dead()
            if seen is None:
                return Exit(code=None)
            try:
                end = await self._owner.facts.ends.judge(self._record, seen)
            except errors.Unavailable:
                await asyncio.sleep(_EVENTS_LOOK_SECONDS)
                continue
            oom = self._owner.facts.oom(seen) is not None
            return Exit(code=end.code, oom_killed=oom, output_lost=end.output_lost)

    async def _dead(self) -> Container | None:
        """Its container, once that is not alive; None if it is gone."""
        while True:
            try:
                seen = await self._owner.engine.inspect(self._container)
            except errors.NotFound:
                return None
            if seen.status not in _ALIVE:
                return seen
            await asyncio.sleep(_LOOK_SECONDS)

    async def destroy(self) -> None:
        """Kill the sandbox and look until the engine shows it dead."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._owner.given(lease, self.uid)
        await self._owner.engine.kill(self._container)
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await self._dead()
        except TimeoutError:
            raise errors.Unconfirmed(
                "a runner still lives after it was killed", reason=reasons.CANCEL_UNVERIFIED
            ) from None

    async def conclude(self, outcome: Outcome) -> None:
        """Write the outcome into the record; its worker disposes of the rest."""
        await self._owner.conclude(self.uid, outcome)


@dataclass(slots=True)
class _Kept:
    """A slot that is reserved, and the room that whoever is given it will hold."""

    lease: Lease
    timer: asyncio.TimerHandle | None = None
    room: SandboxRecord = field(init=False)

    def __post_init__(self) -> None:
        """A slot holds no room of its own; work does."""
        slot = self.lease.slot
        self.room = slot.with_(uid=f"{slot.uid}-reserved", kind=Kind.EXECUTION)


class RunnerSlots:
    """Implements `isolet.agent.dispatch.ports.Slots` over the node's pools."""

    def __init__(
        self,
        context: Context,
        book: DeadlineBook,
        pools: Pools,
        assigner: Assigner,
        admission: Admission,
        facts: Facts,
        told: Told,
    ) -> None:
        self._context = context
        self._book = book
        self._pools = pools
        self._assigner = assigner
        self._admission = admission
        self._told = told
        self.facts = facts
        self.engine, self.calm = context.engine, context.calm
        self._kept: dict[str, _Kept] = {}

    async def reserve(self, request: ReserveRequest) -> Reservation:
        """See Slots."""
        wanted = self._pools.wanted.runners_of(request.class_name)
        if wanted is None:
            raise errors.NotFound(f"no pool of class {request.class_name} with a runner here")
        lease = self._pools.reserve(wanted)
        if lease is None:
            raise errors.Unavailable("no slot is ready", reason=NO_CAPACITY)
        kept = _Kept(lease)
        try:
            await self._admission.hold(wanted.spec(), kept.room)
        except BaseException:
            self._pools.release(lease, gone=False)
            raise
        # Not the slot's own name: one that has run out must not pass for the next one's.
        name = f"{lease.slot.uid}.{secrets.token_hex(8)}"
        kept.timer = asyncio.get_running_loop().call_later(request.seconds, self._let_go, name)
        self._kept[name] = kept
        return Reservation(slot=name)

    async def release(self, reservation: Reservation) -> None:
        """See Slots."""
        self._let_go(reservation.slot)

    def _let_go(self, name: str) -> None:
        kept = self._taken(name)
        if kept is not None:
            self._admission.let_go(kept.room)
            self._pools.release(kept.lease, gone=False)

    def _taken(self, name: str) -> _Kept | None:
        kept = self._kept.pop(name, None)
        if kept is not None and kept.timer is not None:
            kept.timer.cancel()
        return kept

    async def assign(self, reservation: Reservation, wanted: DispatchWanted) -> RunnerSlot:
        """See Slots."""
        kept = self._taken(reservation.slot)
        if kept is None:
            raise errors.Unavailable("the reservation ran out", reason=NO_CAPACITY)
        lease = kept.lease
        try:
            if wanted.class_name != lease.slot.class_name:
                self._pools.release(lease, gone=False)
                raise errors.Invalid("className: the slot that was reserved is of another class")
            record = await self._assigner.take(self._new(wanted, lease), lease)
        except errors.Conflict as error:
            if error.reason == SLOT_TAKEN:
                raise errors.Unavailable("the slot is gone", reason=NO_CAPACITY) from error
            raise
        except errors.Unavailable as error:
            raise errors.Unconfirmed(f"the run could not be recorded: {error.message}") from error
        finally:
            self._admission.let_go(kept.room)
        self._told(record)
        return RunnerSlot(record, self, lease)

    def _new(self, wanted: DispatchWanted, lease: Lease) -> SandboxRecord:
        context, now = self._context, self._context.clock.now()
        request = names.canonical_json(wanted.model_dump(mode="json"))
        longest = lease.slot.spec.maximum_deadline_seconds
        return SandboxRecord(
            uid=wanted.uid,
            namespace=wanted.namespace,
            name=wanted.name,
            class_name=wanted.class_name,
            generation=0,
            spec_digest=names.keyed_digest(context.key, request),
            # Unlike its slot it is no session: nothing else is run in it, and no file read.
            spec=replace(lease.slot.spec, program=_PROGRAM),
            dispatch=True,
            state=State.RUNNING,
            active_deadline_seconds=min(dispatch_budget.total(wanted.budgets), longest),
            container_name=names.container_name(context.installation, wanted.uid),
            created_at=now,
            updated_at=now,
        )

    async def guard(self, record: SandboxRecord, lease: Lease) -> None:
        """Tell the watchdog when the run is due: the slot, unused, was due much sooner.

        Raises:
            Unavailable: it could not be told.
        """
        entry = deadline_entry(record)
        assert entry is not None
        await self._book.move(lease.slot.container_name, entry)

    def given(self, lease: Lease, uid: str) -> None:
        """The slot's input is not needed any more."""
        self._pools.given(lease, uid)

    async def adopt(self) -> Sequence[RunnerSlot]:
        """See Slots."""
        records = await self._context.store.list()
        live = [r for r in records if r.dispatch and r.outcome is None]
        return [RunnerSlot(record, self, None) for record in live]

    async def fence(self, uid: str) -> None:
        """See Slots."""
        try:
            await self._context.store.fence(uid, at=self._context.moment())
        except errors.Conflict:
            record = await self._context.store.get(uid)
            if record is not None and not record.dispatch:
                raise errors.NotFound(f"{uid} is no run") from None
            if record is not None and record.outcome is None:
                raise

    async def conclude(self, uid: str, outcome: Outcome) -> None:
        """Write how a run ended, once."""
        store = self._context.store
        while (record := await store.get(uid)) is not None and record.outcome is None:
            now = self._context.moment()
            changed = record.with_(
                step=Step.ENDED,
                outcome=outcome,
                waiting=None,
                updated_at=now.wall,
                boot_id=now.boot_id,
                ended_at=now.wall,
                ended_boottime=now.boottime,
            )
            try:
                stored = await store.update(changed)
            except (errors.Conflict, errors.NotFound):
                continue
            await self._book.drop(stored.container_name)
            if stored.slot is not None:  # Nobody came to hand the document over.
                installation = self._context.installation
                await self._book.drop(names.container_name(installation, stored.slot.uid))
            self._told(stored)


class RunDriver:
    """Drives the record of a run: nothing while it goes on, the common way once it has ended."""

    def __init__(self, context: Context, slots: RunnerSlots, ended: Driver) -> None:
        spools = Spools(context.state / _FOLDER)
        self.service = DispatchService(slots, spools, context.clock, boot_id=context.boot_id)
        self._ended = ended

    async def decide(self, record: SandboxRecord) -> Decision:
        """Pass the wish to end it on, or have it disposed of."""
        if record.outcome is not None:
            return await self._ended.decide(record)
        if record.removing or record.state is State.TERMINATED:
            drained = record.stop_reason == reasons.DRAINED
            reason = reasons.DRAINED if drained else reasons.CANCELLED
            self.service.stop(record.uid, Stop(reason=reason, message="it was asked to end"))
        return Decision()

    async def perform(
        self, action: Action | CheckpointAction, record: SandboxRecord
    ) -> SandboxRecord | None:
        """Do one action."""
        return await self._ended.perform(action, record)

    async def drop(self, uid: str) -> None:
        """Forget one that is buried."""
        await self._ended.drop(uid)
