"""An operator in this process, on a real API server, with agents in memory."""

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fakes.agent import IMAGE, FakeAgent
from isolet.operator import run
from isolet.operator.assembly import Operator
from isolet.operator.leader import LeaseTimes
from isolet.operator.links import LinkTimes
from isolet.operator.settings import Settings
from tests.integration.kube import Kube
from tests.unit.api.objects import a_checkpoint, a_class, a_node, an_execution

NAMESPACE = "isolet-system"
LEASE = LeaseTimes(duration=90.0, renew=80.0, retry=0.3, request=5.0, heartbeat=60.0)
"""Outlives a busy machine. An operator that ends in order hands it over at once."""
SHORT_LEASE = LeaseTimes(duration=6.0, renew=4.5, retry=0.3, request=2.0, heartbeat=4.0)
"""For those who wait until it is lost."""
LINKS = LinkTimes(account_every=0.5, silence=8.0, backoff=0.05, backoff_cap=0.2)
FINALIZER = "isolet.dev/sandbox"


class Unreachable(FakeAgent):
    """Behind an ExecutionNode that is none of the test's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.reachable = False


class World:
    """What one test has: a namespace, a class, nodes with agents, operators."""

    def __init__(self, kube: Kube, namespace: str, kubeconfig: Path) -> None:
        self.kube = kube
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self.agents: dict[str, FakeAgent] = {}
        self.agent_tls: Path | None = None
        """Folder with the certificate of operators that reach their agents over TLS."""
        self.suffix = uuid.uuid4().hex[:6]
        self.class_name = f"c-{self.suffix}"
        self.exits: list[str] = []
        self.made: list[tuple[str, str]] = []
        self._stack = contextlib.AsyncExitStack()

    # the API server

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self.kube, method), *args, **kwargs)

    async def add_class(self, **spec: Any) -> None:
        images = {"allowed": [IMAGE], "default": IMAGE}
        body = a_class(self.class_name, **{"images": images, **spec})
        (await self.call("create", body)).must()
        self.made.append(("ExecutionClass", self.class_name))

    async def add_node(self, name: str = "a", **spec: Any) -> FakeAgent:
        name = f"{name}-{self.suffix}"
        agent = self.agents.setdefault(name, FakeAgent(name))
        (await self.call("create", a_node(name, **spec))).must()
        self.made.append(("ExecutionNode", name))
        return agent

    async def create(self, name: str = "hello", **spec: Any) -> str:
        """An Execution; returns its uid."""
        body = an_execution(name, **{"className": self.class_name, "image": IMAGE, **spec})
        answer = await self.call("create", body, self.namespace)
        return str(answer.must()["metadata"]["uid"])

    async def checkpoint(self, name: str = "saved", **spec: Any) -> str:
        """A Checkpoint of Execution `hello`; returns its uid."""
        answer = await self.call("create", a_checkpoint(name, **spec), self.namespace)
        return str(answer.must()["metadata"]["uid"])

    async def get(self, name: str = "hello", kind: str = "Execution") -> dict[str, Any] | None:
        namespace = None if kind in ("ExecutionNode", "ExecutionClass") else self.namespace
        answer = await self.call("get", kind, name, namespace)
        return answer.body if answer.ok else None

    async def delete(self, name: str = "hello", kind: str = "Execution") -> None:
        namespace = None if kind in ("ExecutionNode", "ExecutionClass") else self.namespace
        (await self.call("delete", kind, name, namespace)).must()

    async def patch(
        self, change: dict[str, Any], name: str = "hello", kind: str = "Execution"
    ) -> None:
        namespace = None if kind in ("ExecutionNode", "ExecutionClass") else self.namespace
        (await self.call("patch", kind, name, change, namespace)).must()

    async def condition(self, type_: str, name: str = "hello", kind: str = "Execution") -> Any:
        obj = await self.get(name, kind)
        found = ((obj or {}).get("status") or {}).get("conditions") or []
        return next((c for c in found if c["type"] == type_), None)

    async def until_condition(
        self,
        type_: str,
        status: str,
        name: str = "hello",
        *,
        kind: str = "Execution",
        reason: str | None = None,
        saying: str = "",
        seconds: float = 60,
    ) -> dict[str, Any]:
        last: Any = None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            last = await self.condition(type_, name, kind)
            if (
                last
                and last["status"] == status
                and reason in (None, last["reason"])
                and saying in last["message"]
            ):
                return last
            await asyncio.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {type_}={status} {reason}; is {last}")

    async def until_gone(
        self,
        name: str = "hello",
        *,
        uid: str | None = None,
        kind: str = "Execution",
        seconds: float = 60,
    ) -> None:
        async def gone() -> bool:
            obj = await self.get(name, kind)
            return obj is None or (uid is not None and obj["metadata"]["uid"] != uid)

        await until(gone, f"{name} gone", seconds)

    async def events(self, name: str = "hello") -> list[dict[str, Any]]:
        answer = await self.call("request", "GET", f"/api/v1/namespaces/{self.namespace}/events")
        return [e for e in answer.must()["items"] if e["involvedObject"]["name"] == name]

    async def writes(self, name: str = "hello", *, by: str = "isolet-operator") -> Counter[str]:
        """What the operator wrote about an object until now, from the API server's audit log."""
        # A request is answered before its line is written: wait for the line of a later one.
        mark = f"mark-{uuid.uuid4().hex}"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": mark}}
        (await self.call("create", body, self.namespace)).must()
        await until(lambda: any(ref["name"] == mark for _, ref in self._audited()), "audited")
        found: Counter[str] = Counter()
        for entry, ref in self._audited():
            if entry.get("userAgent", "").startswith(by):
                about = str(ref.get("name", ""))
                if about == name or about.startswith(f"{name}.") or ref["resource"] == "events":
                    sub = f"/{ref['subresource']}" if ref.get("subresource") else ""
                    found[f"{entry['verb']} {ref['resource']}{sub}"] += 1
        return found

    def _audited(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Requests that were answered about this namespace's objects, and those objects."""
        whole, _, _ = Path(os.environ["ISOLET_AUDIT_LOG"]).read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            entry = json.loads(line)
            ref = {"name": "", **(entry.get("objectRef") or {})}
            if entry.get("stage") == "ResponseComplete" and ref.get("namespace") == self.namespace:
                yield entry, ref

    # the operator

    def settings(self, **changes: Any) -> Settings:
        base: dict[str, Any] = {
            "identity": f"test-{uuid.uuid4().hex[:8]}",
            "namespace": NAMESPACE,
            "installation": "test",
            "agent_tls": None,
            "kubeconfig": self.kubeconfig,
            "metrics_port": 0,
            "lease": LEASE,
            "links": LINKS,
            "drain_seconds": 5.0,
        }
        return Settings(**{**base, **changes})

    @contextlib.asynccontextmanager
    async def operator(self, **changes: Any):
        """An operator that leads; ended in order at the end."""
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        ports: dict[Operator, int] = {}

        def on_ready(operator: Operator, port: int) -> None:
            ports[operator] = port
            ready.set_result(operator)

        task = asyncio.create_task(
            run.run(
                self.settings(**changes),
                connect=lambda e: self.agents.get(e.server_name) or Unreachable(e.server_name),
                exit_now=self.exits.append,
                stop=stop,
                ready=on_ready,
            )
        )
        try:
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            operator = ready.result()
            operator.port = ports[operator]
            yield operator
        finally:
            stop.set()
            await asyncio.wait_for(task, 90)

    @contextlib.asynccontextmanager
    async def leader(self, **changes: Any):
        """An operator, once it leads."""
        async with self.operator(**changes) as operator:
            await until(lambda: operator.bells.leading, "leading", 60)
            yield operator

    async def close(self) -> None:
        """Remove what the test made; what hangs on a node is released by the node's going."""
        for kind, name in reversed(self.made):
            await self.call("delete", kind, name)
        for plural, kind in (("executions", "Execution"), ("checkpoints", "Checkpoint")):
            path = f"/apis/isolet.dev/v1alpha1/namespaces/{self.namespace}/{plural}"
            for obj in (await self.call("request", "GET", path)).body.get("items", []):
                name = obj["metadata"]["name"]
                free = {"metadata": {"finalizers": []}}
                await self.call("patch", kind, name, free, self.namespace)
                await self.call("delete", kind, name, self.namespace)


async def until(holds: Any, what: str, seconds: float = 60) -> None:
    """Wait until something is so; `holds` may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.03)
