"""A node whose agent is a few lines of this file: it has a real certificate and speaks what it is
told to."""

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.e2e.world import World

EPOCH = "e" * 32


class Impostor(ThreadingHTTPServer):
    """The server, and what it was asked."""

    daemon_threads = True

    def __init__(self, name: str, versions: tuple[int, ...], image: str) -> None:
        self.name, self.versions, self.image = name, versions, image
        self.asked: list[tuple[str, str, str]] = []
        """Method, path, and the version that was spoken."""
        self.records: dict[str, dict[str, Any]] = {}
        self.sequence = 1
        super().__init__(("127.0.0.1", 0), Handler)

    def account(self) -> dict[str, Any]:
        """What it says of itself."""
        good = {"status": "True", "reason": "OK", "message": "fine"}
        kinds = ("EngineReady", "RuntimeQualified", "LiveRestore", "DiskWorkspaces")
        room = {"cpuMillis": 8000, "memoryBytes": 1 << 34, "diskBytes": 1 << 34, "executions": 9}
        return {
            "name": self.name,
            "installation": "isolet",
            "agentVersion": "9.9.9",
            "wireVersions": list(self.versions),
            "epoch": EPOCH,
            "bootId": "b",
            "sequence": self.sequence,
            "now": datetime.now(UTC).isoformat(),
            "conditions": [{"type": kind, **good} for kind in kinds],
            "runtimes": ["runsc"],
            "media": ["Memory", "Disk"],
            "images": [{"id": self.image}],
            "capacity": room,
        }

    def ended(self, uid: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """It has run at once, and well."""
        self.sequence += 1
        now = datetime.now(UTC).isoformat()
        return {
            "uid": uid,
            "namespace": wanted.get("namespace", ""),
            "name": wanted.get("name", ""),
            "sequence": self.sequence,
            "specDigest": "d",
            "step": "Disposed",
            "outcome": {"succeeded": True, "reason": "Succeeded", "message": "0", "exitCode": 0},
            "startedAt": now,
            "endedAt": now,
            "nothingLeft": True,
        }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Impostor

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def answer(self, status: int, body: Any, **headers: str) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def is_understood(self) -> bool:
        """Whether the version is spoken here; otherwise says which are, as every agent does."""
        spoken = self.headers.get("Isolet-Wire", "1")
        self.server.asked.append((self.command, self.path, spoken))
        if self.path == "/healthz" or int(spoken) in self.server.versions:
            return True
        versions = ", ".join(map(str, self.server.versions))
        fault = {
            "reason": "UnsupportedWireVersion",
            "message": f"wire version {spoken} is not spoken here; spoken are {versions}",
        }
        self.answer(415, fault, Isolet_Wire_Versions=versions)
        return False

    def do_GET(self) -> None:
        if not self.is_understood():
            return
        path = self.path.partition("?")[0]
        if path == "/v1/watch":
            self.watch()
        elif path == "/v1/executions":
            listed = list(self.server.records.values())
            body = {"epoch": EPOCH, "sequence": self.server.sequence, "executions": listed}
            self.answer(200, body)
        elif path == "/v1/node":
            self.answer(200, self.server.account())
        else:
            self.answer(200, {})

    def do_PUT(self) -> None:
        if not self.is_understood():
            return
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        uid = self.path.rsplit("/", 1)[-1]
        self.server.records[uid] = self.server.ended(uid, wanted)
        self.answer(200, self.server.records[uid])

    def do_DELETE(self) -> None:
        if self.is_understood():
            uid = self.path.rsplit("/", 1)[-1]
            self.answer(200, self.server.records.get(uid) or self.server.ended(uid, {}))

    def watch(self) -> None:
        """Bookmarks, until the other side has gone."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Connection", "close")
        self.end_headers()
        while True:
            line = {"epoch": EPOCH, "sequence": self.server.sequence}
            try:
                self.wfile.write(json.dumps(line).encode() + b"\n")
                self.wfile.flush()
            except OSError:
                return
            time.sleep(1)


@contextmanager
def impostor(world: World, name: str, versions: tuple[int, ...], image: str) -> Iterator[Impostor]:
    """A node of that name with an ExecutionNode; both are gone at the end."""
    stack = world.stack
    folder = stack.node_pki(name)
    if not (folder / "tls.crt").exists():
        stack.isolet("pki", "node", str(stack.pki), name, "--address", "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server = Impostor(name, versions, image)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    document = {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "ExecutionNode",
        "metadata": {"name": name},
        "spec": {"endpoint": f"https://127.0.0.1:{server.server_address[1]}"},
    }
    try:
        world.apply(document)
        yield server
    finally:
        world.delete("executionnode", name)
        server.shutdown()
        server.server_close()
