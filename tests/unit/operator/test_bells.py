import asyncio
import itertools

import pytest

from fakes.agent import FakeAgent
from isolet.base.clock import FixedClock
from isolet.operator.bells import Bells, Sweep
from isolet.operator.cache import ObjectCache
from isolet.operator.index import Index
from isolet.operator.kube import CHECKPOINTS, CLASSES, EXECUTIONS, NODES, OURS, PROCESSES, Key
from isolet.operator.nodes import Nodes
from isolet.operator.observe import ClassShelf
from isolet.operator.queue import WorkQueue
from isolet.wire.execution import ExecutionObserved, Outcome, Step
from isolet.wire.process import ProcessObserved


def an_execution(name, namespace="ns", node=None, created="2026-01-01T00:00:00Z"):
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "creationTimestamp": created,
        "resourceVersion": "1",
    }
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


def a_node(name="n", **spec):
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"endpoint": "unix:///x", **spec}}


def key(name, namespace="ns"):
    return Key("Execution", namespace, name)


NODE = Key("ExecutionNode", "", "n")


class World:
    def __init__(self):
        clock = FixedClock()
        self.queue = WorkQueue(clock)
        self.index = Index()
        self.agent = FakeAgent("n")
        self.nodes = Nodes(lambda _: self.agent, clock, self.index, lambda _: None, lambda _: None)
        self.sweep = Sweep(self.index, self.queue.add, chunk=2, pause=0.001)
        cache = ObjectCache(OURS)
        self.bells = Bells(self.queue, self.index, self.nodes, ClassShelf(cache), self.sweep)
        self.bells.leading = True

    def put(self, kind, obj):
        metadata = obj["metadata"]
        where = Key(kind.kind, metadata.get("namespace", ""), metadata["name"])
        self.bells.object_changed(kind, where, obj)

    def rung(self):
        found = []
        while (taken := self.queue.schedule.take(0)) is not None:
            found.append(taken)
            self.queue.schedule.done(taken)
        return found


@pytest.fixture
def world():
    return World()


def test_an_object_rings_itself(world):
    world.put(EXECUTIONS, an_execution("a"))
    world.put(PROCESSES, an_execution("job"))
    assert world.rung() == [key("a"), Key("Process", "ns", "job")]


def test_a_status_that_its_own_pass_wrote_rings_nothing(world):
    where = key("a")
    world.bells.object_changed(EXECUTIONS, where, an_execution("a", node="n"), own=True)
    assert (world.rung(), list(world.index.bound)) == ([], [where])


def test_a_standby_rings_nothing_and_knows_everything(world):
    world.bells.leading = False
    world.put(EXECUTIONS, an_execution("a"))
    world.put(NODES, a_node())
    assert (world.rung(), list(world.index.waiting)) == ([], [key("a")])


def test_a_change_of_a_nodes_spec_rings_what_is_bound_to_it(world):
    world.put(NODES, a_node())
    world.put(EXECUTIONS, an_execution("a", node="n"))
    world.put(EXECUTIONS, an_execution("b", node="other"))
    world.rung()
    world.put(NODES, {**a_node(), "status": {"bootID": "x"}})
    assert world.rung() == [NODE], "its status concerns nobody"
    world.put(NODES, {**a_node(), "status": {"drain": {"startTime": "2026-01-01T00:00:00Z"}}})
    assert world.rung() == [key("a"), NODE], "but the beginning of its drain does"
    world.put(NODES, a_node(unschedulable=True))
    assert world.rung() == [key("a"), NODE]
    world.bells.object_changed(NODES, NODE, None)
    assert world.rung() == [key("a"), NODE]


async def test_an_agent_that_comes_or_goes_rings_what_is_bound_to_it_once(world):
    contacts = []
    world.bells.contact_changed = lambda: contacts.append(1)
    world.put(NODES, a_node())
    world.put(EXECUTIONS, an_execution("a", node="n"))
    world.nodes.lead()
    world.bells.node_contact("n")
    world.rung()
    contacts.clear()
    world.nodes.link("n")._hear()
    world.bells.node_contact("n")
    assert world.rung() == [key("a")]
    world.bells.node_contact("n")
    assert world.rung() == []
    world.nodes.clock.advance(60)
    world.bells.node_contact("n")
    assert world.rung() == [key("a")]
    assert len(contacts) == 2
    await world.nodes.close()


def test_a_record_rings_its_object(world):
    record = ExecutionObserved(
        uid="u", namespace="ns", name="a", sequence=1, spec_digest="", step=Step.RUNNING
    )
    world.bells.record_changed(record)
    world.bells.record_changed(record.model_copy(update={"name": "", "namespace": ""}))
    assert world.rung() == [key("a")]


def a_guest(name, host="a"):
    process = an_execution(name)
    process["spec"]["executionRef"] = {"name": host}
    return process


def test_what_becomes_of_an_execution_rings_the_processes_that_name_it(world):
    guest = Key("Process", "ns", "guest")
    world.put(PROCESSES, a_guest("guest"))
    world.put(PROCESSES, a_guest("other", "b"))
    world.rung()
    world.put(EXECUTIONS, an_execution("a"))
    assert sorted(world.rung()) == [key("a"), guest]
    record = ExecutionObserved(
        uid="u", namespace="ns", name="a", sequence=1, spec_digest="", step=Step.RUNNING
    )
    world.bells.record_changed(record)
    assert sorted(world.rung()) == [key("a"), guest]
    world.bells.record_changed(ProcessObserved(**{**record.model_dump(), "name": "guest"}))
    assert world.rung() == [guest]
    world.bells.object_changed(PROCESSES, guest, None)
    world.bells.object_changed(EXECUTIONS, key("a"), None)
    assert sorted(world.rung()) == [key("a"), guest]
    world.put(EXECUTIONS, an_execution("a"))
    assert world.rung() == [key("a")]


def test_the_end_of_a_process_gives_others_of_its_execution_their_turn(world):
    for number in range(9):
        world.put(PROCESSES, a_guest(f"p{number}"))
    world.put(PROCESSES, {**a_guest("p1"), "status": {"startTime": "2026-01-01T00:00:00Z"}})
    world.rung()
    record = ProcessObserved(
        uid="u", namespace="ns", name="p0", sequence=1, spec_digest="", step=Step.RUNNING
    )
    world.bells.record_changed(record)
    assert [k.name for k in world.rung()] == ["p0"]
    end = Outcome(succeeded=True, reason="Succeeded", message="")
    world.bells.record_changed(record.model_copy(update={"outcome": end}))
    assert sorted(k.name for k in world.rung()) == ["p0", "p2", "p3", "p4", "p5"]


async def swept(world):
    sweep = world.sweep
    task = asyncio.create_task(sweep.run())
    async with asyncio.timeout(60):
        while sweep._wanted.is_set() or sweep._rest or sweep._again:
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return world.rung()


async def test_a_class_that_changes_has_every_waiting_object_looked_at(world):
    for name in "abc":
        world.put(EXECUTIONS, an_execution(name))
    world.rung()
    world.put(CLASSES, {"metadata": {"name": "standard"}})
    assert world.rung() == [Key("ExecutionClass", "", "standard")]
    assert sorted(await swept(world)) == [key("a"), key("b"), key("c")]


async def test_a_sweep_is_fair_between_namespaces(world):
    for i in range(5):
        world.put(EXECUTIONS, an_execution(f"x{i}", "many", created=f"2026-01-01T00:00:0{i}Z"))
    world.put(EXECUTIONS, an_execution("late", "few", created="2026-01-02T00:00:00Z"))
    assert [k.namespace for k in world.sweep.order()[:2]] == ["many", "few"]


async def test_what_was_bound_meanwhile_is_not_swept(world):
    for i in range(4):
        world.put(EXECUTIONS, an_execution(f"x{i}"))
    rung = []

    def ring(one):
        rung.append(one)
        if one == key("x1"):
            for i in (2, 3):
                world.index.put(key(f"x{i}"), an_execution(f"x{i}", node="n"))

    world.sweep.ring = ring
    world.sweep.want()
    await swept(world)
    assert rung == [key("x0"), key("x1")]


async def test_each_wish_tries_the_head_again_and_the_tail_is_reached_all_the_same(world):
    for i in range(10):
        world.put(EXECUTIONS, an_execution(f"x{i}", created=f"2026-01-01T00:00:0{i}Z"))
    world.rung()
    rung = []
    world.sweep.ring = rung.append
    world.sweep.slowest = 0.004
    task = asyncio.create_task(world.sweep.run())
    async with asyncio.timeout(60):
        for wishes in itertools.count(1):
            world.sweep.want()
            await asyncio.sleep(0.005)
            counts = {k.name: rung.count(k) for k in rung}
            if wishes >= 20 and len(counts) == 10:
                break  # All were looked at though nothing was ever bound.
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert min(counts["x0"], counts["x1"]) > counts["x9"]


async def test_a_sweep_ends(world):
    world.put(EXECUTIONS, an_execution("a"))
    world.sweep.want()
    await swept(world)
    before = list(world.sweep._rest)
    assert (before, world.sweep._again, world.sweep._wanted.is_set()) == ([], False, False)


def test_without_waiting_objects_there_is_no_sweep(world):
    world.sweep.want()
    assert not world.sweep._wanted.is_set()


SAVED = Key("Checkpoint", "ns", "saved")


def a_checkpoint(**spec):
    obj = an_execution("saved")
    return obj | {"spec": {"executionRef": {"name": "a"}, **spec}}


def a_restore(**spec):
    obj = an_execution("copy")
    return obj | {"spec": {"restoreFrom": {"checkpointName": "saved"}, **spec}}


def record(name, **changes):
    base = {"uid": f"ns-{name}", "namespace": "ns", "name": name, "sequence": 1}
    return ExecutionObserved(**base, spec_digest="d", step=Step.RUNNING, **changes)


def test_executions_and_checkpoints_ring_those_that_wait_for_them(world):
    world.put(CHECKPOINTS, a_checkpoint())
    world.put(EXECUTIONS, a_restore())
    assert set(world.rung()) == {SAVED, key("copy")}
    world.put(EXECUTIONS, an_execution("a"))
    assert set(world.rung()) == {key("a"), SAVED}
    world.bells.record_changed(record("a"))
    assert set(world.rung()) == {key("a"), SAVED}
    world.put(CHECKPOINTS, a_checkpoint())
    assert set(world.rung()) == {SAVED, key("copy")}
    world.bells.record_changed(record("copy"))
    assert set(world.rung()) == {key("copy"), SAVED}, "its deletion may wait for the start"


def test_an_execution_that_goes_rings_the_checkpoint_it_kept(world):
    world.put(CHECKPOINTS, a_checkpoint())
    world.put(EXECUTIONS, a_restore())
    world.rung()
    world.bells.object_changed(EXECUTIONS, key("copy"), None)
    assert SAVED in world.rung()
    world.put(CHECKPOINTS, a_checkpoint())
    assert world.rung() == [SAVED], "nobody names it any more"


def test_a_checkpoint_that_is_over_waits_for_nothing(world):
    obj = a_checkpoint() | {"status": {"completionTime": "2026-01-01T00:00:00Z"}}
    world.put(CHECKPOINTS, obj)
    world.rung()
    world.put(EXECUTIONS, an_execution("a"))
    assert world.rung() == [key("a")]
    assert world.index.waiting.keys() == {key("a")}
