"""SIGKILL of agent and operator at each of their steps, as the code lists them.

One test for each step, so that a step that is never reached is a test that fails. While the process
is killed and started again a fixed mix of work goes through it; the judge is the engines' own event
streams, `docker inspect` and what a watch of the API server has shown.
"""

import hashlib
import itertools
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from isolet.agent.steps import AgentStep
from isolet.base import names
from isolet.operator.steps import STEPS, Effect
from isolet_stack.stack import NAMESPACE
from tests.e2e.checkpoints import a_checkpoint, a_restore, a_session, inside, on, ready, taken
from tests.e2e.faults_arena import HOST, Arena, arena_of, chance, eventually, mix, runs
from tests.e2e.faults_processes import through
from tests.e2e.faults_watch import Object
from tests.e2e.looks import outcome, tombstones
from tests.e2e.world import World, a_class, a_template, condition

pytestmark = pytest.mark.faults

NODES = ("node-0", "node-1")
OPERATOR = "operator-0"


OF_PROCESSES = (
    AgentStep.INSIDE_START_BEFORE,
    AgentStep.INSIDE_START_AFTER,
    AgentStep.COLLECT_BEFORE,
    AgentStep.COLLECT_AFTER,
)
"""Steps that only a Process comes to; they have a test of their own."""


OF_CHECKPOINTS = tuple(
    step for step in AgentStep if step.value.startswith(("agent.checkpoint-", "agent.restore"))
)
"""Killed in tests/integration/agent/test_checkpoint_kills.py."""


OF_GIT = tuple(
    step for step in AgentStep if step.value.startswith(("agent.commit.", "agent.tree."))
)
"""Killed in tests/integration/agent/test_git_kills.py."""


OF_POOLS = (
    AgentStep.ASSIGN_BEFORE,
    AgentStep.ASSIGN_AFTER,
    AgentStep.HAND_BEFORE,
    AgentStep.HAND_AFTER,
    AgentStep.UNASSIGN_AFTER,
)
"""Killed in tests/integration/process/test_pool_kills.py."""


def journeys() -> list[tuple[str, ...]]:
    """All others once, three in each journey, in the order of a sandbox's life."""
    others = (*OF_PROCESSES, *OF_CHECKPOINTS, *OF_GIT, *OF_POOLS)
    steps = [step.value for step in AgentStep if step not in others]
    third = -(-len(steps) // 3)
    thirds = [steps[begin : begin + third] for begin in range(0, len(steps), third)]
    for part in thirds:
        chance(*part).shuffle(part)
    return [tuple(filter(None, found)) for found in itertools.zip_longest(*thirds)]


def rounds() -> list[tuple[tuple[str, ...], ...]]:
    """The journeys, one for each node at a time."""
    found = journeys()
    return [tuple(found[begin : begin + len(NODES)]) for begin in range(0, len(found), len(NODES))]


@pytest.fixture(scope="module")
def arena(whole: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("traps")
    parts = (*(f"agent-{node}" for node in NODES), OPERATOR)
    with whole.in_namespace() as world, arena_of(world, folder, *parts) as arena:
        arena.settle_in()
        yield arena
        arena.judge()
        arena.end_standing()
    whole.nothing_left()


@pytest.mark.parametrize("steps", rounds(), ids=lambda r: "+".join(itertools.chain(*r)))
def test_the_agents_are_killed_at(arena: Arena, steps: tuple[tuple[str, ...], ...]) -> None:
    dice = chance(*itertools.chain(*steps))
    traps = [arena.trap(f"agent-{node}") for node in NODES]
    tag = f"{dice.randrange(1 << 24):06x}"
    for trap, mine in zip(traps, steps, strict=False):
        trap.clear()
        trap.set(*mine)
    with through(arena, tag):
        arena.perform([work for n in (0, 1) for work in mix(NODES[n], f"{tag}-{n}", dice)])
    for trap in traps:
        trap.until_sprung()
    for trap, mine in zip(traps, steps, strict=False):
        assert tuple(trap.sprung()) == mine, f"{trap.part} came only to {trap.sprung()}"
    arena.judge()


RAN = b"ran\n"
ONCE = {"output": {"statusTailBytes": 64}}


def test_the_agents_are_killed_at_what_only_processes_come_to(arena: Arena) -> None:
    world, traps = arena.world, [arena.trap(f"agent-{node}") for node in NODES]
    for trap, *steps in zip(traps, OF_PROCESSES[:2], OF_PROCESSES[2:], strict=True):
        trap.clear()
        trap.set(*steps)
    for node in NODES:
        world.execution(f"room-{node}", nodeSelector={HOST: node}, workspace={"medium": "Disk"})
    for node in NODES:
        arena.sight.until(f"room-{node}", runs)
        inside = {"executionRef": {"name": f"room-{node}"}, **ONCE}
        world.process(f"inside-{node}", shell="echo ran >> ran; cat ran", **inside)
    for node in NODES:
        status = world.finished(f"inside-{node}", kind="process")
        assert (outcome(status)[1], status["output"]["stdoutTail"]) == ("Succeeded", RAN.decode())
    for node in NODES:
        own = {"template": a_template(nodeSelector={HOST: node}, workspace={"medium": "Disk"})}
        script = "mkdir -p out; echo ran >> out/ran; cat out/ran"
        world.process(f"own-{node}", shell=script, artifacts=[{"glob": "out/*"}], **own, **ONCE)
    for node in NODES:
        status = world.finished(f"own-{node}", kind="process")
        assert (outcome(status)[1], status["output"]["stdoutTail"]) == ("Succeeded", RAN.decode())
        digest = f"sha256:{hashlib.sha256(RAN).hexdigest()}"
        assert status["artifacts"] == [{"path": "out/ran", "size": len(RAN), "digest": digest}]
    for trap, *steps in zip(traps, OF_PROCESSES[:2], OF_PROCESSES[2:], strict=True):
        assert trap.sprung() == steps
    world.kubectl("delete", "processes", "--all", "--timeout=120s")
    world.kubectl("delete", "executions", "--timeout=120s", *(f"room-{node}" for node in NODES))
    arena.judge()


# The operator. What a scenario does not reach in the life of an Execution has one of its own.

IN_A_LIFE = (
    Effect.BIND,
    Effect.AGENT_PUT,
    Effect.STATUS,
    Effect.AGENT_AMEND,
    Effect.AGENT_REMOVE,
    Effect.RELEASE,
)
"""In the order in which an Execution comes to them."""


def sides(which: str) -> tuple[str, ...]:
    """One side of each effect in a life; the other life has the other sides."""
    dice, other = chance("life"), {"before": "after", "after": "before"}
    chosen = {effect: dice.choice(("before", "after")) for effect in IN_A_LIFE}
    if which != "one":
        chosen = {effect: other[side] for effect, side in chosen.items()}
    return tuple(f"{effect}.{side}" for effect, side in chosen.items())


def in_a_life(arena: Arena, which: str) -> None:
    """Work of every kind, the operator killed at one side of each effect on the way."""
    arena.trap(OPERATOR).set(*sides(which))
    with through(arena, which):
        arena.perform([w for n in (0, 1) for w in mix(NODES[n], f"{which}-{n}", chance(which))])


def at_its_start(arena: Arena) -> None:
    """An operator that is killed at each attempt to become leader."""
    arena.trap(OPERATOR).set(*both(Effect.LEASE_ACQUIRE))
    arena.world.stack.kill(OPERATOR)


def while_it_idles(arena: Arena) -> None:
    arena.trap(OPERATOR).set(*both(Effect.LEASE_RENEW))


def while_it_ends(arena: Arena) -> None:
    """Told to end, it is killed while it hands over the lease."""
    trap = arena.trap(OPERATOR)
    trap.set(*both(Effect.LEASE_RELEASE))
    for left in (1, 0):
        arena.keeper.lease_held()
        process = arena.world.stack.process(OPERATOR)
        assert process is not None
        process.signal(signal.SIGTERM)
        eventually("it dies of the trap", lambda left=left: len(trap.sprung()) == 2 - left)
        eventually("it is dead", lambda process=process: not process.alive())


def at_a_node(arena: Arena) -> None:
    """A node is closed and opened while the operator is killed at what it says of it."""
    arena.trap(OPERATOR).set(*both(Effect.NODE_STATUS))
    for closed, reason in ((True, "Cordoned"), (False, "NodeReady")):
        arena.world.patch("executionnode", "node-1", {"spec": {"unschedulable": closed}})
        arena.world.until(
            "executionnode", "node-1", lambda o, r=reason: condition(o, "Ready")["reason"] == r
        )


def at_an_event(arena: Arena) -> None:
    """Failures are told in Events; a killed operator may owe one, and nothing else."""
    trap = arena.trap(OPERATOR)
    for number, step in enumerate(both(Effect.EVENT)):
        trap.set(step)
        work = mix(NODES[number], f"event-{number}", chance("event"))[1]
        arena.perform([work])
        trap.until_sprung()


def at_an_expiry(arena: Arena) -> None:
    """Objects whose time to live is over are deleted once."""
    arena.trap(OPERATOR).set(*both(Effect.OBJECT_DELETE))
    arena.world.execution("brief", "true", ttlSecondsAfterFinished=1)
    arena.trap(OPERATOR).until_sprung(120)
    arena.world.gone("execution", "brief")


def at_a_release_by_force(arena: Arena) -> None:
    """Given up by an administrator: a tombstone stays, and by it the sandbox still goes."""
    arena.trap(OPERATOR).set(*both(Effect.TOMBSTONE_WRITE))
    arena.world.execution("given-up", "sleep", "300", workspace={"medium": "Disk"})
    uid = arena.sight.until("given-up", runs)["metadata"]["uid"]
    arena.world.kubectl("annotate", "execution", "given-up", "isolet.dev/force-release=test")
    arena.world.delete("execution", "given-up")
    arena.sight.until("given-up", lambda o: o is None)
    kept = [stone for stone in tombstones(arena.world) if stone["uid"] == uid]
    assert [(stone["cause"], stone["detail"]) for stone in kept] == [("Forced", "test")]


def at_an_old_tombstone(arena: Arena) -> None:
    """One that has waited for longer than a month is forgotten."""
    arena.trap(OPERATOR).set(*both(Effect.TOMBSTONE_DELETE))
    uid = str(uuid.uuid4())
    bury(arena.world, uid, "node-7", "2020-01-01T00:00:00Z")
    arena.world.stack.kill(OPERATOR)
    arena.trap(OPERATOR).until_sprung()
    eventually(
        "the tombstone is gone",
        lambda: uid not in [stone["uid"] for stone in tombstones(arena.world)],
    )


def at_a_stray(arena: Arena) -> None:
    """A container and a volume that no record knows, of an object that was given up."""
    uid, witness = str(uuid.uuid4()), arena.world.witness("node-0")
    labels = [f"dev.isolet.installation={arena.world.stack.installation}", f"dev.isolet.uid={uid}"]
    flags = [word for label in labels for word in ("--label", label)]
    witness.docker("volume", "create", *flags, f"stray-{uid}")
    witness.docker("create", *flags, "--name", f"stray-{uid}", os.environ["ISOLET_IMAGE_SHELL"])
    bury(arena.world, uid, "node-0", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    arena.trap(OPERATOR).set(*both(Effect.AGENT_REMOVE_STRAYS))
    arena.world.stack.kill(OPERATOR)
    arena.trap(OPERATOR).until_sprung(300)


def at_a_grant(arena: Arena) -> None:
    """A session that starts from what another had on the other node, which lets it read that."""
    world = arena.world
    arena.trap(OPERATOR).set(*both(Effect.AGENT_GRANT))
    a_session(world, "giver", **on("node-0"))
    inside(world, "giver", "echo given > gift")
    a_checkpoint(world, "gift", "giver")
    taken(world, "gift")
    a_restore(world, "taker", "gift", **on("node-1"))
    ready(world, "taker")
    assert inside(world, "taker", "cat gift") == "given\n"
    world.kubectl("delete", "executions", "giver", "taker", "--timeout=120s")
    world.kubectl("delete", "checkpoint", "gift", "--timeout=120s")


def at_a_pool(arena: Arena) -> None:
    """A class with a warm pool comes and goes; the operator is killed as it tells the nodes."""
    trap, image = arena.trap(OPERATOR), os.environ["ISOLET_IMAGE_SHELL"]
    trap.set(*both(Effect.AGENT_PUT_POOLS))
    images = {"allowed": [image], "default": image}
    arena.world.apply(a_class("pooled", images=images, warmPool={"size": 1}))
    for node in NODES:
        arena.world.until("executionnode", node, lambda o: pooled(o) == [("pooled", 1)], 300)
    trap.until_sprung()
    arena.world.delete("executionclass", "pooled")
    for node in NODES:
        arena.world.until("executionnode", node, lambda o: not pooled(o), 300)


def pooled(node: Object | None) -> list[tuple[str, int]]:
    """Classes and ready slots of a node's warm pools."""
    pools = (node or {}).get("status", {}).get("pools") or ()
    return [(pool["className"], pool["ready"]) for pool in pools]


def bury(world: World, uid: str, node: str, when: str) -> None:
    """Write a tombstone as an operator of another day would have."""
    stone = {"uid": uid, "namespace": world.namespace, "name": "gone", "node": node}
    stone |= {"cause": "Forced", "detail": "", "writtenAt": when}
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"isolet-tombstone-{names.short_digest(uid, node)}",
            "labels": {"isolet.dev/tombstone": "true"},
        },
        "data": {"tombstone.json": json.dumps(stone)},
    }
    world.stack.kube("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(document))


def both(effect: Effect) -> tuple[str, str]:
    """The steps right before and right after an effect."""
    return effect.before, effect.after


SCENARIOS: dict[str, tuple[Callable[[Arena], None], tuple[str, ...]]] = {
    "in a life": (lambda arena: in_a_life(arena, "one"), sides("one")),
    "in another life": (lambda arena: in_a_life(arena, "other"), sides("other")),
    "at its start": (at_its_start, both(Effect.LEASE_ACQUIRE)),
    "while it idles": (while_it_idles, both(Effect.LEASE_RENEW)),
    "while it ends": (while_it_ends, both(Effect.LEASE_RELEASE)),
    "at a node": (at_a_node, both(Effect.NODE_STATUS)),
    "at an event": (at_an_event, both(Effect.EVENT)),
    "at an expiry": (at_an_expiry, both(Effect.OBJECT_DELETE)),
    "at a release by force": (at_a_release_by_force, both(Effect.TOMBSTONE_WRITE)),
    "at an old tombstone": (at_an_old_tombstone, both(Effect.TOMBSTONE_DELETE)),
    "at a grant": (at_a_grant, both(Effect.AGENT_GRANT)),
    "at a pool": (at_a_pool, both(Effect.AGENT_PUT_POOLS)),
    "at a stray": (at_a_stray, both(Effect.AGENT_REMOVE_STRAYS)),
}
"""What is done, and the steps at which the operator is killed in it."""


def test_every_step_of_the_operator_has_its_scenario() -> None:
    assert sorted(step for _, steps in SCENARIOS.values() for step in steps) == sorted(STEPS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_operator_is_killed(arena: Arena, scenario: str) -> None:
    perform, steps = SCENARIOS[scenario]
    trap = arena.trap(OPERATOR)
    trap.clear()
    perform(arena)
    trap.until_sprung()
    assert sorted(trap.sprung()) == sorted(steps)
    arena.keeper.lease_held()
    arena.judge()
