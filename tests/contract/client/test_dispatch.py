"""Runs over HTTP: in one call or two, followed to their end, over connections that are kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from isolet.agent.dispatch.service import DispatchService
from isolet.agent.dispatch.spool import Spools
from isolet.agent.server.handlers import Limits
from isolet.agent.server.server import AgentServer
from isolet.base import errors
from isolet.base.clock import SystemClock
from isolet.client import connection
from isolet.client.dispatch import HTTPDispatch
from isolet.wire.dispatch import DispatchLine, DispatchWanted, ReserveRequest
from tests.contract.client.harness import LIMITS, TIMEOUTS
from tests.contract.client.memory import MemoryAgent
from tests.dispatches import a_run
from tests.fakes.slots import FakeSlots

DOCUMENT = b'{"run_id": "r"}'
DONE = b'{"event_type":"completed","payload":{}}\n'


def wanted(uid: str) -> DispatchWanted:
    return a_run(DOCUMENT, uid, class_name="fast")


class Desk:
    """A served agent with four slots in memory, and who calls it."""

    def __init__(self, folder: Path) -> None:
        self.slots = FakeSlots(ready=4)
        self.service = DispatchService(
            self.slots, Spools(folder / "spool"), SystemClock(), boot_id="boot"
        )
        self.socket = folder / "agent.sock"
        self.server = AgentServer(MemoryAgent(), limits=LIMITS, dispatch=self.service)
        self.client = HTTPDispatch(f"unix://{self.socket}", timeouts=TIMEOUTS)

    def connections(self) -> int:
        server = self.server._listeners[0]._runner.server
        assert server is not None
        return len(server.connections)

    async def told(self, uid: str) -> list[DispatchLine]:
        return [line async for line in self.client.follow(uid, 0)]

    def end(self, uid: str) -> None:
        slot = self.slots.seen[uid]
        slot.writes(DONE)
        slot.ends(0)


@pytest.fixture
async def desk(short_folder: Path) -> AsyncIterator[Desk]:
    made = Desk(short_folder)
    await made.server.listen_unix(made.socket)
    yield made
    await made.client.close()
    await made.server.close()
    await made.service.close()


async def test_a_run_in_one_call(desk: Desk) -> None:
    seen = await desk.client.begin(None, wanted("u1"), DOCUMENT)
    assert (seen.uid, seen.outcome) == ("u1", None)
    desk.end("u1")
    first, last = await desk.told("u1")
    assert first.event is not None
    assert first.event.type == "completed"
    assert last.ended is not None
    assert last.ended.succeeded


async def test_in_one_call_or_two_a_slot_is_spent_once(desk: Desk) -> None:
    for _ in range(2):
        await desk.client.begin(None, wanted("u1"), DOCUMENT)
    for _ in range(2):
        kept = await desk.client.reserve(ReserveRequest(class_name="fast"))
        await desk.client.begin(kept, wanted("u1"), DOCUMENT)
    assert list(desk.slots.seen) == ["u1"]
    assert len(desk.slots.ready) == 3


async def test_without_a_slot_nothing_is_begun(desk: Desk) -> None:
    desk.slots.ready.clear()
    with pytest.raises(errors.Unavailable) as caught:
        await desk.client.begin(None, wanted("u1"), DOCUMENT)
    assert caught.value.reason == "NoCapacity"
    with pytest.raises(errors.NotFound):
        await desk.client.dispatch("u1")


async def test_runs_that_ended_leave_their_connections_to_the_next(desk: Desk) -> None:
    for number in range(3):
        uid = f"u{number}"
        await desk.client.begin(None, wanted(uid), DOCUMENT)
        desk.end(uid)
        assert (await desk.told(uid))[-1].ended is not None
        assert desk.connections() == 2, "one for short calls, one for those that last"


def test_a_connection_is_let_go_of_before_the_agent_lets_go_of_it() -> None:
    assert Limits().idle_seconds > connection._IDLE_SECONDS


async def test_who_leaves_before_the_end_takes_the_connection_along(desk: Desk) -> None:
    await desk.client.begin(None, wanted("u1"), DOCUMENT)
    desk.slots.seen["u1"].writes(DONE)
    async with aclosing(desk.client.follow("u1", 0)) as lines:
        assert (await anext(lines)).event is not None
    desk.end("u1")
    async with asyncio.timeout(60):
        while desk.connections() > 1:
            await asyncio.sleep(0.01)


class CutOff:
    """Stands before an agent, which lives: the first connection with a PUT breaks unanswered.

    What it has passed on is worked at all the same.
    """

    def __init__(self, desk: Desk, path: Path, when: asyncio.Event) -> None:
        self._desk, self._path, self._when = desk, path, when
        self.puts = 0
        self._open: list[asyncio.StreamWriter] = []
        self._passing: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        self._server = await asyncio.start_unix_server(self._serve, str(self._path))
        return f"unix://{self._path}"

    async def close(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.close()
        await asyncio.gather(*self._passing)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_unix_connection(str(self._desk.socket))
        self._open += [writer, onward]
        self._passing.append(asyncio.create_task(self._pass(there, writer)))
        while data := await reader.read(1 << 16):
            self.puts += data.startswith(b"PUT ")
            onward.write(data)
            if data.startswith(b"PUT ") and self.puts == 1:
                await self._when.wait()
                writer.transport.abort()
                return

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)


async def test_a_run_is_handed_over_once_though_the_connection_breaks(
    desk: Desk, short_folder: Path
) -> None:
    """A second time would find its reservation gone and be told that nothing was begun."""
    begun, goes_on, assign = asyncio.Event(), asyncio.Event(), desk.slots.assign

    async def slow(*args: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await assign(*args)

    desk.slots.assign = slow  # type: ignore[method-assign]
    between = CutOff(desk, short_folder / "between.sock", begun)
    client = HTTPDispatch(await between.start(), timeouts=TIMEOUTS)
    kept = await client.reserve(ReserveRequest(class_name="fast"))
    asyncio.get_running_loop().call_later(0.5, goes_on.set)
    with pytest.raises(errors.Unavailable) as caught:
        await client.begin(kept, wanted("u1"), DOCUMENT)
    await goes_on.wait()
    while "u1" not in desk.slots.seen:
        await asyncio.sleep(0.01)
    assert isinstance(caught.value, errors.Unconfirmed), "it was begun"
    assert between.puts == 1
    await client.close()
    await between.close()
