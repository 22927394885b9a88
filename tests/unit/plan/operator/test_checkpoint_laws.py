"""What must hold for a Checkpoint in any world: seeded worlds, each with troubles of its own."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from isolet.api import conditions as cond
from isolet.api import meta, reasons
from isolet.api.conditions import Status
from isolet.plan import actions as act
from isolet.plan import checkpoint_object
from isolet.plan.actions import Plan
from isolet.plan.model import Cause, CheckpointPass
from isolet.wire.execution import Medium
from tests.unit.plan.operator import checkpoint_worlds as cw
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.checkpoint_simulation import Agent, Source, World

SEEDS = range(250)
STEPS = 16


def a_world(rng: random.Random) -> World:
    spec: dict[str, object] = {}
    if rng.random() < 0.2:
        spec["ttlSecondsAfterFinished"] = rng.choice([0, 30])
    medium = rng.choice([Medium.DISK, Medium.MEMORY])
    source = Source(running=rng.random() < 0.8, medium=medium)
    world = World(object=cw.checkpoint_object(spec=spec), source=source)
    for name in ("n1", "n2", "n3")[: rng.randint(1, 3)]:
        agent = world.add_node(name)
        agent.has_store = rng.random() < 0.5
        agent.takeable = rng.random() < 0.85
    return world


def _end_source(world: World, rng: random.Random, agent: Agent) -> None:
    source = world.source
    if source.ended is None:
        source.running, source.ended = True, rng.choice([worlds.SUCCEEDED, worlds.LOST])
    elif not source.disposed:
        source.disposed = True
    else:
        source.gone = True


def _start_source(world: World, rng: random.Random, agent: Agent) -> None:
    world.source.running = True


def _delete(world: World, rng: random.Random, agent: Agent) -> None:
    world.delete()


def _cut_or_mend(world: World, rng: random.Random, agent: Agent) -> None:
    agent.reachable = not agent.reachable


def _hang_engine(world: World, rng: random.Random, agent: Agent) -> None:
    agent.engine_up = not agent.engine_up


def _new_leader(world: World, rng: random.Random, agent: Agent) -> None:
    world.new_leader()


def _refuse(world: World, rng: random.Random, agent: Agent) -> None:
    agent.refuses = rng.choice(["", "", "CheckpointQuota", "NodePolicy"])


def _use(world: World, rng: random.Random, agent: Agent) -> None:
    """An Execution is bound to start from it, or has started."""
    can = world.object is not None and not world.object["metadata"].get("deletionTimestamp")
    world.restoring = ("copy",) if can and not world.restoring else ()


def _change_node(world: World, rng: random.Random, agent: Agent) -> None:
    changes = [{}, {"spec": {"unschedulable": True}}, {"spec": {"drain": {}}}]
    world.nodes[agent.name] = rng.choice(changes)


def _lose_node(world: World, rng: random.Random, agent: Agent) -> None:
    """The machine dies, and after a while somebody says so."""
    if world.restored:
        return
    world.wiped = True
    agent.lose_everything()
    agent.reachable = rng.random() < 0.3
    if rng.random() < 0.5:
        world.nodes[agent.name] = cw.GONE_OFF
    elif len(world.nodes) > 1:
        world.nodes.pop(agent.name, None)
        world.agents.pop(agent.name)


def _give_up(world: World, rng: random.Random, agent: Agent) -> None:
    if rng.random() < 0.3 and world.object is not None:
        world.object["metadata"].setdefault("annotations", {})[meta.FORCE_RELEASE] = "enough"
        world.delete()


def _restore_etcd(world: World, rng: random.Random, agent: Agent) -> None:
    if world.past and not world.wiped:
        world.restored = True
        world.restore(rng.choice(world.past))


TROUBLES = (
    _end_source,
    _end_source,
    _start_source,
    _delete,
    _cut_or_mend,
    _cut_or_mend,
    _hang_engine,
    _new_leader,
    _refuse,
    _use,
    _use,
    _change_node,
    _lose_node,
    _give_up,
    _restore_etcd,
)


def breaking(rng: random.Random) -> str | None:
    return rng.choice(["before", "after"]) if rng.random() < 0.15 else None


class Watcher:
    """Holds the laws against every plan that is made."""

    def __init__(self, world: World) -> None:
        self.world = world

    def look(self) -> Plan | None:
        if self.world.object is None:
            return None
        seen: CheckpointPass = self.world.observe()
        plan = checkpoint_object.plan(seen)
        self.is_repeatable(seen, plan)
        self.looks_later(seen, plan)
        self.status_is_total(seen, plan)
        self.deletion_wins(seen, plan)
        self.what_was_written_stands(seen, plan)
        self.put_goes_only_where_it_is_bound(seen, plan)
        return plan

    def is_repeatable(self, seen: CheckpointPass, plan: Plan) -> None:
        shuffled = replace(seen, nodes=tuple(reversed(seen.nodes)))
        assert checkpoint_object.plan(shuffled) == plan

    def looks_later(self, seen: CheckpointPass, plan: Plan) -> None:
        assert plan.look_again_at is None or plan.look_again_at > seen.now
        if plan.actions or plan.write_status:
            return
        until = plan.look_again_at or worlds.after(1e6)
        between = checkpoint_object.plan(replace(seen, now=seen.now + (until - seen.now) / 2))
        assert between.actions == ()
        assert not between.write_status

    def status_is_total(self, seen: CheckpointPass, plan: Plan) -> None:
        if meta.FINALIZER not in seen.object.metadata.finalizers and seen.object.deleting:
            return  # not ours to speak of
        found = {c.type: c for c in plan.status.conditions}
        if plan.write_status:
            assert cond.READY in found
            again = type(plan.status).model_validate(plan.status.to_object())
            assert again == plan.status, "what is written is what is read back"
        for condition in plan.status.conditions:
            assert condition.type in cond.CHECKPOINT_TYPES
            assert condition.reason in reasons.REASONS, condition
        for kind in (cond.RECONCILING, cond.STALLED):
            assert kind not in found or found[kind].status is Status.TRUE
        if cond.is_true(plan.status.conditions, cond.READY):
            assert plan.status.manifest_digest == cw.MANIFEST
            assert plan.status.locations
            assert cond.STALLED not in found
        if plan.status.completion_time is not None and plan.write_status:
            assert cond.RECONCILING not in found
            assert found[cond.READY].status is not Status.UNKNOWN

    def deletion_wins(self, seen: CheckpointPass, plan: Plan) -> None:
        if seen.object.deleting:
            for action in plan.actions:
                assert not isinstance(action, act.Bind | act.Put | act.DeleteObject)
        else:
            assert not any(isinstance(a, act.Release) for a in plan.actions)
        if seen.restoring and meta.FORCE_RELEASE not in seen.object.metadata.annotations:
            assert not any(isinstance(a, act.Release) for a in plan.actions) or not seen.object.over

    def what_was_written_stands(self, seen: CheckpointPass, plan: Plan) -> None:
        before, now = seen.object.status, plan.status
        if before.completion_time is None:
            return
        for name in ("completion_time", "manifest_digest", "content_digest", "size_bytes", "image"):
            assert getattr(before, name) == getattr(now, name), name

    def put_goes_only_where_it_is_bound(self, seen: CheckpointPass, plan: Plan) -> None:
        for place, action in enumerate(plan.actions):
            if isinstance(action, act.Put):
                bound = seen.object.node_name == action.node
                assert bound or isinstance(plan.actions[place - 1], act.Bind)
                assert action.node == self.world.source.node


def run(seed: int) -> tuple[World, Watcher]:
    rng = random.Random(seed)
    world = a_world(rng)
    world.breaks = lambda number, action: breaking(rng)
    watcher = Watcher(world)
    for _ in range(STEPS):
        if rng.random() < 0.35 and world.object is not None:
            rng.choice(TROUBLES)(world, rng, rng.choice(list(world.agents.values())))
        plan = world.work(watcher.look())
        if rng.random() < 0.8:
            world.tick()
        if rng.random() < 0.4:
            world.advance(plan)
    return world, watcher


def calm(world: World) -> None:
    """The troubles end: what is there can be reached, and nobody restores any more."""
    world.breaks = lambda number, action: None
    world.restoring = ()
    for agent in world.agents.values():
        agent.reachable = agent.engine_up = True


@pytest.mark.parametrize("seed", SEEDS)
def test_any_world_comes_to_rest(seed: int) -> None:
    world, watcher = run(seed)
    calm(world)
    world.settle()
    watcher.look()
    if world.object is None:
        return
    if world.object["metadata"].get("deletionTimestamp"):
        assert "no node that answers has that store" in str(world.object["status"])
        return
    status = world.observe().object.status
    assert status.completion_time is not None, "never pending for ever"
    assert cond.status_of(status.conditions, cond.READY) is not Status.UNKNOWN


@pytest.mark.parametrize("seed", SEEDS[:100])
def test_a_deleted_one_goes_from_any_world(seed: int) -> None:
    world, _ = run(seed)
    calm(world)
    for agent in world.agents.values():
        agent.has_store = True
    world.add_node("n9").has_store = True
    if world.object is not None:
        world.delete()
    world.settle()
    assert world.object is None
    stones = {stone.cause for stone in world.tombstones.values()}
    assert (world.copies == 0 and not world.store) or stones


def live_out(world: World) -> list[str]:
    world.settle()
    ready = cond.get(world.observe().object.status.conditions, cond.READY)
    assert ready is not None
    world.delete()
    world.settle()
    return [ready.status, ready.reason]


def scenario(name: str) -> World:
    world = World()
    agent = world.add_node("n1")
    world.add_node("n2")
    match name:
        case "with a store":
            agent.has_store = True
        case "that cannot be taken":
            agent.takeable = False
        case "of what has ended":
            world.source.ended = worlds.SUCCEEDED
    return world


SCENARIOS = ("plain", "with a store", "that cannot be taken", "of what has ended")


def fails_at(broken: int, how: str) -> Callable[[int, act.Action], str | None]:
    return lambda number, action: how if number == broken else None


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_one_call_may_fail(name: str, how: str) -> None:
    whole = scenario(name)
    wanted = live_out(whole)
    for broken in range(len(whole.calls)):
        world = scenario(name)
        world.breaks = fails_at(broken, how)
        assert live_out(world) == wanted
        assert world.object is None
        assert (world.copies, world.store) == (0, set())
        assert sum(agent.takes for agent in world.agents.values()) <= 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_whole_life_takes_three_writes(name: str) -> None:
    world = scenario(name)
    live_out(world)
    failed = name == "that cannot be taken"
    assert world.writes == {"bind": 1, "status": 1, "release": 1} | ({"event": 1} if failed else {})
    told = [act.Emit] if failed else []
    calls = [act.Bind, act.Put, *told, act.Remove, act.Release]
    assert [type(call) for call in world.calls] == calls


def test_it_is_never_given_up_while_a_node_is_only_silent() -> None:
    world = scenario("plain")
    world.settle()
    world.delete()
    world.agents["n1"].reachable = False
    world.settle()
    assert world.object is not None
    world.nodes["n1"] = cw.GONE_OFF
    world.settle()
    assert world.object is None
    assert {stone.cause for stone in world.tombstones.values()} == {Cause.OUT_OF_SERVICE}
