"""The front door's clients of agents, over real sockets: which are kept, and when they are closed.

The witness is the kernel's own list of connected sockets.
"""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from isolet.agent.dispatch.service import DispatchService, Times
from isolet.agent.dispatch.spool import Spools
from isolet.agent.server.server import AgentServer
from isolet.apiserver.agents import AgentPool
from isolet.apiserver.kubernetes import KubernetesDispatcher, Target
from isolet.base.clock import SystemClock
from isolet.operator.kube import CLASSES, NODES
from tests.contract.apiserver.test_dispatcher_contract import DONE, PROGRESS, dispatch
from tests.fakes.agent import FakeAgent
from tests.fakes.cluster import FakeCluster
from tests.fakes.slots import FakeSlots
from tests.unit.api.objects import a_class, a_node

_CONNECTED = "03"


class Place:
    """One agent behind two sockets, and a front door."""

    def __init__(self, folder: Path) -> None:
        self.cluster, self.slots = FakeCluster(), FakeSlots(ready=2)
        self.old, self.new = folder / "old", folder / "new"
        self.service = DispatchService(
            self.slots,
            Spools(folder / "dispatch"),
            SystemClock(),
            boot_id="boot",
            times=Times(heartbeat_seconds=0.02),
        )
        self.servers = [AgentServer(FakeAgent(), dispatch=self.service) for _ in range(2)]
        self.agents = AgentPool(None)
        target = Target(namespace="runs", class_name="fast")
        self.dispatcher = KubernetesDispatcher(self.cluster, self.agents, target)

    async def start(self) -> None:
        for server, path in zip(self.servers, (self.old, self.new), strict=True):
            await server.listen_unix(path)
        runner = {"command": ["/app/runtime"]}
        self.cluster.seed(CLASSES, a_class("fast", runner=runner, warmPool={"size": 1}))
        self.names(self.old)
        await self.dispatcher.start()

    async def close(self) -> None:
        await self.dispatcher.close()
        await self.agents.close()
        for server in self.servers:
            await server.close()
        await self.service.close()

    def names(self, path: Path) -> None:
        self.cluster.seed(NODES, a_node("node-0", endpoint=f"unix://{path}"))

    async def refresh(self) -> None:
        await self.dispatcher._refreshed()

    async def admitted(self, run_id: str = "run"):
        return await (await self.dispatcher.reserve(dispatch(run_id))).commit()

    def slot(self):
        return next(iter(self.slots.assigned.values()))


@pytest.fixture
async def place(tmp_path):
    made = Place(tmp_path)
    await made.start()
    yield made
    await made.close()


def connections(path: Path) -> int:
    """How many connections the server at `path` has."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sum(row[5] == _CONNECTED and row[7:] == [str(path)] for row in rows)


async def closed(path: Path) -> None:
    """Wait until the server at `path` has none: sooner than one that is idle ends by itself."""
    async with asyncio.timeout(25):
        while connections(path):
            await asyncio.sleep(0.01)


async def test_a_client_of_another_endpoint_is_closed_with_the_last_call_over_it(
    place: Place,
) -> None:
    run = await place.admitted()
    async with aclosing(run.follow(0)) as lines:
        assert (await anext(lines)).heartbeat
        place.names(place.new)
        for _ in range(3):
            await place.refresh()
        # What is followed over it goes on; what is asked now goes to where the agent is.
        place.slot().writes(PROGRESS)
        assert await next_event(lines) == 1
        assert connections(place.old) >= 1
        assert connections(place.new) == 0
        found = await place.dispatcher.find("run")
        async with aclosing(found.follow(0)) as more:
            assert await next_event(more) == 1
            assert connections(place.new) >= 1
        place.slot().writes(DONE)
        place.slot().ends(0)
        assert [line async for line in lines][-1].ended.succeeded
    await place.refresh()
    await closed(place.old)
    # The same run is asked for where its agent is now, and that client is kept.
    assert [line async for line in run.follow(0)][-1].ended.succeeded
    await place.refresh()
    assert connections(place.old) == 0
    assert connections(place.new) >= 1


async def test_the_client_of_a_node_that_is_gone_is_closed(place: Place) -> None:
    run = await place.admitted()
    await place.refresh()
    assert connections(place.old) >= 1
    place.cluster.vanish(NODES, "", "node-0")
    await place.refresh()
    await closed(place.old)
    # Whoever has a run on it may still ask; that client goes as well.
    async with aclosing(run.follow(0)) as lines:
        assert (await anext(lines)).heartbeat
        assert connections(place.old) >= 1
    await place.refresh()
    await closed(place.old)


async def test_a_call_holds_a_client_only_so_long_and_its_reader_comes_back(place: Place) -> None:
    run = await place.admitted()
    place.cluster.vanish(NODES, "", "node-0")
    async with aclosing(run.follow(0)) as lines:
        assert (await anext(lines)).heartbeat
        await place.refresh()
        assert (await anext(lines)).heartbeat
        place.agents.linger_seconds = 0.0
        await place.refresh()
        assert all(line.heartbeat for line in [line async for line in lines])
    await closed(place.old)
    place.slot().writes(DONE)
    place.slot().ends(0)
    assert [line async for line in run.follow(0)][-1].ended.succeeded


async def next_event(lines) -> int:
    """The sequence of the next line that is an event."""
    while (line := await anext(lines)).event is None:
        continue
    return line.event.sequence
