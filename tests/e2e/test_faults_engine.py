"""Engines that are killed while work starts, runs and ends, and one that hangs."""

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
    eventually,
    numbers,
    runs,
)
from tests.e2e.faults_processes import has_started
from tests.e2e.faults_watch import doubles, verdict
from tests.e2e.world import World, a_template, condition, is_finished

pytestmark = pytest.mark.faults

UNDECIDED = {"StartUnconfirmed", "ContainerLost", "StartFailed"}
"""What may be said, and nothing else, of work whose start the engine took with it."""


def on(node: str) -> dict[str, object]:
    """Spec of work for one node, with its output shown."""
    return {"nodeSelector": {HOST: node}, "output": TAIL}


def ended(sandbox: Sandbox) -> bool:
    """Whether the sandbox's process on the host is gone."""
    return not Path(f"/proc/{sandbox.pid}/stat").exists()


def test_engines_are_killed_while_work_starts_runs_and_ends(world: World, tmp_path: Path) -> None:
    dice = chance("engine")
    with arena_of(world, tmp_path) as arena:
        arena.settle_in()
        ends: dict[str, Sandbox] = {}
        for node in arena.nodes:
            world.execution(f"ends-{node}", *counting(90), **on(node))
        for node in arena.nodes:
            seen = arena.sight.until(f"ends-{node}", runs)
            ends[node] = Sandbox.of(world.witness(node), seen["metadata"]["uid"])
        starting = start_some(arena, dice.randint(3, 5))
        # Somewhere on their way from the create to the first line.
        first = arena.sight.until(starting[0], lambda o: o and o["spec"].get("nodeName"))
        assert first
        for node in dice.sample(arena.nodes, len(arena.nodes)):
            cluster("kill", f"dockerd-{node[-1]}")
        assert not any(ended(sandbox) for sandbox in ends.values()), "too slow to mean anything"
        for node, sandbox in ends.items():
            eventually(f"ends-{node} ends", lambda s=sandbox: ended(s))
        for node in arena.nodes:
            cluster("restart", f"dockerd-{node[-1]}")
        for node in arena.nodes:
            seen = arena.sight.until(f"ends-{node}", is_finished, 90)
            assert verdict(seen)[:2] == ("True", "Succeeded"), verdict(seen)
            assert seen["status"]["output"]["incomplete"], "the end of its output was not seen"
        for name in starting:
            told = verdict(arena.sight.until(name, is_finished, 120))
            assert told[:2] == ("True", "Succeeded") or told[1] in UNDECIDED, (name, told)
        assert doubles(arena.tapes) == {}
        names = [*starting, *(f"ends-{node}" for node in arena.nodes)]
        world.kubectl("delete", "executions", "--wait=true", "--timeout=60s", *names)
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
        room = Sandbox.of(world.witness("node-0"), session)
        memory = {"workspace": {"medium": "Memory"}}
        places = {
            "own": {"template": a_template(nodeSelector={HOST: "node-0"}, **memory)},
            "inside": {"executionRef": {"name": "room"}},
        }
        lengths = {"ends": 60, "goes-on": 200}
        for length, count in lengths.items():
            for place, where in places.items():
                script = "; ".join(
                    (f"echo {place}-{length} >> ran", counting(count, end="exit 3")[-1])
                )
                world.process(
                    f"{place}-{length}", shell=script, timeoutSeconds=100, output=TAIL, **where
                )
        uids = {}
        for name in (f"{place}-{length}" for length in lengths for place in places):
            uids[name] = arena.processes.until(name, has_started)["metadata"]["uid"]
        own = {n: Sandbox.of(world.witness("node-0"), uids[f"own-{n}"]) for n in lengths}
        cluster("kill", "dockerd-0")
        assert not any(ended(sandbox) for sandbox in own.values()), "too slow to mean anything"
        eventually("the short one ends", lambda: ended(own["ends"]))
        cluster("restart", "dockerd-0")
        assert not ended(own["goes-on"]), "too slow to mean anything"
        for name, uid in uids.items():
            seen = arena.processes.until(name, is_finished, 120)
            assert (*verdict(seen)[:2], verdict(seen)[3]) == ("False", "NonZeroExit", 3), name
            told, count = seen["status"]["output"], lengths[name.split("-", 1)[1]]
            assert bool(told.get("incomplete")) is (name == "own-ends"), (name, told)
            if name != "own-ends":
                assert told["stdoutTail"] == numbers(count), name
            starts = arena.tapes["node-0"].starts(uid)
            assert starts == (1 if name.startswith("own") else 0), (name, starts)
        assert Sandbox.of(world.witness("node-0"), session) == room
        ran = world.witness("node-0").docker("exec", room.id, "cat", "/workspace/ran")
        assert sorted(ran.split()) == ["inside-ends", "inside-goes-on"]
        assert doubles(arena.tapes) == {}
        world.kubectl("delete", "processes", "--wait=true", "--timeout=60s", *uids)
        world.kubectl("delete", "execution", "--wait=true", "--timeout=60s", "room")
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
            told = arena.sight.until("cancelled", waits_for_the_engine, 60)
            assert condition(told, "Finished").get("status") != "True"
            arena.sight.until("deleted", says_why_it_stays, 60)
            world.execution("elsewhere", *counting(2), **on("node-1"))
            assert verdict(arena.sight.until("elsewhere", is_finished))[1] == "Succeeded"
        finally:
            cluster("thaw", "dockerd-0")
        seen = arena.sight.until("cancelled", is_finished, 90)
        assert verdict(seen)[:2] == ("False", "Cancelled"), verdict(seen)
        arena.sight.until("deleted", lambda o: o is None, 90)
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
