"""The front door as a process with its own rights, and a caller of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from isolet_cluster.errors import ClusterError
from isolet_stack.stack import NAMESPACE as SYSTEM
from isolet_stack.stack import ROOT

from .place import NAMESPACE, Place
from .slots import AGAIN, RUNNERS, document

_TOKEN = "b" * 40
_ACCOUNT = "isolet-apiserver"
_SECONDS = 60.0
CAPACITY = 32
"""More than come at once: what is measured is not a queue in front of the door."""


@contextlib.contextmanager
def front_door(place: Place) -> Iterator[str]:
    """Start `isolet apiserver` for the class with runners; yields its URL, and ends it."""
    with tempfile.TemporaryDirectory(prefix="isolet-bench-") as name:
        folder = Path(name)
        argv, environment = _prepared(place, folder), place.stack.environment({})
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(argv, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        try:
            yield f"http://127.0.0.1:{_port(process, folder / 'log')}"
        finally:
            process.kill()
            process.wait(30)


def _prepared(place: Place, folder: Path) -> list[str]:
    """Rights, credentials and command line."""
    stack = place.stack
    (folder / "token").write_text(_TOKEN)
    rbac = (ROOT / "deploy" / "apiserver" / "rbac.yaml").read_text()
    stack.kube("apply", "-f", "-", stdin=rbac.replace("namespace: runs", f"namespace: {NAMESPACE}"))
    token = stack.kube("create", "token", _ACCOUNT, "-n", SYSTEM).strip()
    config = json.loads(stack.kube("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    (folder / "kubeconfig").write_text(json.dumps(config))
    certificate = stack.pki / "clients" / "dispatch"
    if not (certificate / "tls.crt").exists():
        stack.isolet("pki", "client", str(stack.pki), "isolet:dispatch")
    return [
        *(*stack.command, "apiserver", "--namespace", NAMESPACE, "--class", RUNNERS),
        *("--token-file", str(folder / "token"), "--kubeconfig", str(folder / "kubeconfig")),
        *("--port", "0", "--agent-tls-dir", str(certificate), "--require", "run_id"),
        *("--capacity", str(CAPACITY)),
    ]


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _SECONDS
    while not (found := re.search(r'"port": (\d+)', log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError(f"the front door does not serve: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    return int(found.group(1))


class Caller:
    """Somebody who dispatches and reads events as they come."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.found_none = 0
        """Calls that were told to come again."""

    async def execute(self, word: str) -> float:
        """Dispatch a document that says the word; the time at which its first event came here."""
        headers = {"X-Execution-Manager-Token": _TOKEN}
        while True:
            async with self._session.post(
                "/execute/stream", data=document(word), headers=headers
            ) as answer:
                if answer.status in (429, 503):
                    self.found_none += 1
                    await asyncio.sleep(AGAIN)
                    continue
                if answer.status != 200:
                    raise ClusterError(f"the front door says {answer.status}")
                first, last = None, b""
                async for line in answer.content:
                    first, last = first or time.monotonic(), line
                if first is None or json.loads(last)["event_type"] != "completed":
                    raise ClusterError(f"a run has not succeeded: {last.decode()[:500]}")
                return first
