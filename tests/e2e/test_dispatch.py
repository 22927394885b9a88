"""The whole way of a dispatch: caller, front door, API server, agent, gVisor, and back."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolet.apiserver.kubernetes import object_name
from tests.e2e.front_door import TOKEN, FrontDoor, runner_class
from tests.e2e.world import World


@pytest.fixture
def front(world: World, tmp_path: Path) -> Iterator[FrontDoor]:
    name = f"runner-{world.namespace}"
    world.stack.kube("apply", "-f", "-", stdin=json.dumps(runner_class(name, 1)))
    door = FrontDoor(world, tmp_path, name)
    door.start()
    yield door
    door.kill()
    world.stack.kube("delete", "executionclass", name)


def test_a_dispatch_in_three_writes(front: FrontDoor, world: World) -> None:
    status, text = front.execute("run-1", {"echo": 41}, {"echo": 42})
    assert (status, json.loads(text)["result"]) == (200, 42)
    name = object_name("run-1")
    told = world.finished(name)
    succeeded = next(c for c in told["conditions"] if c["type"] == "Succeeded")
    assert (succeeded["status"], succeeded["reason"]) == ("True", "Succeeded")
    assert front.execute("run-1", {"echo": 1})[0] == 409
    _, events = front.call("GET", "/execute/run-1/events?after=1")
    assert [json.loads(line)["sequence"] for line in events.splitlines()] == [2, 3]
    world.delete("execution", name, wait=True)
    writes = [
        f"{e['verb']} {e['objectRef'].get('subresource', '')}".strip()
        for e in world.audit()
        if e["stage"] == "ResponseComplete"
        and e["verb"] not in ("get", "list", "watch")
        and e["objectRef"].get("resource") == "executions"
        and e["objectRef"].get("namespace") == world.namespace
        and e["responseStatus"]["code"] < 300
    ]
    assert writes == ["create", "patch status", "delete"]


def stream(front: FrontDoor, run_id: str) -> subprocess.Popen[bytes]:
    """A caller of a run that takes some seconds; its first event has come."""
    steps = [{"echo": 1}, {"sleep": 3}, {"echo": 2}]
    body = json.dumps({"run_id": run_id, "payload": steps})
    token = f"X-Execution-Manager-Token: {TOKEN}"
    url = f"http://127.0.0.1:{front.port}/execute/stream"
    deadline = time.monotonic() + 120
    while True:
        argv = ["curl", "-sN", "-H", token, "--data-binary", body, url]
        running = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert running.stdout is not None
        first = json.loads(running.stdout.readline())
        if first.get("reason") != "NoCapacity":
            assert first.get("sequence") == 1, first
            return running
        running.communicate(timeout=120)
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_front_door_that_is_killed_loses_no_run(front: FrontDoor, world: World) -> None:
    running = stream(front, "run-2")
    front.kill()
    running.communicate(timeout=120)
    front.start()
    _, events = front.call("GET", "/execute/run-2/events?after=1")
    assert [json.loads(line).get("sequence") for line in events.splitlines()] == [2, 3, 4]
    assert world.finished(object_name("run-2"))


def test_an_agent_that_is_killed_loses_no_run(front: FrontDoor, world: World) -> None:
    running = stream(front, "run-3")
    node = (world.get("execution", object_name("run-3")) or {})["spec"]["nodeName"]
    world.stack.kill(f"agent-{node}")
    world.stack.start_agent(node)
    output, _ = running.communicate(timeout=120)
    rest = [json.loads(line) for line in output.splitlines()]
    assert [line["sequence"] for line in rest if "sequence" in line] == [2, 3, 4]
    assert rest[-1]["event_type"] == "completed"


def test_cancelled_and_cancelled_ahead(front: FrontDoor, world: World) -> None:
    status, text = front.call("DELETE", "/execute/ahead")
    assert (status, json.loads(text)["containers_removed"]) == (200, 0)
    status, _ = front.execute("ahead", {"echo": 1})
    assert status == 409
    assert world.finished(object_name("ahead"))


def test_it_drains_and_then_goes(front: FrontDoor) -> None:
    assert front.call("GET", "/ready")[0] == 200
    front.kill(signal.SIGTERM)
    assert front.process is not None
    assert front.process.returncode == 0
