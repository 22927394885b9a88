"""Where the agent itself fails at a run: its readers are told, and the run goes on to its end."""

import asyncio
from contextlib import suppress

import pytest

from isolet.agent.dispatch.run import Run
from isolet.agent.dispatch.spool import Ended, Spool
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.dispatch import DispatchLine
from isolet.wire.execution import Outcome
from tests.unit.agent.dispatch.test_service import DONE, PROGRESS, Node, node, read

__all__ = ["node"]


def ours() -> Exception:
    return RuntimeError("a fault of ours")


class Reader:
    """Follows a run from an event on, until its stream ends."""

    def __init__(self, node: Node, after: int) -> None:
        self.lines: list[DispatchLine] = []
        self.waits = asyncio.Event()
        self._task = asyncio.create_task(self._follow(node, after))

    async def _follow(self, node: Node, after: int) -> None:
        async for line in node.service.follow("u1", after):
            self.lines.append(line)
            self.waits.set()

    async def is_told(self) -> None:
        """Wait until its stream ends; that is with an error, and says no end."""
        async with asyncio.timeout(60):
            with pytest.raises(errors.Unavailable):
                await self._task
        assert [line for line in self.lines if line.ended] == []


async def end(node: Node) -> Outcome:
    """Ask as a reader does, again wherever the stream breaks off."""
    async with asyncio.timeout(60):
        while True:
            with suppress(errors.Unavailable):
                return await node.outcome()
            await asyncio.sleep(0.01)


async def heartbeats(node: Node) -> None:
    """Readers hear a heartbeat at once, so a test knows that they wait."""
    node.times = type(node.times)(heartbeat_seconds=0.001, handover_seconds=0)
    await node.restart()


async def test_one_that_fails_while_it_follows_is_followed_again_and_by_one(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await heartbeats(node)
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    readers = [Reader(node, 1) for _ in range(3)]
    for reader in readers:
        await reader.waits.wait()
    run = node.service._runs["u1"]
    assert run._watching is not None
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_settled", lambda *_: (_ for _ in ()).throw(ours()))
        run._watching.cancel()
        for reader in readers:
            await reader.is_told()
    slot.writes(DONE)
    slot.ends(0)
    event, last = (line for line in await node.lines(after=1) if not line.heartbeat)
    assert event.event is not None
    assert event.event.sequence == 2
    assert last.ended is not None
    assert last.ended.succeeded
    assert (slot.most_readers, slot.stdin.count(b"\n")) == (1, 1)
    assert (slot.destroyed, slot.concluded) == (1, [last.ended])


@pytest.mark.parametrize("where", ["destroy", "record"])
async def test_one_that_fails_at_its_end_has_the_end_it_had(
    node: Node,
    where: str,
) -> None:
    """An end that is written stands; one that is not is seen again."""
    await heartbeats(node)
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    reader = Reader(node, 1)
    await reader.waits.wait()
    faults = slot.resists if where == "destroy" else node.slots.unwritable
    faults += [ours(), ours()]
    slot.writes(DONE)
    slot.ends(0)
    await reader.is_told()
    ended = await end(node)
    assert ended.succeeded
    while node.service._tasks:
        await asyncio.sleep(0.01)
    assert (faults, slot.concluded) == ([], [ended])
    assert await node.outcome() == ended


async def test_one_whose_spool_cannot_be_read_just_then_is_taken_up_once_it_can(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where too many files are open."""
    await heartbeats(node)
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    reader = Reader(node, 1)
    await reader.waits.wait()
    run = node.service._runs["u1"]
    assert run._watching is not None
    ended, unreadable = Spool.ended, [ours(), ours()]

    def read_end(spool: Spool) -> Ended | None:
        if unreadable:
            raise unreadable.pop()
        return ended(spool)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_settled", lambda *_: (_ for _ in ()).throw(ours()))
        patch.setattr(Spool, "ended", read_end)
        run._watching.cancel()
        async with asyncio.timeout(60):
            while unreadable:
                await asyncio.sleep(0.01)
        await reader.is_told()
    slot.writes(DONE)
    slot.ends(0)
    assert (await end(node)).succeeded
    assert slot.most_readers == 1


async def test_a_wish_to_end_it_is_kept_where_it_could_not_be_written(
    node: Node,
) -> None:
    slot = await node.begin()
    await read(node, PROGRESS, slot)
    (node.folder / "u1" / "stop.json").mkdir()
    slot.resists = [ours()]
    answer = await node.service.cancel("u1")
    assert answer.dispatch is not None
    assert answer.dispatch.outcome is not None
    assert answer.dispatch.outcome.reason == reasons.CANCELLED
    assert [outcome.reason for outcome in slot.concluded] == [reasons.CANCELLED]


async def test_one_that_is_written_off_is_so_in_the_end(node: Node) -> None:
    slot = await node.begin()
    slot.resists = [ours()]
    node.boot = "boot-2"
    await node.restart()
    while node.service._tasks:
        await asyncio.sleep(0.01)
    assert [outcome.reason for outcome in slot.concluded] == [reasons.CONTAINER_LOST]


async def test_one_in_doubt_is_found_out_in_the_end(node: Node) -> None:
    node.slots.doubtful = [errors.Unconfirmed("nobody can say")]
    node.slots.unreadable = [ours()]
    with pytest.raises(errors.Unconfirmed):
        await node.begin()
    while node.service._tasks:
        await asyncio.sleep(0.01)
    (slot,) = node.slots.seen.values()
    assert [outcome.reason for outcome in slot.concluded] == [reasons.START_UNCONFIRMED]
