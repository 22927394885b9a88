"""The whole way of a dispatch: caller, front door, API server, agent, gVisor, and back."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from isolet.apiserver.kubernetes import object_name
from isolet_stack.stack import NAMESPACE, ROOT
from tests.e2e.world import World

TOKEN = "t" * 40
FRONT = "isolet-apiserver"


class FrontDoor:
    """An `isolet apiserver` process with its own service account's rights."""

    def __init__(self, world: World, folder: Path, class_name: str) -> None:
        self.world, self.folder, self.class_name = world, folder, class_name
        self.port = 0
        (folder / "token").write_text(TOKEN)
        stack = world.stack
        rbac = (ROOT / "deploy" / "apiserver" / "rbac.yaml").read_text()
        rbac = rbac.replace("namespace: runs", f"namespace: {world.namespace}")
        stack.kube("apply", "-f", "-", stdin=rbac)
        token = stack.kube("create", "token", FRONT, "-n", NAMESPACE).strip()
        config = json.loads(stack.kube("config", "view", "--raw", "--minify", "-o", "json"))
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        (folder / "kubeconfig").write_text(json.dumps(config))
        self.certificate = stack.pki / "clients" / "dispatch"
        if not (self.certificate / "tls.crt").exists():
            stack.isolet("pki", "client", str(stack.pki), "isolet:dispatch")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [
            *(*self.world.stack.command, "apiserver", "--namespace", self.world.namespace),
            *("--class", self.class_name, "--token-file", str(self.folder / "token")),
            *("--kubeconfig", str(self.folder / "kubeconfig"), "--port", "0"),
            *("--agent-tls-dir", str(self.certificate), "--require", "run_id"),
        ]
        log = self.folder / "log"
        with log.open("wb") as output:
            environment = self.world.stack.environment({})
            self.process = subprocess.Popen(argv, stderr=output, stdout=output, env=environment)
        deadline = time.monotonic() + 120
        while not (found := re.search(r'"port": (\d+)', log.read_text())):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        self.port = int(found.group(1))

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        self.process.wait(120)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=data,
            method=method,
            headers={"X-Execution-Manager-Token": TOKEN},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def execute(self, run_id: str, *steps: dict[str, Any], path: str = "/execute") -> Any:
        """Sent again only where the answer says that nothing was begun."""
        deadline = time.monotonic() + 120
        while True:
            status, text = self.call("POST", path, {"run_id": run_id, "payload": list(steps)})
            if status != 429 or time.monotonic() > deadline:
                return status, text
            time.sleep(0.2)


@pytest.fixture
def front(world: World, tmp_path: Path) -> Iterator[FrontDoor]:
    found = next(yaml.safe_load_all((ROOT / "examples" / "class-runner.yaml").read_text()))
    name = f"runner-{world.namespace}"
    found["metadata"]["name"] = name
    found["spec"]["namespaceSelector"] = {}
    found["spec"]["warmPool"]["size"] = 1
    world.stack.kube("apply", "-f", "-", stdin=json.dumps(found))
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
