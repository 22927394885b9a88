"""The life of an Execution as its owner sees it."""

import asyncio

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
    writes = world.writes()
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
        await world.delete()
        await world.until_gone()
    writes = world.writes()
    events = writes.pop("create events", 0)
    assert writes == {"patch executions": 2, "patch executions/status": 1}
    assert events <= 1, "a failure is worth one Event"
