"""A user of the API server: creates, watches and deletes objects. Shares no code with Isolet."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from isolet_cluster.errors import ClusterError

EXECUTIONS = "/apis/isolet.dev/v1alpha1/namespaces/{}/executions"
PROCESSES = "/apis/isolet.dev/v1alpha1/namespaces/{}/processes"
Object = dict[str, Any]
IDLE_SECONDS = 30.0
"""The API server closes a connection that nobody uses, and a request may meet that."""


@dataclass
class Kube:
    """One API server, with an administrator's token; a connection for each thread."""

    host: str
    port: int
    token: str
    tls: ssl.SSLContext
    _local: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, kubeconfig: Path) -> Kube:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        where = urlsplit(cluster["server"])
        if "certificate-authority-data" in cluster:
            ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        else:
            ca = Path(cluster["certificate-authority"]).read_text()
        if "token" not in user:
            raise ClusterError(f"{kubeconfig}: a token is needed")
        tls = ssl.create_default_context(cadata=ca)
        return cls(where.hostname or "", where.port or 443, user["token"], tls)

    def connect(self, timeout: float = 60) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)

    def call(self, method: str, path: str, body: Object | None = None) -> tuple[int, Object]:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.connect()
        elif time.monotonic() - self._local.used > IDLE_SECONDS:
            connection.close()  # The next request opens it again.
        self._local.used = time.monotonic()
        raw = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, raw, self._headers())
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        return answer.status, json.loads(data)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def ensure(self, path: str, body: Object) -> None:
        """Create it unless it is there."""
        status, answer = self.call("POST", path, body)
        if status not in (201, 409):
            raise ClusterError(f"POST {path}: {answer.get('message')}")

    def create(self, body: Object) -> Object:
        """A new Execution or Process."""
        kind = PROCESSES if body["kind"] == "Process" else EXECUTIONS
        path = kind.format(body["metadata"]["namespace"])
        status, answer = self.call("POST", path, body)
        if status != 201:
            raise ClusterError(f"POST {path}: {answer.get('message')}")
        return answer

    def delete(self, namespace: str, name: str) -> None:
        path = f"{EXECUTIONS.format(namespace)}/{name}"
        status, answer = self.call("DELETE", path)
        if status not in (200, 202, 404):
            raise ClusterError(f"DELETE {path}: {answer.get('message')}")

    def delete_all(self, namespace: str) -> None:
        for kind in (PROCESSES, EXECUTIONS):
            self.call("DELETE", kind.format(namespace))

    def names(self, namespace: str) -> list[str]:
        found = [self.list(namespace, kind) for kind in (PROCESSES, EXECUTIONS)]
        return [item["metadata"]["name"] for items in found for item in items]

    def list(self, namespace: str, kind: str = EXECUTIONS) -> list[Object]:
        _, answer = self.call("GET", kind.format(namespace))
        return list(answer["items"])

    @contextlib.contextmanager
    def watch(self, namespace: str, kind: str = EXECUTIONS) -> Iterator[Watch]:
        """Watch all objects of a kind in a namespace from now on."""
        path = kind.format(namespace)
        _, answer = self.call("GET", path + "?limit=1")
        query = f"?watch=1&resourceVersion={answer['metadata']['resourceVersion']}"
        connection = self.connect(timeout=3600)
        connection.request("GET", path + query, headers=self._headers())
        response = connection.getresponse()
        sock = connection.sock
        watch = Watch(response)
        watch.start()
        try:
            yield watch
        finally:
            with contextlib.suppress(OSError):
                if sock is not None:
                    sock.shutdown(2)
            watch.join(10)
            connection.close()


Reached = Callable[[Object | None], bool]


class Watch(threading.Thread):
    """Notes when each object was first seen to be as somebody waits for."""

    def __init__(self, stream: http.client.HTTPResponse) -> None:
        super().__init__(name="watch", daemon=True)
        self._stream = stream
        self._news = threading.Condition()
        self._seen: dict[str, tuple[float, Object | None]] = {}
        self._waiting: dict[str, tuple[Reached, float | None]] = {}
        self._ended = False

    def run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for line in self._stream:
                self._take(json.loads(line), time.monotonic())
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, event: Object, now: float) -> None:
        obj = event["object"]
        name = obj.get("metadata", {}).get("name", "")
        state = None if event["type"] == "DELETED" else obj
        with self._news:
            self._seen[name] = now, state
            waiting = self._waiting.get(name)
            if waiting is not None and waiting[1] is None and waiting[0](state):
                self._waiting[name] = waiting[0], now
                self._news.notify_all()

    def until(self, name: str, reached: Reached, seconds: float = 60) -> float:
        """The monotonic time at which the event came that `reached` accepts."""
        deadline = time.monotonic() + seconds
        with self._news:
            seen = self._seen.get(name)
            if seen is not None and reached(seen[1]):
                return seen[0]
            self._waiting[name] = reached, None
            try:
                while (at := self._waiting[name][1]) is None:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._ended:
                        state = self._seen.get(name, (0, None))[1]
                        raise ClusterError(f"{name} is not as awaited: {json.dumps(state)}")
                    self._news.wait(left)
                return at
            finally:
                del self._waiting[name]


def condition(obj: Object | None, kind: str) -> str:
    """The status of one condition."""
    conditions = (obj or {}).get("status", {}).get("conditions", [])
    return next((c["status"] for c in conditions if c["type"] == kind), "")


def is_ready(obj: Object | None) -> bool:
    if condition(obj, "Finished") == "True":
        raise ClusterError(f"ended instead of running: {json.dumps((obj or {}).get('status'))}")
    return condition(obj, "Ready") == "True"


def is_finished(obj: Object | None) -> bool:
    return condition(obj, "Finished") == "True"


def is_gone(obj: Object | None) -> bool:
    return obj is None
