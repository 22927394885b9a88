"""A cancellation against the assignment of a slot, at every interleaving of the two.

The service, the slots of runners, the transaction and the tombstone are the agent's own; the store
and the engine are in memory, and give way at each call as real ones do: before anything was
written, and after it was and nobody has been told.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isolet.agent.dispatch.service import DispatchService
from isolet.agent.dispatch.spool import Spools
from isolet.agent.engine.base import OutputFrame, Status, Stream
from isolet.agent.service.dispatches import RunnerSlots
from isolet.agent.workspace import script
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.plan import dispatch_document, reasons
from isolet.wire.dispatch import CancelAnswer, DispatchObserved, Mode, ReserveRequest
from tests.fakes.store import MemoryStore
from tests.unit.agent.service.test_runner_slots import DOCUMENT, World, wanted

REFUSED, ENDED = "refused", "begun, and ended"
LONGEST = 40
"""More turns of the loop than either of the two takes."""


class SlowStore(MemoryStore):
    """Gives way before each call and after it."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("get", "list", "assign", "update", "fence", "tombstone"):
            return found

        async def slow(*arguments: Any, **more: Any) -> Any:
            await asyncio.sleep(0)
            result = await found(*arguments, **more)
            await asyncio.sleep(0)
            return result

        return slow


class Race:
    """One slot, one run, one cancellation."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.world.store = self.world.context.store = SlowStore()
        self.world.context.engine = SimpleNamespace(
            inspect=self.inspect, kill=self.kill, output=self.output
        )
        self.spools = Spools(folder / "dispatch")
        self.dead = asyncio.Event()
        self.slots: RunnerSlots
        self.service: DispatchService

    async def open(self) -> None:
        self.slots = await self.world.open()
        self.service = DispatchService(self.slots, self.spools, FixedClock(), boot_id="boot")

    async def inspect(self, _container: str) -> Any:
        await asyncio.sleep(0)
        status = Status.EXITED if self.dead.is_set() else Status.RUNNING
        return SimpleNamespace(status=status, exit_code=137, oom_killed=False)

    async def kill(self, _container: str) -> None:
        await asyncio.sleep(0)
        self.dead.set()

    async def output(self, _container: str, **_: Any) -> Any:
        yield OutputFrame(stream=Stream.STDOUT, index=1, data=b"started\nready\n")
        await self.dead.wait()

    async def cancel(self) -> CancelAnswer:
        return await self.service.cancel("run-1")

    async def begin(self) -> DispatchObserved:
        kept = await self.service.reserve(ReserveRequest(class_name="runner"))
        return await self.service.begin(kept, wanted(), DOCUMENT)


async def after(turns: int, work: Any) -> Any:
    for _ in range(turns):
        await asyncio.sleep(0)
    try:
        return await work()
    except errors.IsoletError as error:
        return error


async def settled(race: Race, begun: Any, answer: Any) -> str:
    """Check that all agree on who won; says who did."""
    assert isinstance(answer, CancelAnswer), answer
    record = await race.world.store.get("run-1")
    if isinstance(begun, DispatchObserved):
        assert answer.dispatch is not None
        assert answer.dispatch.outcome is not None
        assert answer.dispatch.outcome.reason == reasons.CANCELLED
        assert race.dead.is_set()
        assert record is not None
        assert record.outcome == answer.dispatch.outcome
        sent = script.line(dispatch_document.envelope(Mode.STREAM, DOCUMENT))
        assert race.world.input.written in (b"", sent)
        return ENDED
    assert isinstance(begun, errors.Conflict), begun
    assert answer == CancelAnswer(known=False)
    assert record is None
    assert await race.world.store.tombstone("run-1") is not None
    assert race.world.input.written == b""
    assert (race.world.released, race.dead.is_set()) == (1, False)
    return REFUSED


@pytest.mark.parametrize("first", ["begin", "cancel"])
async def test_at_every_interleaving_one_of_them_wins(tmp_path: Path, first: str) -> None:
    winners = []
    for turns in range(LONGEST):
        folder = tmp_path / str(turns)
        folder.mkdir()
        race = Race(folder)
        await race.open()
        begin = after(turns if first == "cancel" else 0, race.begin)
        cancel = after(turns if first == "begin" else 0, race.cancel)
        async with asyncio.timeout(60):
            begun, answer = await asyncio.gather(begin, cancel)
            winners.append(await settled(race, begun, answer))
            if winners[-1] == REFUSED:
                with pytest.raises(errors.Conflict):
                    await race.begin()
        await race.service.close()
    # From one side of the transaction to the other; a cancellation that is first stays so.
    assert winners[0] == REFUSED
    assert winners[-1] == (ENDED if first == "begin" else REFUSED)
