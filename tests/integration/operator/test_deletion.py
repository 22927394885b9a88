"""Deletion in every state: it waits for the agent's word, and never for ever."""

import asyncio

from tests.integration.operator.harness import NAMESPACE, World, until


async def tombstones(world: World) -> list[str]:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps?labelSelector=isolet.dev%2Ftombstone"
    items = (await world.call("request", "GET", path)).must()["items"]
    return [item["data"]["tombstone.json"] for item in items]


async def test_delete_while_it_waits_for_a_node(world: World) -> None:
    await world.add_class()
    async with world.leader():
        await world.create()
        await world.until_condition("Scheduled", "False", reason="Unschedulable")
        await world.delete()
        await world.until_gone(seconds=60)


async def test_delete_while_it_runs_waits_for_the_agents_word(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        agent.auto = False
        await world.delete()
        await until(lambda: agent.records[uid].removing, "told to remove")
        await asyncio.sleep(0.5)
        assert await world.get() is not None
        await agent.dispose(uid)
        await world.until_gone()


async def test_delete_while_the_agent_is_away_waits_and_says_how_to_get_out(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await agent.lose()
        await world.delete()
        await world.until_condition("Stalled", "True", saying="outOfService", seconds=60)
        await agent.return_()
        await world.until_gone()
        assert uid not in agent.live


async def test_delete_after_the_node_was_deleted_leaves_a_tombstone(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await agent.lose()
        await world.delete(agent.name, "ExecutionNode")
        await world.until_condition("Succeeded", "False", reason="NodeLost")
        await world.delete()
        await world.until_gone()
        assert any(uid in stone for stone in await tombstones(world))
        events = await world.events()
        assert any(e["reason"] == "ReleasedUnconfirmed" for e in events)
        # The node comes back: what was given up is removed there.
        await agent.return_()
        await world.add_node()
        await until(lambda: ("remove", uid) in agent.calls, "removed on its return", 60)
        await until(lambda: uid not in agent.live, "gone")


async def test_a_forced_release(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await agent.lose()
        await world.delete()
        note = {"metadata": {"annotations": {"isolet.dev/force-release": "the rack burnt"}}}
        await world.patch(note)
        await world.until_gone()
        assert any("the rack burnt" in stone for stone in await tombstones(world))


async def test_namespace_deletion(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        for i in range(5):
            await world.create(f"x{i}")
        await until(lambda: len(agent.live) == 5, "running")
        await world.call("delete", "Namespace", world.namespace)

        async def gone() -> bool:
            return not (await world.call("get", "Namespace", world.namespace)).ok

        await until(gone, "the namespace gone", 60)
        assert agent.live == set()


async def test_delete_and_apply_again_within_a_second(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uids = []
        for _ in range(4):
            uids.append(await world.create())
            await asyncio.sleep(0.15)
            await world.delete()
            await world.until_gone(uid=uids[-1])
        uids.append(await world.create())
        await until(lambda: uids[-1] in agent.live, "the last one runs")
        assert agent.live == {uids[-1]}
        assert len(set(agent.starts)) == len(agent.starts)
        await agent.end(uids[-1])
        await world.until_condition("Succeeded", "True")


async def test_another_finalizer_is_left_alone(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        obj = await world.get()
        theirs = [*obj["metadata"]["finalizers"], "example.com/theirs"]
        await world.patch({"metadata": {"finalizers": theirs}})
        await world.delete()

        async def ours_is_off() -> bool:
            return (await world.get())["metadata"]["finalizers"] == ["example.com/theirs"]

        await until(ours_is_off, "ours taken off")
        await world.patch({"metadata": {"finalizers": []}})
        await world.until_gone()


async def test_another_kopf_operators_finalizer_is_left_alone(world: World) -> None:
    theirs = "kopf.zalando.org/KopfFinalizerMarker"
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        obj = await world.get()
        await world.patch({"metadata": {"finalizers": [*obj["metadata"]["finalizers"], theirs]}})
        await agent.end(uid)
        await world.until_condition("Succeeded", "True")
        await asyncio.sleep(1)
        assert theirs in (await world.get())["metadata"]["finalizers"]
        await world.patch({"metadata": {"finalizers": []}})


async def test_our_finalizer_is_put_back(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await world.patch({"metadata": {"finalizers": []}})

        async def back() -> bool:
            return "isolet.dev/sandbox" in ((await world.get())["metadata"].get("finalizers") or [])

        await until(back, "ours back")
        assert agent.starts == [uid]
