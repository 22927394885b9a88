"""Engines that are killed while work starts, runs and ends, and one that hangs."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.faults_arena import (
    HOST,
    TAIL,
    Arena,
    Sandbox,
    arena_of,
    chance,
    cluster,
    counting,
    counting_until,
    eventually,
    numbers,
    runs,
)
from tests.e2e.faults_processes import has_started
from tests.e2e.faults_watch import doubles, verdict
from tests.e2e.world import World, a_template, condition, is_finished

pytestmark = pytest.mark.faults

LENGTHS = ("ends", "goes-on")
"""While the engine is away, and after that."""

UNDECIDED = {"StartUnconfirmed", "ContainerLost", "StartFailed"}
"""What may be said, and nothing else, of work whose start the engine took with it."""


def on(node: str) -> dict[str, object]:
    """Spec of work for one node, with its output shown."""
    return {"nodeSelector": {HOST: node}, "output": TAIL}


def let_go(world: World, node: str, sandbox: Sandbox, gate: str) -> None:
    """Make the file that a program waits for, by the runtime alone: its engine may be dead."""
    root = next(world.stack.layout.node(int(node[-1])).exec_root.glob("runtime-*/moby"))
    command = ["runsc", "--root", str(root), "exec", sandbox.id, "touch", f"/tmp/{gate}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_engines_are_killed_while_work_starts_runs_and_ends(world: World, tmp_path: Path) -> None:
    dice = chance("engine")
    with arena_of(world, tmp_path) as arena:
        arena.settle_in()
        ends: dict[str, Sandbox] = {}
        for node in arena.nodes:
            world.execution(f"ends-{node}", *counting_until("go"), **on(node))
        for node in arena.nodes:
            seen = arena.sight.until(f"ends-{node}", runs)
            ends[node] = Sandbox.of(world.witness(node), seen["metadata"]["uid"])
        starting = start_some(arena, dice.randint(3, 5))
        # Somewhere on their way from the create to the first line.
        first = arena.sight.until(starting[0], lambda o: o and o["spec"].get("nodeName"))
        assert first
        for node in dice.sample(arena.nodes, len(arena.nodes)):
            cluster("kill", f"dockerd-{node[-1]}")
        for node, sandbox in ends.items():
            assert not sandbox.ended()
            let_go(world, node, sandbox, "go")
            eventually(f"ends-{node} ends", sandbox.ended)
        for node in arena.nodes:
            cluster("restart", f"dockerd-{node[-1]}")
        for node in arena.nodes:
            seen = arena.sight.until(f"ends-{node}", is_finished)
            assert verdict(seen)[:2] == ("True", "Succeeded"), verdict(seen)
            assert seen["status"]["output"]["incomplete"], "the end of its output was not seen"
        for name in starting:
            told = verdict(arena.sight.until(name, is_finished, 120))
            assert told[:2] == ("True", "Succeeded") or told[1] in UNDECIDED, (name, told)
        assert doubles(arena.tapes) == {}
        names = [*starting, *(f"ends-{node}" for node in arena.nodes)]
        world.kubectl("delete", "executions", "--wait=true", "--timeout=120s", *names)
        arena.judge()
        arena.end_standing(whole=False)


def test_an_engine_is_killed_under_processes(world: World, tmp_path: Path) -> None:
    """Those that go on and those that end while it is away, in sandboxes of their own and inside.

    What ends inside keeps its output and exit code in its session; of a sandbox's own end the
    engine has the code, and of its last lines nobody has anything: that is said.
    """
    with arena_of(world, tmp_path) as arena:
        world.execution("room", **on("node-0"))
        session = arena.sight.until("room", runs)["metadata"]["uid"]
        witness = world.witness("node-0")
        room = Sandbox.of(witness, session)
        memory = {"workspace": {"medium": "Memory"}}
        places = {
            "own": {"template": a_template(nodeSelector={HOST: "node-0"}, **memory)},
            "inside": {"executionRef": {"name": "room"}},
        }
        for length in LENGTHS:
            for place, where in places.items():
                count = counting_until(length, "echo end; exit 3")[-1]
                script = f"echo {place}-{length} >> ran; {count}"
                world.process(
                    f"{place}-{length}", shell=script, timeoutSeconds=600, output=TAIL, **where
                )
        uids = {}
        for name in (f"{place}-{length}" for length in LENGTHS for place in places):
            uids[name] = arena.processes.until(name, has_started)["metadata"]["uid"]
        own = {n: Sandbox.of(witness, uids[f"own-{n}"]) for n in LENGTHS}
        cluster("kill", "dockerd-0")
        for sandbox in (own["ends"], room):
            let_go(world, "node-0", sandbox, "ends")
        eventually("the short one ends", own["ends"].ended)
        cluster("restart", "dockerd-0")
        assert not own["goes-on"].ended()
        for sandbox in (own["goes-on"], room):
            let_go(world, "node-0", sandbox, "goes-on")
        for name, uid in uids.items():
            seen = arena.processes.until(name, is_finished, 120)
            assert (*verdict(seen)[:2], verdict(seen)[3]) == ("False", "NonZeroExit", 3), name
            told = seen["status"]["output"]
            assert bool(told.get("incomplete")) is (name == "own-ends"), (name, told)
            if name != "own-ends":
                said = told["stdoutTail"]
                assert said == numbers(len(said.split()) - 1) + "end\n", (name, said)
            starts = arena.tapes["node-0"].starts(uid)
            assert starts == (1 if name.startswith("own") else 0), (name, starts)
        assert Sandbox.of(witness, session) == room
        ran = witness.docker("exec", room.id, "cat", "/workspace/ran")
        assert sorted(ran.split()) == ["inside-ends", "inside-goes-on"]
        assert doubles(arena.tapes) == {}
        world.kubectl("delete", "processes", "--wait=true", "--timeout=120s", *uids)
        world.kubectl("delete", "execution", "--wait=true", "--timeout=120s", "room")
        arena.judge()


def start_some(arena: Arena, count: int) -> list[str]:
    """Work on both nodes that is on its way now."""
    names = [f"starts-{number}" for number in range(count)]
    for number, name in enumerate(names):
        arena.world.execution(name, *counting(3), **on(arena.nodes[number % len(arena.nodes)]))
    return names


def test_an_engine_that_hangs_during_a_cancel_and_a_delete(world: World, tmp_path: Path) -> None:
    with arena_of(world, tmp_path) as arena:
        arena.settle_in()
        for name in ("cancelled", "deleted"):
            world.execution(name, "sleep", "300", workspace={"medium": "Disk"}, **on("node-0"))
        for name in ("cancelled", "deleted"):
            arena.sight.until(name, runs)
        cluster("freeze", "dockerd-0")
        try:
            world.patch("execution", "cancelled", {"spec": {"desiredState": "Terminated"}})
            world.delete("execution", "deleted")
            told = arena.sight.until("cancelled", waits_for_the_engine, 120)
            assert condition(told, "Finished").get("status") != "True"
            arena.sight.until("deleted", says_why_it_stays, 120)
            world.execution("elsewhere", *counting(2), **on("node-1"))
            assert verdict(arena.sight.until("elsewhere", is_finished))[1] == "Succeeded"
        finally:
            cluster("thaw", "dockerd-0")
        seen = arena.sight.until("cancelled", is_finished)
        assert verdict(seen)[:2] == ("False", "Cancelled"), verdict(seen)
        arena.sight.until("deleted", lambda o: o is None)
        world.kubectl("delete", "executions", "--wait=true", "cancelled", "elsewhere")
        arena.judge()
        arena.end_standing()


def waits_for_the_engine(seen: dict[str, object] | None) -> bool:
    """Whether the status says that an end was asked for and what it waits for."""
    told = condition(seen, "Succeeded")
    return told.get("reason") in ("EngineUnavailable", "CancelUnverified") and (
        "not confirmed" in told["message"] or "cannot be confirmed" in told["message"]
    )


def says_why_it_stays(seen: dict[str, object] | None) -> bool:
    """Whether a deletion that waits says for which node."""
    told = condition(seen, "Stalled")
    return told.get("reason") == "AwaitingNode" and "node-0" in told["message"]
