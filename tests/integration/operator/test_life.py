"""The life of an Execution as its owner sees it."""

import asyncio

from isolet.base import errors
from tests.integration.operator.harness import FINALIZER, World, until


async def test_a_whole_life_in_at_most_four_writes(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create(command=["sh", "-c", "make test"])
        await until(lambda: uid in agent.live, "running")
        obj = await world.get()
        assert obj["spec"]["nodeName"] == agent.name
        assert FINALIZER in obj["metadata"]["finalizers"]
        await world.until_condition("Scheduled", "True")
        await agent.end(uid)
        await world.until_condition("Succeeded", "True")
        obj = await world.get()
        assert obj["status"]["exitCode"] == 0
        assert obj["status"]["resolved"]["classGeneration"] == 1
        assert (await world.condition("Finished"))["status"] == "True"
        await world.delete()
        await world.until_gone()
        await asyncio.sleep(0.3)
    assert agent.starts == [uid]
    assert world.exits == []
    writes = await world.writes()
    assert writes == {"patch executions": 2, "patch executions/status": 2}


async def test_a_short_command_needs_no_write_between_binding_and_outcome(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await agent.end(uid, "NonZeroExit", succeeded=False, exit_code=3, message="exit code 3")
        outcome = await world.until_condition("Succeeded", "False", reason="NonZeroExit")
        assert outcome["message"] == "exit code 3"
        await until(world.events, "an Event")
        await world.delete()
        await world.until_gone()
    assert await world.writes() == {
        "patch executions": 2,
        "patch executions/status": 1,
        "create events": 1,
    }


async def test_idle_objects_are_not_written_to(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader(resync_seconds=1.0):
        for i in range(10):
            await world.create(f"s{i}", command=None)
        await until(lambda: len(agent.live) == 10, "all running")
        for i in range(10):
            await world.until_condition("Ready", "True", f"s{i}")
        before = {f"s{i}": (await world.get(f"s{i}"))["metadata"] for i in range(10)}
        await asyncio.sleep(4)  # four resyncs
        for name, metadata in before.items():
            assert (await world.get(name))["metadata"] == metadata


async def test_a_class_that_comes_later_and_is_edited_while_its_work_runs(world: World) -> None:
    agent = await world.add_node()
    async with world.leader():
        first = await world.create("first")
        await world.until_condition("Scheduled", "False", "first", reason="ClassNotFound")
        await world.add_class()
        await until(lambda: first in agent.live, "running once the class is there")
        change = {"spec": {"deadlines": {"defaultSeconds": 77}}}
        await world.patch(change, world.class_name, "ExecutionClass")
        second = await world.create("second")
        await until(lambda: second in agent.live, "running")
        deadlines = {w.name: w.active_deadline_seconds for w in agent.puts}
        assert deadlines == {"first": 600, "second": 77}
        await agent.end(first)
        await world.until_condition("Succeeded", "True", "first")
        assert (await world.get("first"))["status"]["resolved"]["classGeneration"] == 1
        assert len([p for p in agent.puts if p.uid == first]) == 1


async def test_what_waits_for_a_node_runs_when_one_comes(world: World) -> None:
    await world.add_class()
    async with world.leader():
        uid = await world.create()
        await world.until_condition("Scheduled", "False", reason="Unschedulable")
        agent = await world.add_node()
        await until(lambda: uid in agent.live, "running")


async def test_what_waits_for_room_runs_when_there_is_some(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    agent.capacity = agent.capacity.model_copy(update={"executions": 1})
    async with world.leader():
        first = await world.create("first")
        await until(lambda: first in agent.live, "running")
        await world.create("second")
        await world.until_condition("Scheduled", "False", "second", reason="Unschedulable")
        assert len(agent.puts) == 1
        await agent.end(first)
        await agent.account_changes()
        await until(lambda: len(agent.starts) == 2, "the second runs", 60)


async def test_an_image_that_no_node_has_fails_in_seconds(world: World) -> None:
    missing = "sha256:" + "b" * 64
    await world.add_class(images={"allowed": [missing], "default": missing})
    await world.add_node()
    async with world.leader():
        await world.create(image=missing)
        outcome = await world.until_condition("Succeeded", "False", reason="ImageMissing")
        assert missing in outcome["message"]
        await world.delete()
        await world.until_gone()


async def test_cancel_keeps_the_record(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await world.patch({"spec": {"desiredState": "Terminated"}})
        await world.until_condition("Succeeded", "False", reason="Cancelled")
        assert uid not in agent.live
        assert await world.get() is not None


async def test_a_finished_object_goes_when_its_time_is_up(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create(ttlSecondsAfterFinished=1)
        await until(lambda: uid in agent.live, "running")
        await agent.end(uid)
        await world.until_condition("Succeeded", "True")
        await world.until_gone(seconds=60)
    assert (await world.writes())["delete executions"] == 1


async def test_values_of_secrets_go_to_the_agent_and_nowhere_else(world: World, caplog) -> None:
    canary = "canary-5f1e"
    await world.add_class(env={"allowSecretRefs": True})
    agent = await world.add_node()
    env = [
        {"name": "LOGIN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "modes", "key": "mode"}}},
    ]
    async with world.leader():
        uid = await world.create(env=env)
        await world.until_condition("Scheduled", "False", reason="AwaitingInputs")
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}}
        await world.call("create", {**secret, "stringData": {"password": canary}}, world.namespace)
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "modes"}}
        await world.call("create", {**config, "data": {"mode": "fast"}}, world.namespace)
        await until(lambda: uid in agent.live, "running", 60)
        (put,) = agent.puts
        assert {v.name: (v.value, v.secret) for v in put.spec.env} == {
            "LOGIN": (canary.encode(), True),
            "MODE": (b"fast", False),
        }
        await agent.end(uid)
        await world.until_condition("Succeeded", "True")
        told = str(await world.get()) + str(await world.events()) + caplog.text
        assert canary not in told


async def test_an_agent_that_refuses_for_now_is_asked_again(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    agent.refuse = errors.Unavailable("no room", reason="NodeFull", retry_after=0.1)
    async with world.leader():
        uid = await world.create()
        await until(lambda: agent.calls.count(("put", uid)) >= 3, "asked again")
        agent.refuse = None
        await until(lambda: uid in agent.live, "running")


async def test_an_agent_that_refuses_for_good_ends_it(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    agent.refuse = errors.Refused("over the node's own bound", reason="NodePolicy")
    async with world.leader():
        await world.create()
        outcome = await world.until_condition("Succeeded", "False")
        assert "over the node's own bound" in outcome["message"]
        await world.delete()
        await world.until_gone()
