"""What must hold in any world: seeded worlds, each with its own troubles, and laws over all."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isolet.api import conditions as cond
from isolet.api import meta, reasons
from isolet.api.conditions import Status
from isolet.plan import actions as act
from isolet.plan import execution
from isolet.plan.actions import Plan
from isolet.plan.model import Cause, Input, InputRef, Observed
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.simulation import Agent, World

SEEDS = range(300)
STEPS = 14
EXECUTION, OWN, INSIDE = "Execution", "Process", "Process in an Execution"
KINDS = (EXECUTION, OWN, INSIDE)
CASES = [(s, k) for k in KINDS for s in (SEEDS if k == EXECUTION else SEEDS[:120])]
OPEN = worlds.a_class(env={"allowSecretRefs": True})
STRICT = worlds.a_class()
OTHER = worlds.a_class(images={"allowed": [worlds.TAG], "resolveTags": True})
SECRET = InputRef("Secret", "keys")


def a_world(rng: random.Random, kind: str) -> World:
    """A pending object in some cluster."""
    spec: dict[str, object] = {}
    if kind == EXECUTION and rng.random() < 0.4:
        spec["command"] = None
    if rng.random() < 0.3:
        spec["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
    if rng.random() < 0.2:
        spec["ttlSecondsAfterFinished"] = rng.choice([0, 30])
    if rng.random() < 0.1:
        field = "activeDeadlineSeconds" if kind == EXECUTION else "timeoutSeconds"
        spec[field] = rng.choice([2, 99_999] if kind == EXECUTION else [2, 80_000])
    if kind == EXECUTION and rng.random() < 0.2:
        spec["schedulingDeadlineSeconds"] = 120
    world = World(object=_an_object(kind, spec))
    world.classes = (STRICT if rng.random() < 0.1 else OPEN,)
    if rng.random() < 0.9:
        world.inputs[SECRET] = Input(uid="s", resource_version="1", data={"k": b"v"})
    for name in ("n1", "n2", "n3")[: rng.randint(1, 3)]:
        agent = world.add_node(name)
        agent.runs_for = rng.choice([0.2, 3.0, 40.0])
    if kind == INSIDE and rng.random() < 0.9:
        world.add_session(rng.choice(list(world.agents)))
    return world


def _an_object(kind: str, spec: dict[str, object]) -> dict[str, Any]:
    if kind == EXECUTION:
        return worlds.execution_object(spec=spec)
    return worlds.process_object(kind == INSIDE, spec=spec)


def _terminate(world: World, _rng: random.Random, _agent: Agent) -> None:
    world.terminate()


def _end_session(world: World, rng: random.Random, _agent: Agent) -> None:
    """The Execution of a Process ends, goes, or is not there yet."""
    session = world.session
    if session is None:
        world.add_session(rng.choice(list(world.agents)))
    elif session.ended is None:
        session.ended = rng.choice([worlds.SUCCEEDED, worlds.LOST])
    else:
        session.deleted = True


def _delete(world: World, _rng: random.Random, _agent: Agent) -> None:
    world.delete()


def _cut_or_mend(_world: World, _rng: random.Random, agent: Agent) -> None:
    agent.reachable = not agent.reachable


def _restart_agent(_world: World, _rng: random.Random, agent: Agent) -> None:
    agent.restart()


def _wipe_node(world: World, rng: random.Random, agent: Agent) -> None:
    if rng.random() < 0.4 and not world.restored:
        agent.lose_everything()
        world.wiped = True


def _new_leader(world: World, _rng: random.Random, _agent: Agent) -> None:
    world.new_leader()


def _change_secret(world: World, _rng: random.Random, _agent: Agent) -> None:
    old = world.inputs.get(SECRET)
    if old is not None:
        world.inputs[SECRET] = replace(
            old, resource_version=old.resource_version + "1", data={"k": b"other"}
        )


def _drop_secret(world: World, _rng: random.Random, _agent: Agent) -> None:
    world.inputs.clear()


def _change_class(world: World, rng: random.Random, _agent: Agent) -> None:
    world.classes = rng.choice([(), (OTHER,)])


def _change_node(world: World, rng: random.Random, agent: Agent) -> None:
    drain = {
        "spec": {"drain": {"onDeadline": "Terminate", "deadlineSeconds": 5}},
        "status": {"drain": {"startTime": meta.format_time(world.now)}},
    }
    world.nodes[agent.name] = rng.choice([{}, {"spec": {"unschedulable": True}}, drain])


def _hang_engine(_world: World, _rng: random.Random, agent: Agent) -> None:
    agent.engine_up = not agent.engine_up


def _change_deadline(world: World, rng: random.Random, _agent: Agent) -> None:
    if world.kind == EXECUTION:
        world.edit(activeDeadlineSeconds=rng.choice([1, 900, 5000]))


def _lose_node(world: World, rng: random.Random, agent: Agent) -> None:
    """The machine dies, and after a while somebody says so."""
    if world.restored:
        return
    world.wiped = True
    agent.lose_everything()
    agent.reachable = False
    if rng.random() < 0.5:
        world.nodes[agent.name] = {"spec": {"outOfService": {"reason": "it burnt"}}}
    elif len(world.nodes) > 1:
        world.nodes.pop(agent.name, None)
        world.agents.pop(agent.name)


def _give_up(world: World, rng: random.Random, _agent: Agent) -> None:
    if rng.random() < 0.3 and world.object is not None:
        world.object["metadata"].setdefault("annotations", {})[meta.FORCE_RELEASE] = "enough"
        world.delete()


def _cut_under_a_new_leader(world: World, rng: random.Random, agent: Agent) -> None:
    agent.reachable = False
    world.new_leader()
    if rng.random() < 0.5:
        world.delete()


def _restore_etcd(world: World, rng: random.Random, _agent: Agent) -> None:
    if world.past and not world.wiped:
        world.restored = True
        world.restore(rng.choice(world.past))


TROUBLES = (
    _cut_under_a_new_leader,
    _cut_under_a_new_leader,
    _restore_etcd,
    _restore_etcd,
    _lose_node,
    _give_up,
    _terminate,
    _delete,
    _cut_or_mend,
    _cut_or_mend,
    _restart_agent,
    _wipe_node,
    _new_leader,
    _new_leader,
    _change_secret,
    _drop_secret,
    _change_class,
    _change_node,
    _hang_engine,
    _change_deadline,
    _end_session,
    _end_session,
)


def trouble(world: World, rng: random.Random) -> None:
    """Something happens to the world."""
    if world.object is not None:
        rng.choice(TROUBLES)(world, rng, rng.choice(list(world.agents.values())))


def breaking(rng: random.Random) -> str | None:
    return rng.choice(["before", "after"]) if rng.random() < 0.15 else None


class Watcher:
    """Holds the laws against every plan that is made."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outcome: tuple[str, str] | None = None

    def look(self) -> Plan | None:
        if self.world.object is None:
            return None
        seen = self.world.observe()
        plan = execution.plan(seen)
        self.is_repeatable(seen, plan)
        self.looks_later(seen, plan)
        self.status_is_total(seen, plan)
        self.deletion_wins(seen, plan)
        self.outcome_stands(plan)
        self.spec_goes_only_where_it_may(seen, plan)
        return plan

    def is_repeatable(self, seen: Observed, plan: Plan) -> None:
        shuffled = replace(seen, nodes=tuple(reversed(seen.nodes)))
        assert execution.plan(shuffled) == plan

    def looks_later(self, seen: Observed, plan: Plan) -> None:
        assert plan.look_again_at is None or plan.look_again_at > seen.now
        if plan.actions or plan.write_status:
            return
        until = plan.look_again_at or worlds.after(1e6)
        between = execution.plan(replace(seen, now=seen.now + (until - seen.now) / 2))
        assert between.actions == ()
        assert not between.write_status

    def status_is_total(self, seen: Observed, plan: Plan) -> None:
        found = {c.type: c for c in plan.status.conditions}
        if meta.FINALIZER not in seen.object.metadata.finalizers and seen.object.deleting:
            return  # not ours to speak of
        if plan.write_status:
            session = seen.object.is_session
            wanted = {cond.SCHEDULED, cond.FINISHED, cond.SUCCEEDED} | (
                {cond.READY} if session else set()
            )
            assert wanted <= found.keys() <= wanted | {cond.RECONCILING, cond.STALLED}
        for condition in plan.status.conditions:
            assert condition.reason in reasons.REASONS, condition
            assert condition.observed_generation == seen.object.metadata.generation
        assert plan.status.observed_generation == seen.object.metadata.generation
        for kind in (cond.RECONCILING, cond.STALLED):
            assert kind not in found or found[kind].status is Status.TRUE
        if cond.is_decided(plan.status.conditions, cond.SUCCEEDED):
            assert found[cond.FINISHED].status is Status.TRUE
            assert cond.RECONCILING not in found
            assert plan.status.completion_time is not None
        if plan.write_status:
            again = type(plan.status).model_validate(plan.status.to_object())
            assert again == plan.status, "what is written is what is read back"

    def deletion_wins(self, seen: Observed, plan: Plan) -> None:
        if seen.object.deleting:
            for action in plan.actions:
                assert not isinstance(action, act.Bind | act.Put | act.Amend | act.DeleteObject)
        else:
            assert not any(isinstance(a, act.Release) for a in plan.actions)

    def outcome_stands(self, plan: Plan) -> None:
        self.remember()
        outcome = cond.get(plan.status.conditions, cond.SUCCEEDED)
        assert self.outcome in (None, outcome and (outcome.status, outcome.reason))

    def remember(self) -> None:
        """The outcome that is written; etcd may have been set back to before it."""
        raw = self.world.object or {}
        self.outcome = None
        for condition in raw.get("status", {}).get("conditions", ()):
            if condition["type"] == cond.SUCCEEDED:
                decided = condition["status"] != Status.UNKNOWN
                self.outcome = (condition["status"], condition["reason"]) if decided else None

    def spec_goes_only_where_it_may(self, seen: Observed, plan: Plan) -> None:
        for place, action in enumerate(plan.actions):
            if not isinstance(action, act.Put):
                continue
            if seen.object.host is not None and self.world.session is not None:
                assert action.node == self.world.session.node, "where its Execution is"
            bound = seen.object.node_name == action.node
            assert bound or isinstance(plan.actions[place - 1], act.Bind)
            assert meta.FINALIZER in seen.object.metadata.finalizers or not bound

    def no_doubles(self) -> None:
        assert self.world.starts <= 1
        assert self.world.live <= 1
        specs = [call.wanted.spec for call in self.world.calls if isinstance(call, act.Put)]
        assert all(spec == specs[0] for spec in specs), "a repeat is the same to the last byte"


def run(seed: int, kind: str) -> tuple[World, Watcher]:
    rng = random.Random(seed)
    world = a_world(rng, kind)
    world.breaks = lambda number, action: breaking(rng)
    watcher = Watcher(world)
    for _ in range(STEPS):
        if rng.random() < 0.35:
            trouble(world, rng)
        plan = world.work(watcher.look())
        if rng.random() < 0.8:
            world.tick()
        watcher.no_doubles()
        if rng.random() < 0.4:
            world.advance(plan)
    return world, watcher


def calm(world: World) -> None:
    """The troubles end: what is there can be reached."""
    world.breaks = lambda number, action: None
    for agent in world.agents.values():
        agent.reachable = agent.engine_up = True


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_any_world_comes_to_rest_and_nothing_happened_twice(seed: int, kind: str) -> None:
    world, watcher = run(seed, kind)
    calm(world)
    world.settle()
    watcher.look()
    watcher.no_doubles()
    if world.object is not None and world.object["metadata"].get("deletionTimestamp"):
        raise AssertionError("it is still there though every agent can be asked")
    if world.object is None:
        stones = {stone.cause for stone in world.tombstones.values()}
        assert world.live == 0 or stones == {Cause.FORCED}, "only by somebody's word"
        return
    status = world.observe().object.status
    if cond.is_decided(status.conditions, cond.SUCCEEDED):
        assert world.live == 0, "what has ended does not run"
    elif world.live:
        assert cond.status_of(status.conditions, cond.SCHEDULED) is Status.TRUE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS[:40])
def test_a_deleted_object_goes_from_any_world(seed: int, kind: str) -> None:
    world, watcher = run(seed, kind)
    calm(world)
    if world.object is not None:
        world.delete()
    world.settle()
    watcher.no_doubles()
    assert world.object is None
    assert world.live == 0 or world.tombstones


def scenario(name: str) -> World:
    world = World()
    if name in PROCESSES:
        world.object = worlds.process_object(name == PROCESSES[1])
    world.add_node("n1")
    match name:
        case "a command runs and is deleted":
            pass
        case "a session is terminated":
            world.object = worlds.execution_object(spec={"command": None})
        case "a command with values from a Secret":
            env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
            world.object = worlds.execution_object(spec={"env": env})
            world.classes = (OPEN,)
            world.inputs[SECRET] = Input(uid="s", resource_version="1", data={"k": b"v"})
        case "a Process in a session":
            world.add_session("n1")
        case "three nodes":
            world.add_node("n2")
            world.add_node("n3")
    return world


PROCESSES = ("a Process of its own", "a Process in a session")
SCENARIOS = (
    *PROCESSES,
    "a command runs and is deleted",
    "a session is terminated",
    "a command with values from a Secret",
    "three nodes",
)


def fails_at(broken: int, how: str) -> Callable[[int, act.Action], str | None]:
    return lambda number, action: how if number == broken else None


def live_out(world: World) -> list[str]:
    """A whole life; returns what the status said at its end."""
    world.settle()
    if world.object is not None and world.object["spec"].get("command") is None:
        world.terminate()
        world.settle()
    told = world.observe().object.status
    outcome = cond.get(told.conditions, cond.SUCCEEDED)
    assert outcome is not None
    world.delete()
    world.settle()
    return [outcome.status, outcome.reason]


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
        assert (world.starts, world.live) == (1, 0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_whole_life_takes_four_writes(name: str) -> None:
    world = scenario(name)
    live_out(world)
    assert world.writes == {"bind": 1, "status": 2, "release": 1}
    assert not world.events
    amended = [act.Amend] if name == "a session is terminated" else []
    calls = [act.Bind, act.Put, *amended, act.Remove, act.Release]
    assert [type(call) for call in world.calls] == calls


def test_a_short_command_takes_three() -> None:
    world = scenario("three nodes")
    for agent in world.agents.values():
        agent.runs_for = 0.5
    live_out(world)
    assert world.writes == {"bind": 1, "status": 1, "release": 1}


@pytest.mark.parametrize("moment", range(1, 8))
def test_an_older_state_of_etcd_runs_nothing_twice(moment: int) -> None:
    world = scenario("three nodes")
    for _ in range(moment):
        plan = world.work()
        world.tick()
        world.advance(plan)
    world.restore(world.past[0])
    world.agents["n1"].reachable = False
    world.settle()
    calm(world)
    world.settle()
    assert (world.starts, world.live) == (1, 0)


def test_nothing_is_bound_while_an_agent_that_may_have_it_is_silent() -> None:
    world = scenario("three nodes")
    world.new_leader()
    world.agents["n2"].reachable = False
    world.settle()
    assert world.object is not None
    assert "nodeName" not in world.object["spec"]
    (event,) = world.events.values()
    assert "it may already run on n2" in event.message
    world.nodes["n2"] = {"spec": {"outOfService": {"reason": "unplugged"}}}
    world.settle()
    assert world.starts == 1
