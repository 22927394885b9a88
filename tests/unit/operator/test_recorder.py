import asyncio

import pytest

from fakes.cluster import FakeCluster
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.operator.events import Recorder, TokenBucket
from isolet.plan.objects import ObjectRef


def a_ref(name="hello", uid="u1", namespace="ns", kind="Execution"):
    return ObjectRef(kind=kind, namespace=namespace, name=name, uid=uid)


class World:
    def __init__(self, **kwargs):
        self.cluster = kwargs.pop("cluster", None) or FakeCluster()
        self.clock = FixedClock()
        self.recorder = Recorder(self.cluster, self.clock, identity="me", **kwargs)

    def say(self, key="k", message="It failed", reason="StartFailed", **ref):
        self.recorder.record(a_ref(**ref), "Warning", reason, message, key)

    async def write(self):
        while await self.recorder.step() == 0:
            pass

    @property
    def events(self):
        return [o for (kind, _, _), o in self.cluster.objects.items() if kind == "Event"]


async def test_one_event_for_one_key_however_often_it_is_told():
    world = World()
    for _ in range(3):
        world.say()
        await world.write()
    (event,) = world.events
    assert event["involvedObject"] == {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "Execution",
        "name": "hello",
        "namespace": "ns",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == (
        "Warning",
        "StartFailed",
        "It failed",
        1,
    )
    assert world.cluster.writes == [("create", "Event", event["metadata"]["name"])]


async def test_another_occurrence_raises_the_count_of_the_same_event_no_oftener_than_allowed():
    world = World()
    world.say("k1")
    await world.write()
    world.say("k2", "Again")
    world.say("k3", "And again")
    assert await world.recorder.step() == 30
    world.clock.advance(30)
    await world.write()
    (event,) = world.events
    assert (event["count"], event["message"]) == (3, "And again")
    assert [w[0] for w in world.cluster.writes] == ["create", "patch"]


async def test_a_series_that_waits_does_not_hold_up_others():
    world = World()
    world.say("k1")
    await world.write()
    world.say("k2")
    world.say("k3", uid="u2", name="other")
    await world.write()
    assert len(world.events) == 2


async def test_the_next_leader_neither_repeats_nor_recounts():
    world = World()
    world.say("k1")
    await world.write()
    successor = World(cluster=world.cluster)
    successor.say("k1")
    await successor.write()
    assert world.events[0]["count"] == 1
    successor.clock.advance(30)
    successor.say("k2")
    await successor.write()
    assert world.events[0]["count"] == 2


async def test_events_of_cluster_scoped_objects_lie_where_the_api_server_takes_them():
    world = World()
    world.say(namespace="", kind="ExecutionNode", name="node-a")
    await world.write()
    assert world.events[0]["metadata"]["namespace"] == "default"
    assert "namespace" not in world.events[0]["involvedObject"]


async def test_the_bucket_bounds_the_rate():
    clock = FixedClock()
    bucket = TokenBucket(clock, rate=2, burst=3)
    assert [bucket.wait() for _ in range(4)] == [0, 0, 0, 0.5]
    clock.advance(0.5)
    assert bucket.wait() == 0
    clock.advance(1000)
    assert [bucket.wait() for _ in range(4)] == [0, 0, 0, 0.5]


async def test_too_many_are_dropped_and_counted_and_may_be_told_later():
    world = World(capacity=2)
    for i in range(5):
        world.say(uid=f"u{i}")
    assert world.recorder.dropped == 3
    await world.write()
    assert len(world.events) == 2
    world.say(uid="u4")
    await world.write()
    assert len(world.events) == 3


async def test_an_event_that_cannot_be_written_is_no_error():
    world = World()
    world.cluster.fail(errors.Refused("forbidden"))
    world.say()
    await world.write()
    assert (world.events, world.recorder.dropped) == ([], 1)


async def test_names_at_the_limit():
    world = World()
    world.say(name="n" * 253)
    world.say(name="n" * 252 + "m", uid="u2")
    await world.write()
    names = [e["metadata"]["name"] for e in world.events]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 253


async def test_the_loop_wakes_for_a_new_event_while_it_waits_for_an_old_series():
    world = World()
    task = asyncio.create_task(world.recorder.run())
    async with asyncio.timeout(60):
        world.say("k1")
        while len(world.events) < 1:
            await asyncio.sleep(0.001)
        world.say("k2")
        await asyncio.sleep(0.01)
        world.say("k3", uid="u2")
        while len(world.events) < 2:
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
