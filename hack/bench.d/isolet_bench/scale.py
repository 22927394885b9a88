"""hack/bench scale: an agent that restarts with many live sandboxes; an operator with many objects.

The objects are copies of one that has finished, put into etcd as the API server stores them: ten
thousand creations would measure the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

from isolet.agent.host import ExecutionHost
from isolet.base import errors
from isolet.client.http import HTTPAgent
from isolet.wire.agent_api import Snapshot
from isolet.wire.execution import ExecutionSpec
from isolet_cluster.errors import ClusterError, say
from isolet_cluster.layout import State

from . import kube, raw
from .cold import BOUNDS
from .meter import cpu, pids, rss_mib
from .place import NAMESPACE, Place, an_execution
from .report import Report, Target

REATTACH_SECONDS = 2
START_SECONDS = 20
START_MIB = 300
PREFIX = f"/registry/isolet.dev/executions/{NAMESPACE}/"
ALIVE = ("sh", "-c", "echo alive; exec sleep 600")


def run(place: Place, options: argparse.Namespace) -> Report:
    """Both parts, as asked."""
    report = Report("scale")
    report.conditions = {"cpus": os.cpu_count(), "load": f"{os.getloadavg()[0]:.1f}"}
    if options.only != "objects":
        asyncio.run(restart(place, report, options.sandboxes))
    if options.only != "restart":
        objects(place, report, options.objects)
    return report


# An agent is killed and started again while sandboxes run.


async def restart(place: Place, report: Report, count: int) -> None:
    spec = ExecutionSpec(
        image=place.image, resources=BOUNDS, command=ALIVE, maximum_deadline_seconds=600
    )
    engine = raw.Raw(str(place.node.socket), place.stack.agent_run("node-0"))
    agent = HTTPAgent(f"unix://{place.agent_socket}")
    host = ExecutionHost(agent)
    uids = [f"bench-{uuid.uuid4()}" for _ in range(count)]
    try:
        await _each(uids, lambda uid: host.provision(spec, uid=uid, deadline_seconds=600))
        await _attached(agent, uids)
        before = _running(engine, uids)
        place.stack.kill("agent-node-0")
        began = time.monotonic()
        place.stack.start_agent("node-0")
        answered, attached = await _attached(agent, uids)
        after = _running(engine, uids)
        lost = count - sum(after.get(name) == started for name, started in before.items())
    finally:
        await _each(uids, host.reclaim)
        await agent.close()
    table = report.table(f"agent killed and started again, {count} live sandboxes", "", "s")
    table.add("start of the process -> first answer", f"{answered - began:.2f}")
    table.add("first answer -> every output is followed again", f"{attached - answered:.2f}")
    table.add("start of the process -> every output is followed", f"{attached - began:.2f}")
    table.add("sandboxes lost or started again", str(lost))
    report.numbers["restart"] = {
        "sandboxes": count,
        "answered": answered - began,
        "attached": attached - began,
        "lost": lost,
    }
    report.targets += [
        Target(f"{count} sandboxes reattached", attached - began, REATTACH_SECONDS, "s"),
        Target("sandboxes lost", lost, 0, ""),
    ]


async def _each(uids: list[str], work: Any) -> None:
    """Eight at a time."""
    left = iter(uids)

    async def worker() -> None:
        for uid in left:
            await work(uid)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(worker())


async def _attached(agent: HTTPAgent, uids: list[str], seconds: float = 60) -> tuple[float, float]:
    """When the agent first answered, and when it had the output of every sandbox in hand.

    Counts of bytes are kept by the followers alone: a record of a running sandbox has none.
    """
    deadline, answered = time.monotonic() + seconds, 0.0
    while time.monotonic() < deadline:
        try:
            found: Snapshot = await agent.snapshot()
        except errors.Unavailable:
            await asyncio.sleep(0.02)
            continue
        now = time.monotonic()
        answered = answered or now
        followed = {seen.uid for seen in found.executions if seen.output.stdout_bytes}
        if followed.issuperset(uids):
            return answered, now
        await asyncio.sleep(0.02)
    raise ClusterError(f"not every sandbox was followed after {seconds:.0f} s")


def _running(engine: raw.Raw, uids: list[str]) -> dict[str, str]:
    """Start time of each running container of ours, by name, as the engine has it."""
    found = {}
    for entry in engine.must("GET", "/containers/json"):
        if entry["Labels"].get("dev.isolet.uid") in uids:
            seen = engine.inspect(entry["Id"])
            found[seen["Name"]] = seen["State"]["StartedAt"]
    return found


# An operator is started with many objects.


def objects(place: Place, report: Report, count: int) -> None:
    etcd = Etcd.of(place)
    place.stack.end("operator-0")
    place.stack.start_operator()
    place.stack.wait_ready()
    value = _finished(place, etcd)
    place.stack.end("operator-0")
    try:
        say(f"putting {count} finished objects into etcd")
        etcd.fill(value, count)
        _await_listed(place, count)
        log = place.stack.layout.log("operator-0")
        seen = log.stat().st_size
        began = time.monotonic()
        place.stack.start_operator()
        seconds, passes = _settled(place, seen, count, began)
        pid = pids(place.stack)["operator-0"]
        used, (now, peak) = cpu(pid), rss_mib(pid)
    finally:
        place.stack.end("operator-0")
        etcd.clear()
        place.stack.start_operator()
    table = report.table(f"operator's cold start with {count} finished objects", "", "")
    table.add("start of the process -> each object has had its pass", f"{seconds:.1f} s")
    table.add("CPU of the operator until then", f"{used:.1f} s")
    table.add("passes over each object", f"{passes / count:.2f}")
    table.add("resident memory then", f"{now:.0f} MiB")
    table.add("at its peak", f"{peak:.0f} MiB")
    report.numbers["objects"] = {
        "count": count,
        "seconds": seconds,
        "cpu_seconds": used,
        "passes": passes,
        "mib": now,
        "peak_mib": peak,
    }
    report.targets += [
        Target(f"operator's start with {count} objects", seconds, START_SECONDS, "s"),
        Target("its memory at the peak", peak, START_MIB, "MiB"),
    ]


def _finished(place: Place, etcd: Etcd) -> dict[str, Any]:
    """One object that has run to its end, as it is stored."""
    name = f"model-{uuid.uuid4().hex[:6]}"
    with place.kube.watch(NAMESPACE) as watch:
        place.kube.create(an_execution(name, "/bin/true"))
        watch.until(name, kube.is_finished)
    return etcd.get(PREFIX + name)


def _await_listed(place: Place, count: int, seconds: float = 60) -> None:
    """Until the API server's own cache has them."""
    path = kube.EXECUTIONS.format(NAMESPACE) + "?limit=1&resourceVersion=0"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _, answer = place.kube.call("GET", path)
        known = len(answer["items"]) + answer["metadata"].get("remainingItemCount", 0)
        if known >= count:
            return
        time.sleep(0.5)
    raise ClusterError(f"the API server shows {known} of {count} objects")


def _settled(
    place: Place, log_from: int, count: int, began: float, limit: float = 180
) -> tuple[float, float]:
    """Seconds until the operator has looked at each object and nothing waits; passes so far."""
    port = None
    while time.monotonic() - began < limit:
        time.sleep(0.1)
        port = port or _metrics_port(place, log_from)
        metrics = _metrics(port) if port else ""
        passes = _sum(metrics, r'isolet_operator_pass_seconds_count\{kind="Execution".*\}')
        waiting = _sum(metrics, r"isolet_operator_queue_depth")
        if passes >= count and not waiting:
            return time.monotonic() - began, passes
    raise ClusterError(f"the operator has not settled after {limit:.0f} s")


def _metrics_port(place: Place, log_from: int) -> int | None:
    with place.stack.layout.log("operator-0").open("rb") as log:
        log.seek(log_from)
        found = re.search(rb'"metrics_port": (\d+)', log.read())
    return int(found[1]) if found else None


def _metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def _sum(metrics: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"(?m)^{name} (\S+)$", metrics))


class Etcd:
    """The cluster's etcd, over its HTTP gateway."""

    def __init__(self, port: int) -> None:
        self._port = port

    @classmethod
    def of(cls, place: Place) -> Etcd:
        state = State.load(place.stack.layout)
        if state is None or state.kube != "own":
            raise ClusterError("objects are put into etcd: a cluster of hack/cluster is needed")
        return cls(state.ports["etcd"])

    def get(self, key: str) -> dict[str, Any]:
        answer = self._call("range", {"key": _64(key)})
        return dict(json.loads(base64.b64decode(answer["kvs"][0]["value"])))

    def fill(self, model: dict[str, Any], count: int) -> None:
        """Copies of an object under other names and uids."""
        for batch in _batches(count):
            puts = []
            for number in batch:
                name = f"copy-{number:06}"
                metadata = {**model["metadata"], "name": name, "uid": str(uuid.uuid4())}
                value = _64(json.dumps({**model, "metadata": metadata}))
                puts.append({"requestPut": {"key": _64(PREFIX + name), "value": value}})
            self._call("txn", {"success": puts})

    def clear(self) -> None:
        """Every Execution of the namespace, finalizers or not: nothing of theirs is on a node."""
        self._call("deleterange", {"key": _64(PREFIX), "range_end": _64(PREFIX[:-1] + "0")})

    def _call(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("POST", f"/v3/kv/{what}", json.dumps(body))
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ClusterError(f"etcd {what}: {data[:200]!r}")
        return dict(json.loads(data))


def _batches(count: int, size: int = 100) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(count, start + size))


def _64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
