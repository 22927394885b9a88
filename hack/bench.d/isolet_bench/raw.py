"""The floor: the bare Engine API. Of Isolet it has the container's configuration and no more."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isolet.agent.engine.config import create_body
from isolet.agent.service import config, records
from isolet.agent.service.inputs import launch_script
from isolet.wire.execution import ExecutionSpec, ExecutionWanted
from isolet_cluster.errors import ClusterError

INSTALLATION = "bench-floor"
API = "/v1.41"
NONCE = "0123456789abcdef0123456789abcdef"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Raw:
    """One engine, on a kept connection for each thread."""

    socket_path: str
    folder: Path
    """On a tmpfs: launch folders, as the agent has them."""
    calls: int = 0
    _local: threading.local = field(default_factory=threading.local)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection: UnixConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = UnixConnection(self.socket_path)
        raw = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if raw else {}
        connection.request(method, API + path, raw, headers)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None

    def must(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.call(method, path, body)
        if status >= 400:
            raise ClusterError(f"{method} {path}: {status} {answer}")
        return answer

    def prepare(self, spec: ExecutionSpec) -> tuple[str, dict[str, object], Path]:
        """Name and body of a create call, and the launch folder it mounts, laid down already."""
        uid = str(uuid.uuid4())
        folder = self.folder / uid
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        script = folder / config.MAIN_SCRIPT
        script.write_bytes(launch_script(spec, NONCE))
        script.chmod(0o444)
        wanted = ExecutionWanted(
            uid=uid,
            namespace="bench",
            name=uid[:20],
            class_name="bench",
            spec=spec,
            active_deadline_seconds=spec.maximum_deadline_seconds,
        )
        record = records.new(wanted, "0" * 64, INSTALLATION, datetime.now(UTC))
        sandbox = config.sandbox(record, installation=INSTALLATION, launch_folder=str(folder))
        return sandbox.name, create_body(sandbox), folder

    def create(self, name: str, body: dict[str, object]) -> str:
        return str(self.must("POST", f"/containers/create?name={name}", body)["Id"])

    def start(self, container: str) -> None:
        self.must("POST", f"/containers/{container}/start")

    def wait(self, container: str) -> int:
        return int(self.must("POST", f"/containers/{container}/wait")["StatusCode"])

    def exec(self, container: str, argv: Sequence[str], user: str) -> tuple[int, bytes]:
        """Exit code and output of a command in a running container."""
        body = {"AttachStdout": True, "AttachStderr": True, "User": user, "Cmd": list(argv)}
        ident = self.must("POST", f"/containers/{container}/exec", body)["Id"]
        with contextlib.closing(UnixConnection(self.socket_path)) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"{API}/exec/{ident}/start", "{}", headers)
            output = connection.getresponse().read()
        while (seen := self.must("GET", f"/exec/{ident}/json"))["Running"]:
            time.sleep(0.001)
        return int(seen["ExitCode"]), _unframed(output)

    def remove(self, container: str, *, force: bool = False) -> None:
        self.must("DELETE", f"/containers/{container}?v=1&force={int(force)}")

    def inspect(self, name: str) -> dict[str, Any]:
        return dict(self.must("GET", f"/containers/{name}/json"))

    def of_uid(self, uid: str) -> dict[str, Any]:
        """The container that Isolet has made for an Execution."""
        filters = json.dumps({"label": [f"dev.isolet.uid={uid}"]})
        path = f"/containers/json?all=1&filters={quote(filters)}"
        found = self.must("GET", path)
        if len(found) != 1:
            raise ClusterError(f"{len(found)} containers for {uid}")
        return self.inspect(found[0]["Id"])

    def ours(self, installation: str) -> list[str]:
        """Ids of the containers of an installation, whatever their state."""
        filters = json.dumps({"label": [f"dev.isolet.installation={installation}"]})
        found = self.must("GET", f"/containers/json?all=1&filters={quote(filters)}")
        return [each["Id"] for each in found]

    def clear(self) -> None:
        """Remove what an interrupted run left."""
        for container in self.ours(INSTALLATION):
            self.remove(container, force=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unframed(data: bytes) -> bytes:
    """What stands in an engine's frames: a kind, three zeros, a length, so many bytes."""
    found = b""
    while data:
        size = int.from_bytes(data[4:8], "big")
        found, data = found + data[8 : 8 + size], data[8 + size :]
    return found


def same(ours: dict[str, Any], floor: dict[str, Any]) -> list[str]:
    """Where two containers' configurations differ, apart from what names them."""
    own = {"Labels", "Hostname"}
    differs = []
    for part in ("Config", "HostConfig"):
        for key in sorted(ours[part].keys() | floor[part].keys()):
            one, other = ours[part].get(key), floor[part].get(key)
            if key == "Mounts":
                one, other = [[{**m, "Source": ""} for m in mounts] for mounts in (one, other)]
            if key not in own and one != other:
                differs.append(f"{part}.{key}: {one} and {other}")
    return differs


def stamp(text: str) -> float:
    """An engine's time as seconds since 1970."""
    head, _, rest = text.rstrip("Z").partition(".")
    whole = datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp()
    return whole + float(f"0.{rest or 0}")


def on_memory(folder: Path) -> bool:
    """Whether a folder lies on a tmpfs."""
    device = os.stat(folder).st_dev
    minor, major = os.minor(device), os.major(device)
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = [line.split(" - ")[1].split()[0] for line in lines if f" {major}:{minor} " in line]
    return "tmpfs" in kinds
