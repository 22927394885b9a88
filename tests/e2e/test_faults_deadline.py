"""A deadline holds without the agent, without the engine, and against a tenant that fights.

Timed by those who look on alone: the engine's own word of start and end, or, where the engine is
dead too, the host's /proc.
"""

import datetime
import re
import time
from collections.abc import Iterator

import pytest

from tests.e2e.faults_arena import HOST, TAIL, Sandbox, ask_agent, cluster, eventually, numbers
from tests.e2e.faults_watch import Tape, tapes
from tests.e2e.looks import outcome
from tests.e2e.world import World, a_template, condition

pytestmark = pytest.mark.faults

SECONDS = 30
"""Enough for a busy machine to start all of them and to kill who could end them in time."""
CLAIM = 5.0
"""How long after its deadline a sandbox is dead at the latest."""

SAY = "for i in 1 2 3; do echo $i; done; "
BURN = "(while :; do :; done) & "
HOSTILE = {
    # Stops every process but itself again and again: the guard, and what waits for signals.
    "stops": SAY + BURN + "while :; do kill -STOP -1; done",
    # Kills everything but PID 1 and itself, deaf to every signal that can be ignored.
    "kills": SAY
    + "trap '' TERM INT HUP QUIT USR1 USR2; while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; "
    + '[ "$p" = 1 ] || [ "$p" = $$ ] || kill -9 "$p"; done; done 2>/dev/null',
    # Stops PID 1 too, so that no signal to it is ever acted upon inside.
    "freezes": SAY + "kill -STOP 1; " + BURN + "while :; do :; done",
}
STUBBORN = {
    "own": HOSTILE["kills"],
    # One that ends its session's main process, or stops it, has ended itself.
    "inside": SAY + "trap '' TERM INT HUP QUIT USR1 USR2; while :; do :; done",
}


@pytest.fixture
def listening(world: World) -> Iterator[dict[str, Tape]]:
    witnesses = {node: world.witness(node) for node in world.stack.nodes()}
    with tapes(witnesses, world.stack.installation) as running:
        yield running


def seconds_of(text: str) -> float:
    """A time as the engine writes it, with its nine digits."""
    cut = re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", text)
    return datetime.datetime.fromisoformat(cut).timestamp()


def begin(world: World, node: str) -> None:
    """All hostile tenants on a node."""
    for name, script in HOSTILE.items():
        world.execution(
            f"{name}-{node}",
            *("sh", "-c", script),
            nodeSelector={HOST: node},
            activeDeadlineSeconds=SECONDS,
            output=TAIL,
        )


def begun(world: World, node: str) -> dict[str, Sandbox]:
    """Those, by name; they run, and what they say the engine has written down."""
    found, witness = {}, world.witness(node)
    for name in (f"{name}-{node}" for name in HOSTILE):
        found[name] = Sandbox.of(witness, world.running(name)["metadata"]["uid"])
    for name, sandbox in found.items():
        eventually(
            f"the engine has what {name} said",
            lambda ident=sandbox.id: numbers(3).strip() in witness.docker("logs", ident),
        )
    return found


def dead_at(sandboxes: dict[str, Sandbox], seconds: float) -> dict[str, float]:
    """When each sandbox's process on the host was seen to be gone; all are looked at by turns."""
    deadline, found = time.time() + seconds, {}
    while left := sandboxes.keys() - found.keys():
        found |= {name: time.time() for name in left if sandboxes[name].ended()}
        assert time.time() < deadline, f"{left} live on"
        time.sleep(0.02)
    return found


def late(sandbox: Sandbox, at: float) -> float:
    """Seconds between the deadline and the end."""
    return at - seconds_of(sandbox.started) - SECONDS


def test_a_process_is_ended_without_the_agent_and_keeps_its_output(
    world: World, listening: dict[str, Tape]
) -> None:
    """In a sandbox of its own and in a session, which the watchdog ends with it."""
    world.execution("room", nodeSelector={HOST: "node-1"})
    session = world.running("room")
    places = {
        "own": {"template": a_template(nodeSelector={HOST: "node-0"})},
        "inside": {"executionRef": {"name": "room"}},
    }
    for name, place in places.items():
        bounds = {"timeoutSeconds": SECONDS, "output": TAIL}
        world.process(name, shell=STUBBORN[name], **place, **bounds)
    deadlines, uids = {}, {}
    for name in places:
        seen = world.until("process", name, lambda o: o and o.get("status", {}).get("startTime"))
        node, uids[name] = seen["spec"]["nodeName"], seen["metadata"]["uid"]
        path = f"/v1/processes/{uids[name]}/output/stdout"
        eventually(
            f"the agent has what {name} said",
            lambda n=node, p=path: ask_agent(world.stack, n, p).decode() == numbers(3),
        )
        # The status has whole seconds: an end looks later by less than one, never earlier.
        deadlines[name] = seconds_of(seen["status"]["startTime"]) + SECONDS
    for node in world.stack.nodes():
        world.stack.kill(f"agent-{node}")
    sandboxes = {"own": ("node-0", uids["own"]), "inside": ("node-1", session["metadata"]["uid"])}
    lateness = {}
    for name, (node, uid) in sandboxes.items():
        told = listening[node].until("die", uid, SECONDS + 60)
        lateness[name] = told.at - deadlines[name]
    print("seconds after the deadline:", lateness)
    assert not any(world.stack.alive(f"agent-{node}") for node in world.stack.nodes())
    assert all(-0.5 < seconds <= CLAIM for seconds in lateness.values()), lateness
    world.stack.start_missing()
    for name in places:
        status = world.finished(name, kind="process")
        assert outcome(status) == ("False", "DeadlineExceeded"), (name, status)
        assert status["output"]["stdoutTail"] == numbers(3), (name, status)
    room = world.finished("room")
    assert outcome(room) == ("False", "DeadlineExceeded"), room
    assert (
        f"Process inside: ran longer than {SECONDS} s"
        in condition({"status": room}, "Ready")["message"]
    )


def test_without_the_agent_and_without_the_engine(world: World, listening: dict[str, Tape]) -> None:
    for node in world.stack.nodes():
        begin(world, node)
    alone, bare = begun(world, "node-0"), begun(world, "node-1")
    world.stack.kill("agent-node-0")
    world.stack.kill("agent-node-1")
    cluster("kill", "dockerd-1")
    ends = dead_at(bare, SECONDS + 60)
    lateness = {name: late(bare[name], at) for name, at in ends.items()}
    for name, sandbox in alone.items():
        told = listening["node-0"].until("die", sandbox.uid, SECONDS + 60)
        lateness[name] = late(sandbox, told.at)
    print("seconds after the deadline:", lateness)
    cluster("restart", "dockerd-1")
    assert not world.stack.alive("agent-node-0")
    assert all(-0.5 < seconds <= CLAIM for seconds in lateness.values()), lateness
    world.stack.start_missing()
    for name in (*alone, *bare):
        status = world.finished(name)
        assert outcome(status) == ("False", "DeadlineExceeded"), (name, status)
        assert status["output"]["stdoutTail"] == numbers(3)
    for name in alone:
        assert not world.finished(name)["output"].get("incomplete"), name
