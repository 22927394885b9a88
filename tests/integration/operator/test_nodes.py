"""Nodes: their conditions, their silence, drains, and what agents hold without an object."""

import asyncio

import aiohttp
import pytest

from isolet.wire.execution import ExecutionObserved, Step
from isolet.wire.node import Stray
from tests.integration.operator.harness import World, until


async def node_condition(world: World, type_: str, status: str, name: str, **more):
    return await world.until_condition(type_, status, name, kind="ExecutionNode", **more)


async def test_a_node_is_ready_and_stays_unwritten_while_nothing_changes(world: World) -> None:
    agent = await world.add_node()
    async with world.leader(resync_seconds=1.0):
        await node_condition(world, "Ready", "True", agent.name)
        versions: list[str] = []

        async def settled() -> bool:
            obj = await world.get(agent.name, "ExecutionNode")
            versions.append(obj["metadata"]["resourceVersion"])
            await asyncio.sleep(1)
            return versions[-2:-1] == versions[-1:]

        await until(settled, "all of it written")
        version = versions[-1]
        await asyncio.sleep(4)
        obj = await world.get(agent.name, "ExecutionNode")
        assert obj["metadata"]["resourceVersion"] == version
        assert obj["status"]["capacity"]["cpu"] == "64"


async def test_a_silent_node_is_unreachable_and_its_work_is_not_given_up(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create(command=None)
        await world.until_condition("Ready", "True")
        await agent.lose()
        await node_condition(world, "Ready", "False", agent.name, seconds=60)
        await world.until_condition("Ready", "Unknown", reason="NodeUnreachable", seconds=60)
        await world.add_node("b")
        await asyncio.sleep(1)
        assert (await world.get())["spec"]["nodeName"] == agent.name
        await agent.return_()
        await world.until_condition("Ready", "True", seconds=60)
        await node_condition(world, "Ready", "True", agent.name)
        assert [u for a in world.agents.values() for u in a.starts] == [uid]


async def test_a_node_that_comes_back_empty_has_lost_its_work_and_starts_none(
    world: World,
) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create(command=None)
        await world.until_condition("Ready", "True")
        await agent.lose()
        await agent.replace()
        await agent.return_()
        await world.until_condition("Succeeded", "False", reason="ContainerLost")
        assert agent.starts == [uid]
        await world.delete()
        await world.until_gone()


async def test_drain_and_unschedulable(world: World) -> None:
    await world.add_class()
    a, b = await world.add_node("a"), await world.add_node("b", unschedulable=True)
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in a.live, "on a")
        drain = {"drain": {"deadlineSeconds": 1, "onDeadline": "Terminate"}}
        await world.patch({"spec": drain}, a.name, "ExecutionNode")
        await world.patch({"spec": {"unschedulable": False}}, b.name, "ExecutionNode")
        await world.until_condition("Succeeded", "False", seconds=60)
        other = await world.create("other")
        await until(lambda: other in b.live, "on b")
        await node_condition(world, "Drained", "True", a.name, seconds=60)


async def test_out_of_service_releases_what_is_deleted(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await agent.lose()
        await world.delete()
        await asyncio.sleep(0.5)
        off = {"spec": {"outOfService": {"reason": "power supply burnt"}}}
        await world.patch(off, agent.name, "ExecutionNode")
        await world.until_gone()


def a_record(uid: str, sequence: int) -> ExecutionObserved:
    return ExecutionObserved(
        uid=uid,
        namespace="gone",
        name=uid,
        sequence=sequence,
        spec_digest="d",
        step=Step.RUNNING,
    )


async def test_orphans_are_removed_after_two_lists_and_a_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isolet.plan.orphans.GRACE_SECONDS", 2.0)
    monkeypatch.setattr("isolet.plan.orphans.LOOK_SECONDS", 0.5)
    await world.add_class()
    agent = await world.add_node()
    agent.records["orphan"] = a_record("orphan", 1)
    agent.sequence = 1
    agent.strays = (Stray(kind="container", name="isolet-x", uid="lost", age_seconds=900),)
    async with world.leader(resync_seconds=1.0):
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await until(lambda: ("remove", "orphan") in agent.calls, "the orphan removed", 60)
        await until(lambda: agent.strays == (), "the stray removed", 60)
        assert ("remove", uid) not in agent.calls
        assert uid in agent.live


async def test_the_circuit_breaker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolet.plan.orphans.GRACE_SECONDS", 1.0)
    monkeypatch.setattr("isolet.plan.orphans.LOOK_SECONDS", 0.5)
    agent = await world.add_node()
    for i in range(10):
        agent.records[f"tenant-{i}"] = a_record(f"tenant-{i}", i + 1)
    agent.sequence = 10
    async with world.leader(resync_seconds=1.0) as operator:
        await until(lambda: operator.orphans.stopped == {agent.name}, "the breaker open", 60)
        assert [call for call, _ in agent.calls if call == "remove"] == []
        text = await read(operator, "/metrics")
        assert "isolet_operator_orphan_breaker_open 1.0" in text
        assert "isolet_operator_orphans 10.0" in text


async def read(operator, path: str, status: int = 200) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{operator.port}{path}") as answer,
    ):
        assert answer.status == status, await answer.text()
        return await answer.text()


async def test_probes_and_metrics(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader() as operator:
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await until(lambda: not operator.unready(), "listed")
        assert await read(operator, "/healthz") == "ok"
        assert await read(operator, "/readyz") == "ok"
        text = await read(operator, "/metrics")
        assert "isolet_operator_leader 1.0" in text
        assert 'isolet_operator_effects_total{effect="operator.bind"}' in text
        for private in (uid, world.namespace, agent.name):
            assert private not in text
