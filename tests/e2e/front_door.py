"""Front doors for e2e tests: processes of `isolet apiserver`, and the class that they serve."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from isolet_stack.stack import NAMESPACE, ROOT
from tests.e2e.world import Object, World

TOKEN = "t" * 40
FRONT = "isolet-apiserver"


class FrontDoor:
    """An `isolet apiserver` process with its own service account's rights."""

    def __init__(self, world: World, folder: Path, class_name: str) -> None:
        self.world, self.folder, self.class_name = world, folder, class_name
        self.port = self.starts = 0
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
        """Start the process, and wait until it serves."""
        argv = [
            *(*self.world.stack.command, "apiserver", "--namespace", self.world.namespace),
            *("--class", self.class_name, "--token-file", str(self.folder / "token")),
            *("--kubeconfig", str(self.folder / "kubeconfig"), "--port", "0"),
            *("--agent-tls-dir", str(self.certificate), "--require", "run_id"),
        ]
        self.starts += 1
        log = self.folder / f"log-{self.starts}"
        with log.open("wb") as output:
            environment = self.world.stack.environment({})
            self.process = subprocess.Popen(argv, stderr=output, stdout=output, env=environment)
        deadline = time.monotonic() + 120
        while not (found := re.search(r'"port": (\d+)[,}]', log.read_text())):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        self.port = int(found.group(1))

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait for its end."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        self.process.wait(120)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and body of an answer."""
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


def runner_class(name: str, size: int) -> Object:
    """The class of examples/class-runner.yaml, for every namespace, with `size` slots a node."""
    found: Object = next(yaml.safe_load_all((ROOT / "examples" / "class-runner.yaml").read_text()))
    found["metadata"]["name"] = name
    found["spec"]["namespaceSelector"] = {}
    found["spec"]["warmPool"]["size"] = size
    return found
