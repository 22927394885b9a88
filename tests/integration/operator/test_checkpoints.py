"""The life of a Checkpoint, and of Executions that start from one, as their owner sees them."""

import asyncio
import json
from datetime import timedelta

from isolet.base import errors
from tests.integration.operator.harness import FINALIZER, World, until
from tests.unit.api.objects import DROP

KIND = "Checkpoint"
RESTORE = {"restoreFrom": {"checkpointName": "saved"}, "image": DROP, "command": DROP}
ELSEWHERE = {"endpoint": "https://203.0.113.7:7443"}


async def a_session(world: World, name: str = "hello") -> str:
    """A session that runs."""
    uid = await world.create(name, command=DROP)
    await until(lambda: any(uid in a.live for a in world.agents.values()), f"{name} runs")
    await world.until_condition("Ready", "True", name)
    return uid


async def saved(world: World, **spec: object) -> str:
    """A Checkpoint that is ready."""
    uid = await world.checkpoint(**spec)
    await world.until_condition("Ready", "True", "saved", kind=KIND, reason="CheckpointReady")
    return uid


async def test_a_whole_life_in_three_writes_that_outlives_its_execution(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        source = await a_session(world)
        uid = await saved(world, reason="handoff")
        obj = await world.get("saved", KIND)
        assert obj["spec"]["nodeName"] == agent.name
        assert obj["metadata"]["finalizers"] == [FINALIZER]
        status = obj["status"]
        assert status["executionUID"] == source
        assert status["manifestDigest"] == "sha256:" + "d" * 64
        assert (status["sizeBytes"], status["entries"]) == (1000, 3)
        assert [(x["type"], x["name"]) for x in status["locations"]] == [("Node", agent.name)]
        assert status["completionTime"] >= status["startTime"]
        await world.delete()
        await world.until_gone()
        await asyncio.sleep(0.5)
        assert agent.records[uid].on_node
        assert (await world.get("saved", KIND))["status"] == status
        await world.delete("saved", KIND)
        await world.until_gone("saved", kind=KIND)
        assert agent.records[uid].nothing_left
    assert await world.writes("saved") == {"patch checkpoints": 2, "patch checkpoints/status": 1}
    assert world.exits == []


async def test_idle_checkpoints_are_not_written_to(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader(resync_seconds=1.0):
        await a_session(world)
        await saved(world)
        before = await world.get("saved", KIND)
        await agent.account_changes()
        await asyncio.sleep(3)
        assert await world.get("saved", KIND) == before


async def test_what_waits_for_its_execution_is_taken_when_that_runs(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    agent.auto = False
    async with world.leader():
        await world.checkpoint()
        await asyncio.sleep(0.5)
        uid = await world.create(command=DROP)
        await until(lambda: uid in agent.records, "given to its agent")
        agent.auto = True
        await agent.run(uid)
        await world.until_condition("Ready", "True", "saved", kind=KIND)


async def test_what_cannot_be_taken_says_so_in_seconds(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    agent.untakeable = True
    async with world.leader():
        await world.checkpoint("nothing", executionRef={"name": "nobody"})
        await a_session(world)
        await world.checkpoint("torn")
        await world.until_condition(
            "Ready", "False", "torn", kind=KIND, reason="CheckpointFailed", saying="stand still"
        )
        told = await world.until_condition(
            "Ready", "False", "nothing", kind=KIND, reason="NotFound", seconds=60
        )
        assert "Execution nobody is not there" in told["message"]
        agent.refuse_checkpoint = errors.Refused("no room", reason="CheckpointQuota")
        await world.checkpoint("much")
        await world.until_condition("Ready", "False", "much", kind=KIND, reason="CheckpointQuota")
        (event,) = await world.events("much")
        assert (event["type"], event["reason"]) == ("Warning", "CheckpointQuota")
        for name in ("nothing", "torn", "much"):
            stalled = await world.condition("Stalled", name, KIND)
            assert stalled["status"] == "True"
            await world.delete(name, KIND)
            await world.until_gone(name, kind=KIND)


async def test_one_that_was_taken_goes_when_its_time_is_up(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        await a_session(world)
        uid = await saved(world, ttlSecondsAfterFinished=1)
        await world.until_gone("saved", kind=KIND)
        assert agent.records[uid].nothing_left
    assert (await world.writes("saved"))["delete checkpoints"] == 1


async def test_restore_from_alone_on_the_node_that_has_it(world: World) -> None:
    await world.add_class()
    first, second = await world.add_node("a"), await world.add_node("b")
    async with world.leader():
        await a_session(world)
        uid = await saved(world)
        where = (await world.get())["spec"]["nodeName"]
        copy = await world.create("copy", **RESTORE)
        holder = next(a for a in (first, second) if a.name == where)
        await until(lambda: copy in holder.live, "restored where the copy is")
        await world.until_condition("Ready", "True", "copy")
        obj = await world.get("copy")
        assert obj["status"]["resolved"]["checkpoint"] == {
            "name": "saved",
            "uid": uid,
            "contentDigest": "sha256:" + "c" * 64,
        }
        source = (await world.get())["status"]["resolved"]
        assert obj["status"]["resolved"]["image"] == source["image"]
        assert obj["status"]["resolved"]["resources"] == source["resources"]
    (put,) = [p for p in holder.puts if p.uid == copy]
    assert put.spec.restore.checkpoint_uid == uid
    assert put.restore_from.peer is None


async def test_what_waits_for_its_checkpoint_starts_when_that_is_ready(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        copy = await world.create("copy", **RESTORE)
        await world.until_condition("Scheduled", "False", "copy", reason="AwaitingCheckpoint")
        await a_session(world)
        await saved(world)
        await until(lambda: copy in agent.live, "restored", 60)


async def drained(world: World, name: str) -> None:
    await world.patch({"spec": {"drain": {"onDeadline": "Wait"}}}, name, "ExecutionNode")


async def test_a_drained_node_serves_another_by_a_grant_that_nobody_sees(
    world: World, caplog
) -> None:
    await world.add_class()
    source = await world.add_node("a", **ELSEWHERE)
    async with world.leader():
        await a_session(world)
        uid = await saved(world)
        await drained(world, source.name)
        target = await world.add_node("b")
        copy = await world.create("copy", **RESTORE)
        await until(lambda: copy in target.live, "restored on the other node")
        await world.until_condition("Ready", "True", "copy")
        # The drain counts work, and a Checkpoint is none.
        await world.delete()
        await world.until_condition("Drained", "True", source.name, kind="ExecutionNode")
        assert source.records[uid].on_node
        told = json.dumps([await world.get("copy"), await world.get("saved", KIND)])
        told += str(await world.events("copy")) + caplog.text
    ((_, found),) = target.sources
    assert found.peer.node == source.name
    assert found.peer.endpoint == ELSEWHERE["endpoint"]
    assert ("grant_checkpoint", (uid, target.name)) in source.calls
    assert found.peer.grant.token not in told


async def test_a_grant_that_has_expired_is_renewed(world: World, monkeypatch) -> None:
    for module in ("restoring", "standing"):
        monkeypatch.setattr(f"isolet.plan.{module}.RENEW", timedelta(seconds=1))
    await world.add_class()
    source = await world.add_node("a", **ELSEWHERE)
    async with world.leader():
        await a_session(world)
        await saved(world)
        await drained(world, source.name)
        target = await world.add_node("b")
        target.grants_hold = False
        copy = await world.create("copy", **RESTORE)
        await until(lambda: len(target.sources) >= 2, "told anew", 60)
        assert copy not in target.live
        target.grants_hold = True
        await until(lambda: copy in target.live, "restored at last")
        await world.until_condition("Ready", "True", "copy")


async def test_nothing_is_bound_where_the_content_cannot_be_had(world: World) -> None:
    await world.add_class()
    source = await world.add_node("a", **ELSEWHERE)
    async with world.leader():
        await a_session(world)
        await saved(world)
        target = await world.add_node("b")
        await source.lose()
        await world.until_condition("Reachable", "False", source.name, kind="ExecutionNode")
        copy = await world.create("copy", **RESTORE)
        told = await world.until_condition(
            "Scheduled", "False", "copy", reason="CheckpointUnavailable"
        )
        assert f"{source.name} (does not answer)" in told["message"]
        assert "nodeName" not in (await world.get("copy"))["spec"]
        await source.return_()
        await until(lambda: any(copy in a.live for a in (source, target)), "restored", 60)


async def test_a_checkpoint_is_not_deleted_under_a_restore(world: World) -> None:
    await world.add_class()
    source = await world.add_node("a", **ELSEWHERE)
    async with world.leader():
        await a_session(world)
        uid = await saved(world)
        await drained(world, source.name)
        target = await world.add_node("b")
        target.auto = False
        copy = await world.create("copy", **RESTORE)
        await until(lambda: copy in target.records, "being restored")
        await world.delete("saved", KIND)
        await world.until_condition(
            "Ready", "False", "saved", kind=KIND, reason="CheckpointInUse", seconds=60
        )
        assert not source.records[uid].removing
        target.auto = True
        await target.run(copy)
        await world.until_gone("saved", kind=KIND)
        assert source.records[uid].nothing_left
        assert copy in target.live


async def test_a_copy_in_a_store_outlives_its_node_and_is_removed_by_another(world: World) -> None:
    await world.add_class()
    shared: set[str] = set()
    source = await world.add_node("a", **ELSEWHERE)
    source.stores = {"s3": shared}
    await source.account_changes()
    async with world.leader():
        await a_session(world)
        uid = await saved(world)
        assert uid in shared
        await source.lose()
        await world.delete(source.name, "ExecutionNode")
        await world.until_condition(
            "Ready", "True", "saved", kind=KIND, saying="whole in object store s3"
        )
        target = await world.add_node("b")
        target.stores = {"s3": shared}
        await target.account_changes()
        copy = await world.create("copy", **RESTORE)
        await until(lambda: copy in target.live, "restored from the store")
        await world.delete("saved", KIND)
        await world.until_gone("saved", kind=KIND)
        assert shared == set()
        assert ("remove_checkpoint", uid) in target.calls


async def test_without_a_copy_it_is_not_ready_and_with_its_node_it_is_again(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        await a_session(world)
        await saved(world)
        off = {"spec": {"outOfService": {"reason": "it burnt"}}}
        await world.patch(off, agent.name, "ExecutionNode")
        await world.until_condition(
            "Ready", "False", "saved", kind=KIND, reason="CheckpointUnavailable", saying="it burnt"
        )
        await world.patch({"spec": {"outOfService": None}}, agent.name, "ExecutionNode")
        await world.until_condition("Ready", "True", "saved", kind=KIND)


async def test_a_copy_whose_object_is_gone_is_removed(world: World, monkeypatch) -> None:
    monkeypatch.setattr("isolet.plan.orphans.GRACE_SECONDS", 0.5)
    monkeypatch.setattr("isolet.plan.orphans.LOOK_SECONDS", 0.5)
    await world.add_class()
    agent = await world.add_node()
    async with world.leader(resync_seconds=1.0):
        await a_session(world)
        uid = await saved(world)
        await world.checkpoint("kept")
        await world.until_condition("Ready", "True", "kept", kind=KIND)
        await agent.lose()
        await world.delete("saved", KIND)
        await world.patch({"metadata": {"finalizers": []}}, "saved", KIND)
        await world.until_gone("saved", kind=KIND)
        await agent.return_()
        await until(lambda: agent.records[uid].nothing_left, "the orphan removed", 60)
        left = [r for r in agent.records.values() if r.name == "kept"]
        assert left[0].on_node


async def test_the_operators_death_changes_nothing(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        await a_session(world)
        uid = await saved(world)
        before = await world.get("saved", KIND)
    async with world.leader():
        copy = await world.create("copy", **RESTORE)
        await until(lambda: copy in agent.live, "restored under the next leader")
        assert await world.get("saved", KIND) == before
        assert [w.uid for w in agent.puts].count(uid) == 1
