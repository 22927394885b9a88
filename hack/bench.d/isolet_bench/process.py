"""hack/bench process: a Process from start to exit, beside the bare Engine API; and many of them.

Latency: floor and library take turns, in a sandbox of its own and in a session. Many: objects of
the API server on one node, judged by the engine's own events and by what each has written.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import time
import uuid
from dataclasses import dataclass, field

from isolet.agent.host import ExecutionHost
from isolet.agent.operations import StartRequest, State, uid_of
from isolet.agent.runner import ProcessRunner
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecutionSpec
from isolet.wire.process import Sandbox
from isolet_cluster.errors import ClusterError, say

from . import raw
from .cold import ADDED_MS, BOUNDS, FLOOR_MS, PAUSE, TRUE, launches
from .many import many
from .place import Place
from .report import Report, Target, median, quantile

SCOPE = "bench"


def run(place: Place, options: argparse.Namespace) -> Report:
    """Both parts, as asked."""
    report = Report("process")
    report.conditions = {"cpus": os.cpu_count(), "load": f"{os.getloadavg()[0]:.1f}"}
    floor = raw.Raw(str(place.node.socket), launches(place))
    floor.clear()
    try:
        if options.only != "many":
            asyncio.run(latency(place, floor, report, options.n))
        if options.only != "latency":
            many(place, floor, report, options.processes)
    finally:
        floor.clear()
        place.clear()
    return report


@dataclass
class Times:
    """Seconds from the first call until the caller knows the exit code."""

    floor: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)


async def latency(place: Place, floor: raw.Raw, report: Report, runs: int) -> None:
    """`/bin/true`, so many times each, floor and library in turns."""
    agent = HTTPAgent(f"unix://{place.agent_socket}")
    bench = Latency(place, floor, agent)
    try:
        await bench.open()
        await bench.warm_up()
        for done in range(runs):
            await bench.turn()
            if (done + 1) % 10 == 0:
                say(f"latency: {done + 1} of {runs}")
    finally:
        await bench.close()
        await agent.close()
    bench.tell(report)


class Latency:
    """One measurement."""

    def __init__(self, place: Place, floor: raw.Raw, agent: HTTPAgent) -> None:
        self.floor = floor
        self.agent = agent
        self.runner = ProcessRunner(agent)
        self.host = ExecutionHost(agent)
        self.sandbox = Sandbox(image=place.image, resources=BOUNDS)
        self.own, self.inside = Times(), Times()
        self.session = f"bench-{uuid.uuid4()}"
        self.floor_session = ""

    async def open(self) -> None:
        """A session of each kind, with the same configuration."""
        spec = self._execution()
        await self.host.provision(spec, uid=self.session, deadline_seconds=600)
        self.floor_session = self.floor.create(*self.floor.prepare(spec)[:2])
        self.floor.start(self.floor_session)
        self._require_same(self.session, self.floor_session)

    async def close(self) -> None:
        """Nothing is left of ours."""
        await self._prune()
        await self.host.reclaim(self.session)

    def _execution(self, *command: str) -> ExecutionSpec:
        return ExecutionSpec(
            image=self.sandbox.image,
            resources=BOUNDS,
            command=command,
            maximum_deadline_seconds=600,
        )

    def _require_same(self, uid: str, container: str) -> None:
        differs = raw.same(self.floor.of_uid(uid), self.floor.inspect(container))
        if differs:
            raise ClusterError("the floor is another container: " + "; ".join(differs))

    async def warm_up(self) -> None:
        """The first of each kind pays for caches; and the sandboxes must really be the same."""
        container = self.floor.create(*self.floor.prepare(self._execution(*TRUE))[:2])
        request = StartRequest(operation_id="same", scope=SCOPE, sandbox=self.sandbox, command=TRUE)
        await self.runner.start(request)
        self._require_same(uid_of(SCOPE, "same"), container)
        self.floor.remove(container)
        await self.runner.wait(SCOPE, "same")
        for _ in range(2):
            await self.turn()
        self.own, self.inside = Times(), Times()

    async def turn(self) -> None:
        """One run of each kind; what a run leaves is removed before the next is timed."""
        for times, floor, session in (
            (self.own, self._floor_own, None),
            (self.inside, self._floor_inside, self.session),
        ):
            times.floor.append(await asyncio.to_thread(floor))
            await asyncio.sleep(PAUSE)
            times.ours.append(await self._ours(session))
            await self._prune()
            await asyncio.sleep(PAUSE)

    def _floor_own(self) -> float:
        name, body, _ = self.floor.prepare(self._execution(*TRUE))
        began = time.monotonic()
        container = self.floor.create(name, body)
        self.floor.start(container)
        code = self.floor.wait(container)
        seconds = time.monotonic() - began
        self.floor.remove(container)
        _require_zero(code)
        return seconds

    def _floor_inside(self) -> float:
        began = time.monotonic()
        code, _ = self.floor.exec(self.floor_session, TRUE, self.sandbox.user)
        seconds = time.monotonic() - began
        _require_zero(code)
        return seconds

    async def _ours(self, session: str | None) -> float:
        place = {"execution_uid": session} if session else {"sandbox": self.sandbox}
        operation = uuid.uuid4().hex
        request = StartRequest(operation_id=operation, scope=SCOPE, command=TRUE, **place)  # type: ignore[arg-type]
        began = time.monotonic()
        await self.runner.start(request)
        ended = await self.runner.wait(SCOPE, operation)
        seconds = time.monotonic() - began
        if ended.state is not State.EXITED:
            raise ClusterError(f"{ended.reason}: {ended.message}")
        _require_zero(ended.exit_code)
        return seconds

    async def _prune(self) -> None:
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        await self.runner.prune(terminal_before=later, scope=SCOPE)

    def tell(self, report: Report) -> None:
        """Both kinds, beside their floors."""
        table = report.table(
            f"`/bin/true` from start to the exit that the caller knows, n={len(self.own.ours)}"
            " in turns, ms",
            *("", "floor p50", "isolet p50", "added", "ratio", "floor p90", "isolet p90", "ratio"),
        )
        kinds = {"a sandbox of its own": self.own, "in a session": self.inside}
        for what, times in kinds.items():
            f50, o50 = 1000 * median(times.floor), 1000 * median(times.ours)
            f90, o90 = (1000 * quantile(values, 0.9) for values in (times.floor, times.ours))
            cells = (f"{f50:.0f}", f"{o50:.0f}", f"{o50 - f50:+.0f}", f"{o50 / f50:.2f}")
            table.add(what, *cells, f"{f90:.0f}", f"{o90:.0f}", f"{o90 / f90:.2f}")
        report.numbers["latency_seconds"] = {k: vars(times) for k, times in kinds.items()}
        added = 1000 * (median(self.own.ours) - median(self.own.floor))
        report.targets.append(
            Target("a Process in a sandbox of its own, added to the floor", added, ADDED_MS, "ms")
        )
        # On a machine that is busy otherwise, floor and addition grow alike.
        ratio = median(self.own.ours) / median(self.own.floor)
        report.targets.append(
            Target("the same as a ratio", ratio, (FLOOR_MS + ADDED_MS) / FLOOR_MS, "")
        )


def _require_zero(code: int | None) -> None:
    if code != 0:
        raise ClusterError(f"/bin/true ended with {code}")
