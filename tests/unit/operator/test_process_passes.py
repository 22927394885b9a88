"""Passes over Processes on an API server and an agent in memory: the shell around the plans."""

from fakes.agent import IMAGE
from isolet.operator.kube import PROCESSES, Key
from tests.unit.api.objects import DROP, a_process

KEY = Key("Process", "ns", "job")
TEMPLATE = {"className": "standard", "image": IMAGE}


async def create(world, **spec):
    body = a_process("job", **{"executionRef": DROP, "template": TEMPLATE, **spec})
    body["metadata"] |= {
        "namespace": "ns",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:01:00Z",
    }
    stored = world.cluster.seed(PROCESSES, body)
    world.operator.cache.put(PROCESSES, stored)
    return stored["metadata"]["uid"]


async def work(world, times=1):
    for _ in range(times):
        again = await world.operator.reconciler.work(KEY)
    return again


def stored(world):
    return world.cluster.objects["Process", "ns", "job"]


def outcome(world):
    found = stored(world)["status"]["conditions"]
    return next(c for c in found if c["type"] == "Succeeded")


async def test_a_whole_life_takes_four_writes(world):
    uid = await create(world)
    agent = world.agents["n1"]
    await work(world)
    assert agent.starts == [uid]
    assert stored(world)["metadata"]["finalizers"] == ["isolet.dev/sandbox"]
    world.clock.advance(5)
    await world.hear("n1")
    await work(world)
    assert outcome(world)["reason"] == "Running"
    await agent.end(uid)
    await world.hear("n1")
    await work(world)
    assert (outcome(world)["status"], outcome(world)["reason"]) == ("True", "Succeeded")
    obj = stored(world)
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:05:00Z"
    world.operator.cache.put(PROCESSES, world.cluster.seed(PROCESSES, obj))
    await work(world, 2)
    assert [w[0] for w in world.cluster.writes] == ["patch"] * 4
    assert {call for call, _ in agent.calls} <= {"put", "remove", "node", "snapshot"}
    assert uid in agent.removed


async def test_a_cancel_goes_to_the_agent(world):
    uid = await create(world)
    await work(world)
    obj = stored(world)
    obj["spec"]["desiredState"] = "Cancelled"
    obj["metadata"]["generation"] += 2
    world.operator.cache.put(PROCESSES, world.cluster.seed(PROCESSES, obj))
    await work(world, 2)
    assert ("amend", uid) in world.agents["n1"].calls
    assert outcome(world)["reason"] == "Cancelled"


async def test_one_in_a_session_follows_it_to_its_node(world):
    await create(world, executionRef={"name": "hello"}, template=DROP)
    await work(world)
    assert "nodeName" not in stored(world)["spec"]
    assert world.operator.index.waiting == {}, "nothing that a sweep could help"
    host = await world.create(command=DROP)
    await world.work()
    await work(world)
    put = world.agents["n1"].puts[-1]
    assert put.spec.execution_uid == host
    assert stored(world)["spec"]["nodeName"] == "n1"
    assert world.operator.index.remaining("n1") == 2


async def test_a_snapshot_tells_of_both_kinds(world):
    uid = await create(world)
    await work(world)
    link = world.operator.nodes.link("n1")
    link.records.clear()
    await world.hear("n1")
    assert link.records[uid].spec_digest
    world.operator.relist.begin_leading()
    await world.operator.relist.round()
    (listed,) = world.operator.relist.lists
    assert uid in listed.uids
