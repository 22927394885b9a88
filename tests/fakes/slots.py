"""A node's pools in memory: slots that remember what they were given, and do what a test says."""

import asyncio

from isolet.base import errors
from isolet.plan.dispatch_outcome import Exit
from isolet.wire.dispatch import Reservation


class FakeSlot:
    """What is here outlives the agent, as a sandbox does: `adopt` gives the same one again."""

    def __init__(self, uid: str, owner: "FakeSlots") -> None:
        self.uid = uid
        self.owner = owner
        self.stdin = bytearray()
        self.closed = False
        self.stdout = bytearray()
        self.ended: Exit | None = None
        self.destroyed = 0
        self.concluded = []
        self.changed = asyncio.Event()
        self.readers = 0
        self.most_readers = 0
        """At a time, of its output."""
        # What goes wrong.
        self.blocks = False
        """It takes no input, until `takes`."""
        self._taking = asyncio.Event()
        self.cuts_input_at: int | None = None
        self.unreadable: list[Exception] = []
        self.resists: list[Exception] = []

    # what a test does

    def writes(self, data: bytes) -> None:
        self.stdout += data
        self._tell()

    def ends(self, code: int | None, **more: bool) -> None:
        self.ended = Exit(code=code, **more)
        self._tell()

    def takes(self) -> None:
        self._taking.set()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # what the agent does

    async def deliver(self, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.blocks:
            await self._taking.wait()
        if self.cuts_input_at is not None:
            self.stdin += data[: self.cuts_input_at]
            raise errors.Unconfirmed("the pipe broke")
        self.stdin += data
        self.closed = True
        self._tell()

    async def close_input(self) -> None:
        self.closed = True

    async def output(self, offset: int):
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        try:
            async for piece in self._output(offset):
                yield piece
        finally:
            self.readers -= 1

    async def _output(self, offset: int):
        while True:
            if self.unreadable:
                raise self.unreadable.pop(0)
            if offset < len(self.stdout):
                piece = bytes(self.stdout[offset:])
                offset += len(piece)
                yield piece
            elif self.ended is not None:
                return
            else:
                await self.changed.wait()

    async def over(self) -> bool:
        return self.ended is not None

    async def exit(self) -> Exit:
        while self.ended is None:
            await self.changed.wait()
        return self.ended

    async def destroy(self) -> None:
        self.destroyed += 1
        if self.resists:
            raise self.resists.pop(0)
        if self.ended is None:
            self.ends(137)

    async def conclude(self, outcome) -> None:
        if self.owner.unwritable:
            raise self.owner.unwritable.pop(0)
        self.concluded.append(outcome)
        self.owner.assigned.pop(self.uid, None)


class FakeSlots:
    def __init__(self, ready: int = 1) -> None:
        self.ready = [f"slot-{n}" for n in range(ready)]
        self.reserved: set[str] = set()
        self.assigned: dict[str, FakeSlot] = {}
        self.seen: dict[str, FakeSlot] = {}
        """Of every run that ever was here."""
        self.fenced: set[str] = set()
        self.unwritable: list[Exception] = []
        self.doubtful: list[Exception] = []
        """What whoever assigns is told, though the slot is the run's."""
        self.unreadable: list[Exception] = []
        self.answering: asyncio.Event | None = None
        """What is assigned stays unanswered until it is set."""
        self.prepare = lambda slot: None
        """Called with each slot before it is assigned."""

    async def reserve(self, request) -> Reservation:
        if not self.ready:
            raise errors.Unavailable("no slot is ready", reason="NoCapacity")
        name = self.ready.pop(0)
        self.reserved.add(name)
        return Reservation(slot=name)

    async def release(self, reservation) -> None:
        if reservation.slot in self.reserved:
            self.reserved.remove(reservation.slot)
            self.ready.append(reservation.slot)

    async def assign(self, reservation, wanted) -> FakeSlot:
        await asyncio.sleep(0)
        if reservation.slot not in self.reserved:
            raise errors.Unavailable("the reservation ran out", reason="NoCapacity")
        if wanted.uid in self.seen or wanted.uid in self.fenced:
            await self.release(reservation)
            raise errors.Conflict(f"{wanted.uid} was here before")
        self.reserved.remove(reservation.slot)
        slot = FakeSlot(wanted.uid, self)
        self.assigned[wanted.uid] = self.seen[wanted.uid] = slot
        self.prepare(slot)
        if self.answering is not None:
            await self.answering.wait()
        if self.doubtful:
            raise self.doubtful.pop(0)
        return slot

    async def adopt(self):
        if self.unreadable:
            raise self.unreadable.pop(0)
        return list(self.assigned.values())

    async def fence(self, uid: str) -> None:
        if uid in self.assigned:
            raise errors.Conflict(f"{uid} is here")
        self.fenced.add(uid)
