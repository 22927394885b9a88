"""A real dockerd with runsc, as far as these tests need it."""

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from isolet.agent import deadlines
from isolet.agent.watchdog_engine import UnixConnection
from isolet.base import names

CLUSTER = Path(__file__).parents[3] / "hack" / "cluster"


def environment(name: str) -> str:
    """A variable of the test cluster; these tests are never skipped."""
    if not os.environ.get(name):
        pytest.fail(f'{name} is not set: hack/cluster up; eval "$(hack/cluster env)"')
    return os.environ[name]


@dataclass
class Daemon:
    """The first node's daemon; removes what was made through it."""

    socket: str = field(default_factory=lambda: environment("ISOLET_DOCKER_SOCKETS").split()[0])
    made: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = UnixConnection(self.socket, 30)
        try:
            raw = None if body is None else json.dumps(body)
            connection.request(method, path, raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None
        finally:
            connection.close()

    def run(
        self,
        name: str,
        command: list[str],
        *,
        installation: str = "test",
        image: str | None = None,
        **host: Any,
    ) -> str:
        """Create and start a sandbox as the agent would; returns its id."""
        config = {
            "Image": image or environment("ISOLET_IMAGE_SHELL"),
            "Cmd": command,
            "Entrypoint": [],
            "User": "65532:65532",
            "Labels": {names.LABEL_INSTALLATION: installation},
            "HostConfig": {
                "Runtime": "runsc",
                "Init": True,
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "ReadonlyRootfs": True,
                "PidsLimit": 512,
                "Memory": 256 << 20,
                **host,
            },
        }
        status, answer = self.call("POST", f"/containers/create?name={name}", config)
        assert status == 201, answer
        self.made.append(answer["Id"])
        status, answer = self.call("POST", f"/containers/{answer['Id']}/start")
        assert status == 204, answer
        return self.made[-1]

    def state(self, container: str) -> dict[str, Any]:
        status, answer = self.call("GET", f"/containers/{container}/json")
        assert status == 200, answer
        return dict(answer["State"])

    def output(self, container: str) -> bytes:
        """Raw stdout and stderr frames."""
        connection = UnixConnection(self.socket, 30)
        try:
            connection.request("GET", f"/containers/{container}/logs?stdout=1&stderr=1")
            return connection.getresponse().read()
        finally:
            connection.close()

    def wait_dead(self, container: str, seconds: float) -> float:
        """Boot time at which the engine first says that it does not run."""
        until = boottime() + seconds
        while self.state(container)["Running"]:
            assert boottime() < until, f"still runs {seconds} s later"
            time.sleep(0.05)
        return boottime()

    def clean(self) -> None:
        for container in self.made:
            if self.call("GET", f"/containers/{container}/json")[0] == 200:
                if self.state(container)["Paused"]:
                    self.call("POST", f"/containers/{container}/unpause")
                status, answer = self.call("DELETE", f"/containers/{container}?force=1")
                assert status in (204, 404), answer


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def cluster(action: str, part: str) -> None:
    """Do something to a part of the test cluster."""
    name = environment("ISOLET_CLUSTER")
    subprocess.run(
        [str(CLUSTER), action, "--name", name, part], check=True, capture_output=True, timeout=60
    )


def entry(daemon: Daemon, container: str, name: str, seconds: float) -> deadlines.Deadline:
    """The agent's entry for a running sandbox."""
    pid = daemon.state(container)["Pid"]
    return deadlines.Deadline(
        name=name,
        deadline_boottime=boottime() + seconds,
        boot_id=deadlines.boot_id(),
        container_id=container,
        pid=pid,
        pid_start=deadlines.start_of(pid) or 0,
    )
