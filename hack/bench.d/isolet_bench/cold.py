"""hack/bench cold: a sandbox from nothing, beside the bare Engine API with the same configuration.

Floor and Isolet take turns, so that what else the machine does hits both alike; compare the ratios,
not the absolute numbers of two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import http.client
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from isolet.agent.host import ExecutionHost
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecutionSpec, Resources
from isolet_cluster.errors import ClusterError, say

from . import kube, raw
from .meter import Audit, Cost, Meter, agent_requests
from .place import NAMESPACE, Place, an_execution
from .report import Report, Table, Target, median, quantile

FLOOR_MS = 236
"""The floor for which the target was set."""
ADDED_MS = 40
THROUGHPUT = 0.9
WRITES = 4
PAUSE = 0.15
"""Between two latency runs: what the one before left to do must not fall into the next."""

TRUE = ("/bin/true",)
BOUNDS = Resources(
    cpu_millis=500,
    memory_bytes=64 << 20,
    workspace_bytes=16 << 20,
    tmp_bytes=4 << 20,
    shm_bytes=1 << 20,
    pids=64,
    output_bytes=1 << 20,
)
"""The same as the class of `place.a_class`."""


def run(place: Place, options: argparse.Namespace) -> Report:
    """Both parts, as asked."""
    report = Report("cold")
    bench = Cold(place, report)
    report.conditions = {
        "cpus": os.cpu_count(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "engine": bench.floor.must("GET", "/version")["Version"],
    }
    bench.floor.clear()
    try:
        bench.warm_up()
        if options.only != "throughput":
            bench.latency(options.n)
        if options.only != "latency":
            bench.throughput(options.blocks, options.runs, options.in_flight)
    finally:
        bench.floor.clear()
        place.clear()
    return report


def launches(place: Place) -> Path:
    """A folder of ours beside the agent's launch folders, on the same tmpfs."""
    folder = place.stack.agent_run("node-0") / "launch"
    if not raw.on_memory(folder):
        raise ClusterError(f"{folder} is not on a tmpfs")
    return folder / ".bench"


@dataclass
class Stages:
    """Seconds since the beginning of a run."""

    created: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)


class Cold:
    """One measurement."""

    def __init__(self, place: Place, report: Report) -> None:
        self.place = place
        self.report = report
        self.floor = raw.Raw(str(place.node.socket), launches(place))
        self.meter = Meter(place.stack)
        self._numbers = itertools.count()
        self._run = uuid.uuid4().hex[:6]

    def spec(self, command: tuple[str, ...] = ()) -> ExecutionSpec:
        return ExecutionSpec(
            image=self.place.image,
            resources=BOUNDS,
            command=command,
            maximum_deadline_seconds=600,
        )

    def name(self, kind: str) -> str:
        return f"{kind}-{self._run}-{next(self._numbers)}"

    # Latency.

    def warm_up(self) -> None:
        """The first sandbox of an image pays for caches; and the two must really be the same."""
        with self.place.kube.watch(NAMESPACE) as watch:
            for _ in range(2):
                name = self.name("w")
                made = self.place.kube.create(an_execution(name))
                watch.until(name, kube.is_ready)
                ours = self.floor.of_uid(made["metadata"]["uid"])
                container = self.floor.create(*self.floor.prepare(self.spec())[:2])
                self.floor.start(container)
                differs = raw.same(ours, self.floor.inspect(container))
                self.floor.remove(container, force=True)
                self.place.kube.delete(NAMESPACE, name)
                watch.until(name, kube.is_gone)
        if differs:
            raise ClusterError("the floor is another container: " + "; ".join(differs))

    def latency(self, runs: int) -> None:
        """A session from nothing to running, floor and Isolet in turns."""
        floor, ours = Stages(), Stages()
        before = agent_requests(self._metrics())
        audit = Audit(self.place.stack.layout.audit_log)
        with self.place.kube.watch(NAMESPACE) as watch:
            for done in range(runs):
                self._floor_session(floor)
                time.sleep(PAUSE)
                self._session(ours, watch)
                time.sleep(PAUSE)
                if (done + 1) % 10 == 0:
                    say(f"latency: {done + 1} of {runs}")
        self._tell_latency(floor, ours)
        self._tell_writes("session", audit.writes("s-"), runs)
        self._tell_calls("session", agent_requests(self._metrics()) - before, runs)

    def _floor_session(self, stages: Stages) -> None:
        name, body, _ = self.floor.prepare(self.spec())
        wall, began = time.time(), time.monotonic()
        container = self.floor.create(name, body)
        self.floor.start(container)
        stages.done.append(time.monotonic() - began)
        seen = self.floor.inspect(container)
        stages.created.append(raw.stamp(seen["Created"]) - wall)
        stages.started.append(raw.stamp(seen["State"]["StartedAt"]) - wall)
        self.floor.remove(container, force=True)

    def _session(self, stages: Stages, watch: kube.Watch) -> None:
        name = self.name("s")
        body = an_execution(name)
        wall, began = time.time(), time.monotonic()
        made = self.place.kube.create(body)
        at = watch.until(name, kube.is_ready)
        stages.done.append(at - began)
        seen = self.floor.of_uid(made["metadata"]["uid"])
        stages.created.append(raw.stamp(seen["Created"]) - wall)
        stages.started.append(raw.stamp(seen["State"]["StartedAt"]) - wall)
        self.place.kube.delete(NAMESPACE, name)
        watch.until(name, kube.is_gone)

    def _tell_latency(self, floor: Stages, ours: Stages) -> None:
        table = self.report.table(
            f"session, from nothing to running, n={len(ours.done)} in turns, ms",
            *("", "floor p50", "isolet p50", "added", "ratio", "floor p90", "isolet p90", "added"),
        )
        _latency_row(table, "engine begins the create", floor.created, ours.created)
        _latency_row(table, "engine has started it", floor.started, ours.started)
        _latency_row(table, "the caller knows: answer / Ready in a watch", floor.done, ours.done)
        added = 1000 * (median(ours.done) - median(floor.done))
        self.report.targets.append(
            Target("object created -> Ready, added to the floor at p50", added, ADDED_MS, "ms")
        )
        # On a machine that is busy otherwise, floor and addition grow alike.
        share = (FLOOR_MS + ADDED_MS) / FLOOR_MS
        ratio = median(ours.done) / median(floor.done)
        self.report.targets.append(Target("the same as a ratio", ratio, share, ""))
        self.report.numbers["latency_seconds"] = {"floor": vars(floor), "isolet": vars(ours)}

    # Throughput.

    def throughput(self, blocks: int, runs: int, in_flight: int) -> None:
        """`/bin/true` from nothing to nothing, blocks of each kind in turns."""
        kinds: dict[str, Callable[[int, int], float]] = {
            "floor": self._floor_block,
            "library": self._library_block,
            "kubernetes": self._kubernetes_block,
        }
        costs = {kind: Cost() for kind in kinds}
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        calls: collections.Counter[str] = collections.Counter()
        audit = Audit(self.place.stack.layout.audit_log)
        for block in range(blocks):
            for kind, work in _turned(kinds, block):
                before, requests = self.meter.read(), agent_requests(self._metrics())
                rate = runs / work(runs, in_flight)
                self.meter.add(costs[kind], before, runs)
                if kind == "kubernetes":
                    calls += agent_requests(self._metrics()) - requests
                rates[kind].append(rate)
                say(f"throughput: block {block + 1} of {blocks}, {kind}: {rate:.2f} /s")
                time.sleep(1.0)
        self._tell_rates(rates, runs, in_flight)
        self._tell_cost(costs)
        done = blocks * runs
        self._tell_writes("Execution", audit.writes("x-"), done, WRITES)
        self._tell_calls("Execution", calls, done)

    def _floor_block(self, runs: int, in_flight: int) -> float:
        ready = [self.floor.prepare(self.spec(TRUE))[:2] for _ in range(runs)]

        def one() -> None:
            container = self.floor.create(*ready.pop())
            self.floor.start(container)
            if self.floor.wait(container) != 0:
                raise ClusterError("/bin/true failed")
            self.floor.remove(container)

        return _at_once(one, runs, in_flight)

    def _kubernetes_block(self, runs: int, in_flight: int) -> float:
        with self.place.kube.watch(NAMESPACE) as watch:

            def one() -> None:
                name = self.name("x")
                self.place.kube.create(an_execution(name, *TRUE))
                watch.until(name, kube.is_finished)
                self.place.kube.delete(NAMESPACE, name)
                watch.until(name, kube.is_gone)

            return _at_once(one, runs, in_flight)

    def _library_block(self, runs: int, in_flight: int) -> float:
        return asyncio.run(self._library(runs, in_flight))

    async def _library(self, runs: int, in_flight: int) -> float:
        agent = HTTPAgent(f"unix://{self.place.agent_socket}")
        host, left = ExecutionHost(agent), iter(range(runs))

        async def worker() -> None:
            for _ in left:
                seen = await host.provision(self.spec(TRUE))
                result = await host.wait(seen.uid)
                if not result.outcome.succeeded:
                    raise ClusterError(result.outcome.message)
                await host.reclaim(seen.uid)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
        seconds = time.monotonic() - began
        await agent.close()
        return seconds

    def _tell_rates(self, rates: dict[str, list[float]], runs: int, in_flight: int) -> None:
        table = self.report.table(
            f"`/bin/true` from nothing to nothing, {in_flight} in flight, "
            f"{len(rates['floor'])} blocks of {runs} in turns, runs a second",
            *("", *(f"block {i + 1}" for i in range(len(rates["floor"]))), "all", "of floor"),
        )
        every = {kind: _mean_rate(values) for kind, values in rates.items()}
        told = {
            "floor": "floor: create, start, wait, remove",
            "library": "agent through its library",
        }
        told["kubernetes"] = "Execution through Kubernetes"
        for kind, values in rates.items():
            share = every[kind] / every["floor"]
            cells = [f"{value:.2f}" for value in values]
            table.add(told[kind], *cells, f"{every[kind]:.2f}", f"{100 * share:.0f} %")
        for kind, words in (("kubernetes", "Executions"), ("library", "the library")):
            share = every[kind] / every["floor"]
            self.report.targets.append(
                Target(f"sustained, {words}, of the floor", share, THROUGHPUT, "", at_least=True)
            )
        self.report.numbers["rates"] = rates

    def _tell_cost(self, costs: dict[str, Cost]) -> None:
        parts = ["operator-0", "agent-node-0", "apiserver", "etcd", "dockerd-0", "containerd-0"]
        table = self.report.table("CPU of each process, ms a run", "", *costs)
        for part in [*parts, "client"]:
            table.add(part, *(f"{cost.per_run(part):.1f}" for cost in costs.values()))
        self.report.numbers["cpu_ms"] = {
            kind: {part: cost.per_run(part) for part in cost.cpu} for kind, cost in costs.items()
        }

    # What each run asked of others.

    def _tell_writes(
        self, what: str, writes: collections.Counter[str], runs: int, limit: int = 0
    ) -> None:
        table = self.report.table(f"operator's API writes for each {what}", "", "a run")
        for kind, count in sorted(writes.items()):
            table.add(kind, f"{count / runs:.2f}")
        whole = sum(writes.values()) / runs
        table.add("in all", f"{whole:.2f}")
        self.report.numbers[f"writes_{what}"] = {k: v / runs for k, v in writes.items()}
        if limit:
            self.report.targets.append(
                Target(f"API writes of the operator for each {what}", whole, limit, "")
            )

    def _tell_calls(self, what: str, calls: collections.Counter[str], runs: int) -> None:
        table = self.report.table(f"the operator's calls to the agent for each {what}", "", "a run")
        for kind, count in sorted(calls.items()):
            if "/metrics" not in kind:
                table.add(kind, f"{count / runs:.2f}")
        self.report.numbers[f"calls_{what}"] = {k: v / runs for k, v in calls.items()}

    def _metrics(self) -> str:
        connection = raw.UnixConnection(self.place.agent_socket)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except http.client.HTTPException as error:
            raise ClusterError(f"agent's metrics: {error}") from error
        finally:
            connection.close()


def _turned(
    kinds: dict[str, Callable[[int, int], float]], by: int
) -> list[tuple[str, Callable[[int, int], float]]]:
    """Another one begins each round, so that none always follows the same."""
    items = list(kinds.items())
    by %= len(items)
    return items[by:] + items[:by]


def _at_once(one: Callable[[], None], runs: int, in_flight: int) -> float:
    """Seconds that `runs` calls take, so many at a time."""
    left, problems = iter(range(runs)), []
    lock = threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                if problems or next(left, None) is None:
                    return
            try:
                one()
            except Exception as error:
                problems.append(error)

    threads = [threading.Thread(target=worker) for _ in range(in_flight)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return time.monotonic() - began


def _mean_rate(rates: list[float]) -> float:
    """Of blocks of the same number of runs: all runs over all time."""
    return len(rates) / sum(1 / rate for rate in rates)


def _latency_row(table: Table, what: str, floor: list[float], ours: list[float]) -> None:
    cells = []
    for part in (0.5, 0.9):
        one, other = (1000 * quantile(values, part) for values in (floor, ours))
        if part == 0.5:
            one, other = 1000 * median(floor), 1000 * median(ours)
        cells.append((one, other))
    (f50, o50), (f90, o90) = cells
    table.add(
        what,
        *(f"{f50:.0f}", f"{o50:.0f}", f"{o50 - f50:+.0f}", f"{o50 / f50:.2f}" if f50 > 5 else "-"),
        *(f"{f90:.0f}", f"{o90:.0f}", f"{o90 - f90:+.0f}"),
    )
