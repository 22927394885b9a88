"""A dispatch as the operator sees it: made and handed over by somebody else, told of, let go."""

import asyncio
from datetime import timedelta
from typing import Any

from isolet.wire.execution import ExecutionObserved, Step
from tests.fakes.agent import FakeAgent
from tests.integration.operator.harness import World, until
from tests.unit.api.objects import DIGEST, DROP

DISPATCH = {"runID": "run-1", "mode": "stream", "payloadDigest": DIGEST, "payloadBytes": 2}


async def made(world: World, name: str, node: str | None, **spec: Any) -> str:
    """The object as a front door makes it."""
    bound = {} if node is None else {"nodeName": node}
    base = {"command": DROP, "image": DROP, "dispatch": DISPATCH}
    return await world.create(name, **{**base, **bound, **spec})


async def handed_over(agent: FakeAgent, uid: str, name: str) -> None:
    """The agent has the run, as its own record."""
    agent.sequence += 1
    agent.records[uid] = ExecutionObserved(
        uid=uid,
        namespace="default",
        name=name,
        sequence=agent.sequence,
        spec_digest="",
        generation=1,
        step=Step.RUNNING,
    )
    await agent.run(uid)


async def test_a_whole_life_costs_the_operator_an_outcome_and_a_deletion(world: World) -> None:
    await world.add_class(runner={"command": ["/app/runtime"]})
    agent = await world.add_node()
    async with world.leader(resync_seconds=1.0):
        uid = await made(world, "run", agent.name, ttlSecondsAfterFinished=2)
        await handed_over(agent, uid, "run")
        await asyncio.sleep(2)  # two resyncs
        assert await world.writes("run") == {}
        agent.auto = False
        await agent.end(uid)
        await world.until_condition("Succeeded", "True", "run")
        await until(lambda: uid in agent.removed, "the agent may forget it")
        await world.until_gone("run", uid=uid)
    assert await world.writes("run") == {"patch executions/status": 1, "delete executions": 1}
    assert agent.puts == []
    assert world.exits == []


async def test_one_that_nobody_hands_over_is_fenced_and_told(world: World, monkeypatch) -> None:
    monkeypatch.setattr("isolet.plan.dispatched.HANDOVER_PATIENCE", timedelta(seconds=2))
    await world.add_class(runner={"command": ["/app/runtime"]})
    agent = await world.add_node()
    async with world.leader():
        uid = await made(world, "lost", agent.name)
        await world.until_condition("Succeeded", "False", "lost", reason="StartUnconfirmed")
        assert uid in agent.removed
        ahead = await made(world, "ahead", None, desiredState="Terminated")
        await world.until_condition("Succeeded", "False", "ahead", reason="Cancelled")
        by_hand = await made(world, "by-hand", None)
        await world.until_condition("Succeeded", "False", "by-hand", reason="Unsupported")
    assert agent.puts == []
    assert {ahead, by_hand} & set(agent.starts) == set()
