"""Several operators at once: one acts, and a leader that is dead or frozen is replaced."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from isolet.operator.steps import Effect
from tests.integration.operator.harness import World, until
from tests.integration.operator.processes import OperatorProcess, served, struck, trap

pytestmark = pytest.mark.faults


@pytest.fixture
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Short: the path of a Unix socket has at most 107 bytes.
    return tmp_path_factory.mktemp("p")


@pytest.fixture
async def start(world: World, folder: Path):
    """Starts operators; what still lives at the end is killed."""
    started = []

    def start(**how: Any) -> OperatorProcess:
        started.append(OperatorProcess(world, folder, **how))
        return started[-1]

    yield start
    for process in started:
        await process.close()


async def test_a_killed_leader_is_replaced_and_nothing_doubles(world, folder, start) -> None:
    await world.add_class()
    async with served(world, folder) as add:
        agent = await add("a")
        first = start()
        await until(first.led, "the first leads", 60)
        second = start()
        uid = await world.create()
        await until(lambda: uid in agent.live, "running", 60)
        first.send(signal.SIGKILL)
        await until(second.led, "the second leads", 60)
        await agent.end(uid)
        await world.until_condition("Succeeded", "True", seconds=60)
        other = await world.create("other")
        await until(lambda: other in agent.live, "running", 60)
        assert agent.starts == [uid, other]
        assert max(agent.fences.values()) == 2
        second.send(signal.SIGTERM)
        assert await second.ended() == 0


async def test_sigterm_hands_the_lease_over_at_once(world, folder, start) -> None:
    lease = {"duration": 90.0, "renew": 80.0, "retry": 0.2, "request": 5.0, "heartbeat": 60.0}
    first = start(lease=lease)
    await until(first.led, "the first leads", 60)
    second = start(lease=lease)
    await until(lambda: any(e["msg"] == "started" for e in second.entries()), "standing by", 60)
    await asyncio.sleep(1)
    first.send(signal.SIGTERM)
    assert await first.ended() == 0
    began = asyncio.get_running_loop().time()
    await until(second.led, "the second leads", 60)
    waited = asyncio.get_running_loop().time() - began
    assert waited < lease["duration"] / 3, "the lease was not waited out"


FREEZE = (Effect.BIND, Effect.AGENT_PUT, Effect.STATUS, Effect.AGENT_REMOVE, Effect.RELEASE)


@pytest.mark.parametrize("effect", FREEZE, ids=str)
async def test_a_leader_frozen_past_its_lease_and_woken_writes_nothing(
    world, folder, start, effect
) -> None:
    await world.add_class()
    async with served(world, folder) as add:
        agent = await add("a")
        noted = folder / "noted"
        old = start(**trap(effect.before, noted, "stop"))
        await until(old.led, "leading", 60)
        uid = await world.create()
        if effect in (Effect.STATUS, Effect.AGENT_REMOVE, Effect.RELEASE):
            await until(lambda: uid in agent.live, "running", 60)
        if effect in (Effect.AGENT_REMOVE, Effect.RELEASE):
            await world.delete()
        await struck(noted, effect.before)
        new = start()
        await until(new.led, "the new one leads", 60)
        if effect in (Effect.AGENT_REMOVE, Effect.RELEASE):
            await world.until_gone(seconds=60)
        else:
            await until(lambda: uid in agent.live, "running", 60)
            await agent.end(uid)
            await world.until_condition("Succeeded", "True", seconds=60)
        version = ((await world.get()) or {}).get("metadata", {}).get("resourceVersion")
        calls = list(agent.calls)
        old.send(signal.SIGCONT)
        assert await old.ended() == 1
        assert ((await world.get()) or {}).get("metadata", {}).get("resourceVersion") == version
        late = agent.calls[len(calls) :]
        assert not [call for call in late if call[0] in ("put", "amend", "remove")]
        assert agent.starts == [uid]
