"""Passes over Checkpoints, and over Executions that start from one, on parts in memory."""

import pytest

from isolet.base import errors
from isolet.operator.kube import CHECKPOINTS, EXECUTIONS, NODES, Key
from isolet.operator.steps import Effect, done
from tests.unit.api.objects import DROP, a_checkpoint
from tests.unit.operator.test_passes import World

SAVED = Key("Checkpoint", "ns", "saved")
HOST, COPY = Key("Execution", "ns", "hello"), Key("Execution", "ns", "copy")
RESTORE = {"restoreFrom": {"checkpointName": "saved"}, "image": DROP, "command": DROP}


@pytest.fixture
async def world():
    world = World()
    world.clock.advance(120)  # the leader is older than the objects of the tests
    world.lead()
    await world.start("n1", "n2")
    yield world
    await world.operator.close()


def seed(world, kind, body):
    body["metadata"] |= {
        "namespace": "ns",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:01:00Z",
    }
    stored = world.cluster.seed(kind, body)
    world.operator.cache.put(kind, stored)
    return stored["metadata"]["uid"]


def checkpoint(world):
    return seed(world, CHECKPOINTS, a_checkpoint())


def change(world, kind, name, *, spec=None, deleted=False):
    obj = world.cluster.objects[kind.kind, "ns" if kind.namespaced else "", name]
    obj["spec"] |= spec or {}
    if deleted:
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:05:00Z"
    stored = world.cluster.seed(kind, obj)
    world.operator.cache.put(kind, stored)


async def work(world, key, times=1):
    for _ in range(times):
        again = await world.operator.reconciler.work(key)
    return again


def stored(world, kind="Checkpoint", name="saved"):
    return world.cluster.objects[kind, "ns", name]


async def a_ready_one(world):
    """A session, a Checkpoint of it, and the node where both are."""
    await world.create(command=DROP)
    await world.work(2)
    uid = checkpoint(world)
    await work(world, SAVED, 2)
    assert stored(world)["status"]["conditions"][0]["status"] == "True"
    return uid, stored(world)["spec"]["nodeName"]


def copy(world, **spec):
    from tests.unit.api.objects import an_execution

    return seed(world, EXECUTIONS, an_execution("copy", className="standard", **RESTORE, **spec))


async def elsewhere(world):
    """Have only the other node take work; returns its agent and that of the first."""
    uid, here = await a_ready_one(world)
    there = "n2" if here == "n1" else "n1"
    change(world, NODES, here, spec={"unschedulable": True})
    return uid, world.agents[here], world.agents[there]


async def test_a_whole_life_takes_three_writes(world):
    uid, where = await a_ready_one(world)
    world.cluster.writes.clear()
    await work(world, SAVED, 2)
    assert world.cluster.writes == []
    change(world, CHECKPOINTS, "saved", deleted=True)
    await work(world, SAVED, 2)
    assert world.agents[where].records[uid].nothing_left
    assert world.cluster.writes == [("patch", "Checkpoint", "saved", "")]
    assert stored(world)["metadata"]["finalizers"] == []


async def test_it_holds_no_room_and_is_no_work_once_it_is_taken(world):
    _, where = await a_ready_one(world)
    index = world.operator.index
    assert index.waiting == {}
    assert index.remaining(where) == 1, "the session alone"
    assert SAVED in set(index.on(where))
    assert index.in_use() == {"ns": 1}


async def test_a_grant_is_asked_for_right_before_the_message_that_carries_it(world, caplog):
    uid, here, there = await elsewhere(world)
    restored = copy(world)
    before = done[Effect.AGENT_GRANT]
    with caplog.at_level("DEBUG"):
        await work(world, COPY)
    assert done[Effect.AGENT_GRANT] == before + 1
    assert ("grant_checkpoint", (uid, there.name)) in here.calls
    ((_, found),) = there.sources
    assert (found.peer.node, found.in_store) == (here.name, None)
    assert found.peer.endpoint == "https://10.0.0.1:7443"
    assert restored in there.starts
    token = found.peer.grant.token
    told = str(world.cluster.objects) + caplog.text + str(world.operator.reconciler.memory)
    assert token not in told


async def test_a_grant_that_is_not_given_is_asked_for_again(world):
    _, here, there = await elsewhere(world)
    copy(world)
    give = here.grant_checkpoint

    async def fail(*args):
        here.grant_checkpoint = give
        raise errors.Refused("not yours", reason="NotAllowed")

    here.grant_checkpoint = fail
    again = await work(world, COPY)
    assert again.failed
    failure = world.operator.reconciler.memory.failures[COPY][1]
    assert (failure.reason, failure.kind) == ("CheckpointUnavailable", "Unavailable")
    assert there.puts == []
    await work(world, COPY)
    assert len(there.starts) == 1


async def test_a_copy_in_a_store_serves_where_a_grant_is_not_given(world):
    shared = set()
    for agent in world.agents.values():
        agent.stores = {"s3": shared}
    for name in ("n1", "n2"):
        await world.hear(name)
    _, here, there = await elsewhere(world)
    copy(world)
    here.reachable = False
    await work(world, COPY)
    ((_, found),) = there.sources
    assert found.peer is None
    assert found.in_store.store == "s3"
    assert len(there.starts) == 1


async def test_both_find_out_about_each_other_whoever_comes_first(world):
    _, here, there = await elsewhere(world)
    there.auto = False
    uid = copy(world)
    await work(world, COPY)
    assert list(world.operator.index.restoring(SAVED, stored(world)["metadata"]["uid"])) == [COPY]
    change(world, CHECKPOINTS, "saved", deleted=True)
    await work(world, SAVED)
    assert here.calls.count(("remove_checkpoint", stored(world)["metadata"]["uid"])) == 0
    await there.run(uid)
    await world.hear(there.name)
    await work(world, SAVED, 2)
    assert stored(world)["metadata"]["finalizers"] == []


async def test_nothing_is_bound_to_one_that_is_being_deleted(world):
    await a_ready_one(world)
    copy(world)
    change(world, CHECKPOINTS, "saved", deleted=True)
    await work(world, COPY)
    assert "nodeName" not in stored(world, "Execution", "copy")["spec"]
    await work(world, SAVED, 2)
    assert stored(world)["metadata"]["finalizers"] == []


async def test_a_binding_that_is_only_decided_counts(world):
    await elsewhere(world)
    copy(world)
    index, uid = world.operator.index, stored(world)["metadata"]["uid"]
    seen = []
    patch = world.cluster.patch

    async def look(*args, **kwargs):
        seen.append(list(index.restoring(SAVED, uid)))
        return await patch(*args, **kwargs)

    world.cluster.patch = look
    await work(world, COPY)
    assert seen[0] == [COPY]


async def test_what_is_restored_from_does_not_depend_on_its_session(world):
    uid, where = await a_ready_one(world)
    change(world, EXECUTIONS, "hello", deleted=True)
    await world.work(2)
    assert world.agents[where].records[uid].on_node
    copy(world)
    await work(world, COPY)
    assert stored(world, "Execution", "copy")["spec"]["nodeName"] == where


async def test_a_snapshot_and_a_list_tell_of_checkpoints(world):
    uid, where = await a_ready_one(world)
    link = world.operator.nodes.link(where)
    link.records.clear()
    await world.hear(where)
    assert link.checkpoint(uid).value.on_node
    assert type(link.record(uid)).__name__ == "Absent", "it is no work"
    world.operator.relist.begin_leading()
    await world.operator.relist.round()
    (listed,) = world.operator.relist.lists
    assert uid in listed.uids
