"""A watch that is behind the others: what it has not shown yet is not gone, and nothing ends of it.

In each case the positive control is the same world in which the thing really is not there.
"""

from datetime import UTC, datetime

import pytest

from fakes.agent import FakeAgent
from isolet.api import meta
from isolet.base import errors
from isolet.operator.kube import CHECKPOINTS, EXECUTIONS, NODES, PROCESSES, Key
from isolet.plan.binding import ANNOTATION, Binding, Inside
from tests.unit.api.objects import DROP, a_checkpoint, a_node, a_process, an_execution

SESSION, JOB = Key("Execution", "ns", "hello"), Key("Process", "ns", "job")
SAVED = Key("Checkpoint", "ns", "saved")


def unseen(world, kind, body):
    """It exists, and the watch of its kind has not shown it yet."""
    body["metadata"] |= {"generation": 1, "creationTimestamp": "2026-01-01T00:01:50Z"}
    if kind.namespaced:
        body["metadata"]["namespace"] = "ns"
    return world.cluster.seed(kind, body)


def seen(world, kind, body):
    stored = unseen(world, kind, body)
    world.operator.cache.put(kind, stored)
    return stored["metadata"]["uid"]


def told(world, key, condition="Succeeded"):
    status = world.cluster.objects[key].get("status", {})
    found = [c for c in status.get("conditions", ()) if c["type"] == condition]
    return (found[0]["status"], found[0]["reason"]) if found else None


async def work(world, key, times=1):
    for _ in range(times):
        again = await world.operator.reconciler.work(key)
    return again


@pytest.mark.parametrize("exists", [True, False])
async def test_a_checkpoint_does_not_fail_for_a_session_that_was_not_shown_yet(world, exists):
    seen(world, CHECKPOINTS, a_checkpoint())
    if exists:
        unseen(world, EXECUTIONS, an_execution("hello", className="standard", command=DROP))
    world.clock.advance(20)
    world.lead()
    await work(world, SAVED, 2)
    ready = told(world, SAVED, "Ready")
    assert ready == (("Unknown", "AwaitingExecution") if exists else ("False", "NotFound"))


def a_bound_process(world):
    """One of which its leader was killed right after the binding."""
    agent = world.agents["n1"]
    body = a_process("job", executionRef={"name": "hello"}, nodeName="n1")
    body["metadata"] |= {"uid": "job-uid", "finalizers": [meta.FINALIZER]}
    inside = Inside(
        execution_name="hello",
        execution_uid="host-uid",
        class_name="standard",
        maximum_deadline_seconds=60,
    )
    bound = Binding(
        uid="job-uid", epoch=agent.epoch, bound_at=datetime(2026, 1, 1, tzinfo=UTC), inside=inside
    )
    body["metadata"]["annotations"] = {ANNOTATION: bound.annotation()}
    return seen(world, PROCESSES, body)


@pytest.mark.parametrize("exists", [True, False])
async def test_a_process_does_not_end_with_a_session_that_was_not_shown_yet(world, exists):
    uid = a_bound_process(world)
    if exists:
        host = an_execution("hello", className="standard", command=DROP, nodeName="n1")
        host["metadata"]["uid"] = "host-uid"
        unseen(world, EXECUTIONS, host)
    await work(world, JOB)
    if exists:
        assert told(world, JOB) != ("False", "ExecutionEnded")
        assert [put.uid for put in world.agents["n1"].puts] == [uid]
    else:
        assert told(world, JOB) == ("False", "ExecutionEnded")
        assert uid in world.agents["n1"].removed


@pytest.mark.parametrize("exists", [True, False])
async def test_no_node_is_lost_that_was_not_shown_yet(world, exists):
    body = an_execution("hello", className="standard", nodeName="n2")
    body["metadata"]["finalizers"] = [meta.FINALIZER]
    seen(world, EXECUTIONS, body)
    if exists:
        world.agents["n2"] = FakeAgent("n2")
        unseen(world, NODES, a_node("n2"))
        world.operator.nodes.leading = True
    await work(world, SESSION)
    assert (told(world, SESSION) == ("False", "NodeLost")) is not exists
    assert (world.operator.nodes.link("n2") is not None) is exists


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("key", [SESSION, SAVED], ids=["Execution", "Checkpoint"])
async def test_nothing_is_given_up_for_a_node_that_was_not_shown_yet(world, key, exists):
    kind = EXECUTIONS if key is SESSION else CHECKPOINTS
    body = an_execution("hello", nodeName="n2") if key is SESSION else a_checkpoint(nodeName="n2")
    body["metadata"] |= {
        "finalizers": [meta.FINALIZER],
        "deletionTimestamp": "2026-01-01T00:01:30Z",
    }
    seen(world, kind, body)
    if exists:
        world.agents["n2"] = FakeAgent("n2")
        unseen(world, NODES, a_node("n2"))
        world.operator.nodes.leading = True
    await work(world, key)
    assert world.cluster.objects[key]["metadata"]["finalizers"] == ([meta.FINALIZER] * exists)
    assert len(world.operator.tombstones.all()) == (not exists)


async def test_what_cannot_be_looked_for_is_no_reason_to_end_anything(world):
    body = an_execution("hello", className="standard", nodeName="n2")
    body["metadata"]["finalizers"] = [meta.FINALIZER]
    seen(world, EXECUTIONS, body)
    world.cluster.fail(errors.Unavailable("busy"))
    again = await work(world, SESSION)
    assert (again.failed, told(world, SESSION), world.cluster.writes) == (True, None, [])


async def test_what_is_known_is_not_asked_for(world):
    await world.create(command=DROP)
    await world.work(2)
    seen(world, CHECKPOINTS, a_checkpoint())
    asked, get = [], world.cluster.get

    async def count(kind, *args):
        asked.append(kind.kind)
        return await get(kind, *args)

    world.cluster.get = count
    await world.operator.observer.read(EXECUTIONS, world.operator.cache.get(SESSION))
    await world.operator.observer.read_for_checkpoint(world.operator.cache.get(SAVED))
    assert asked == []
