"""One agent for each module of these tests; nothing may be left of it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.agent.conftest import environment
from tests.integration.dispatch.desk import Desk, FrontDoor, pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    socket = environment("ISOLET_DOCKER_SOCKETS").split()[0]
    desk = Desk(socket, tmp_path_factory.mktemp("d"))
    await desk.open()
    yield desk
    await desk.close()


@pytest_asyncio.fixture(loop_scope="module")
async def desk(agent: Desk) -> AsyncIterator[Desk]:
    """The agent with one slot that waits; the node is clean afterwards."""
    await agent.serve(pool())
    yield agent
    agent.proxy.obey()
    await agent.clean()


@pytest_asyncio.fixture(loop_scope="module")
async def door(desk: Desk) -> AsyncIterator[FrontDoor]:
    made = await FrontDoor(desk).start()
    yield made
    await made.close()
