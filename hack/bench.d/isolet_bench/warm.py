"""hack/bench warm: a program in a warm slot, beside what stdin itself costs and a cold start.

What is measured is the time from the call until the first byte of the exec'd program, as it comes
out of the engine: each container's stdout is attached to before anything is given to it, by code
that is not the agent's. All kinds take turns. There is no Kubernetes here: an agent as a process of
its own, called over its Unix socket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from isolet.agent.engine.api import API, Timeouts
from isolet.agent.engine.docker import DockerEngine
from isolet.agent.engine.streams import Frames
from isolet.agent.service import config, pool_records
from isolet.agent.workspace import script
from isolet.base import errors, names
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecutionSpec, ExecutionWanted
from isolet.wire.pool import PoolObserved, PoolsWanted, PoolWanted
from isolet_cluster.errors import ClusterError, say
from isolet_cluster.layout import Layout, State

from .cold import BOUNDS
from .place import SHELL, _environment, _hack
from .report import Report, Target, median, quantile

CLASS = "warm"
WORD = b"first\n"
P50_MS, P99_MS = 20, 50
AT_ONCE = 9
REFILL = 6
NONCE = "0123456789abcdef0123456789abcdef"


def run(options: argparse.Namespace) -> Report:
    """All of it, on a cluster without Kubernetes."""
    name = os.environ["ISOLET_CLUSTER"]
    ours = State.load(Layout.of(name)) is None
    try:
        _hack("cluster", "up", "--name", name, "--nodes", "1", "--no-kube")
        environment = _environment(name)
        os.environ.update(environment)
        with _agent(environment["ISOLET_DOCKER_SOCKETS"].split()[0]) as (socket, installation):
            report = Report("warm")
            bench = Warm(report, environment, socket, installation)
            asyncio.run(bench.measure(options.n))
        return report
    finally:
        if ours and not options.keep:
            _hack("cluster", "down", "--name", name)


@contextlib.contextmanager
def _agent(engine: str) -> Iterator[tuple[str, str]]:
    """An agent of our own; yields its socket and installation."""
    root = Path(tempfile.mkdtemp(prefix="isolet-bench-"))
    installation = f"bench-{uuid.uuid4().hex[:8]}"
    (root / "policy.toml").write_text("[capacity]\ncpu = 64\nexecutions = 64\n")
    (root / "agent.toml").write_text(
        f'node = "bench"\ninstallation = "{installation}"\nstateDir = "{root}/state"\n'
        f'runDir = "{root}/run"\nengineSocket = "{engine}"\npolicyFile = "{root}/policy.toml"\n'
    )
    command = [sys.executable, "-m", "isolet", "agent", "--config", f"{root}/agent.toml"]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield f"{root}/run/agent.sock", installation
    except ClusterError:
        say((root / "log").read_text()[-4000:])
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        with contextlib.suppress(OSError, ValueError):
            note = (root / "run" / "watchdog.pid").read_text()
            os.kill(int(note.split('"pid":')[1].split(",")[0]), signal.SIGTERM)
        subprocess.run(("umount", f"{root}/run/launch"), check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(root, ignore_errors=True)


class Warm:
    """One measurement."""

    def __init__(
        self, report: Report, environment: dict[str, str], socket: str, installation: str
    ) -> None:
        self.report = report
        self.image = environment[SHELL]
        engine = environment["ISOLET_DOCKER_SOCKETS"].split()[0]
        self.installation = installation
        self.engine_socket = engine
        self.agent_socket = socket
        self.spec = ExecutionSpec(
            image=self.image,
            resources=BOUNDS,
            command=("echo", "first"),
            maximum_deadline_seconds=600,
        )

    async def measure(self, runs: int) -> None:
        """Latency in turns, then many at once, then how fast a pool fills."""
        self.engine = DockerEngine(self.engine_socket, installation=self.installation)
        self.raw = API(self.engine_socket, Timeouts())
        self.agent = HTTPAgent(f"unix://{self.agent_socket}")
        self.report.conditions = {
            "cpus": os.cpu_count(),
            "load": f"{os.getloadavg()[0]:.1f}",
            "engine": (await self.engine.info()).version,
        }
        await self._serving()
        state = Path(self.agent_socket).parent.parent / "state"
        self.database = sqlite3.connect(state / "bench.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE t (x TEXT)")
        try:
            await self._latency(runs)
            await self._at_once()
            await self._refill()
        finally:
            await self._clear()
            await self.agent.close()
            self.database.close()

    # Latency.

    async def _latency(self, runs: int) -> None:
        await self._pool(1)
        kinds = {
            "disk: one synced commit": self._commit,
            "stdin: a line to a shell that waits, and its answer": self._answer,
            "floor: the same launch script in a bare slot": self._floor,
            "warm: the agent's call": self._warm,
            "cold: the agent's call, no pool": self._cold,
        }
        seen: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(runs + 1):
            for kind, one in kinds.items():
                seconds = await one()
                if number:  # the first of each pays for caches
                    seen[kind].append(seconds)
            if number and number % 10 == 0:
                say(f"latency: {number} of {runs}")
        table = self.report.table(
            f"call → first byte of an exec'd program, n={runs} in turns, ms", "", *_QUANTILES
        )
        for kind, values in seen.items():
            table.add(kind, *_cells(values))
        warm = seen["warm: the agent's call"]
        for part, limit in ((0.5, P50_MS), (0.99, P99_MS)):
            value = 1000 * quantile(warm, part)
            self.report.targets.append(Target(f"warm start, p{part * 100:.0f}", value, limit, "ms"))
        floor = seen["floor: the same launch script in a bare slot"]
        ratio = (P50_MS / 1000) / 0.013
        self.report.targets.append(
            Target("the same as a ratio to the floor", median(warm) / median(floor), ratio, "")
        )
        self.report.numbers["latency_seconds"] = seen

    async def _warm(self) -> float:
        await self._ready(1)
        (slot,) = await self._slots()
        return await self._given(slot, CLASS)

    async def _given(self, container: str, class_name: str) -> float:
        async with self._attached(container) as first:
            began = time.monotonic()
            uid = await self._put(class_name)
            seconds = await first - began
        await self._gone(uid)
        return seconds

    async def _cold(self) -> float:
        uid = f"cold-{uuid.uuid4().hex[:12]}"
        name = names.container_name(self.installation, uid)
        began = time.monotonic()
        putting = asyncio.create_task(self._put("none", uid))
        while True:
            with contextlib.suppress(errors.NotFound):
                container = (await self.engine.inspect(name)).id
                break
            await asyncio.sleep(0.002)
        seconds = None
        async with self._attached(container) as first:
            # An engine attaches to what has ended as well, and nothing ever comes of it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(15):
                    seconds = await first - began
        await putting
        await self._gone(uid)
        return seconds if seconds is not None else await self._cold()

    async def _commit(self) -> float:
        """What durability itself costs on the agent's disk: the one wait that no call can avoid."""
        began = time.monotonic()
        self.database.execute("INSERT INTO t VALUES (?)", ("x" * 1500,))
        return time.monotonic() - began

    async def _answer(self) -> float:
        """A shell that reads a line and answers it."""
        command = ("sh", "-c", "read -r l; echo first; sleep 60")
        async with self._bare(command) as (container, _):
            return await self._line(container)

    async def _floor(self) -> float:
        """The agent's own scripts, with nobody but us between the line and the program."""
        async with self._bare(None) as (container, folder):
            spec = self.spec.model_copy(update={"command": ("sh", "-c", "echo first; sleep 60")})
            content = script.build(script.Launch(argv=spec.command, nonce=NONCE[::-1]))
            (folder / config.MAIN_SCRIPT).write_bytes(content)
            return await self._line(container)

    async def _line(self, container: str) -> float:
        await asyncio.sleep(0.3)  # until it waits
        async with self._attached(container) as first, self.engine.attach(container) as stream:
            began = time.monotonic()
            await stream.write(script.GO)
            return await first - began

    @contextlib.asynccontextmanager
    async def _bare(self, command: tuple[str, ...] | None) -> AsyncIterator[tuple[str, Path]]:
        """A slot's container, made and started without an agent."""
        uid = f"floor-{uuid.uuid4().hex}"
        folder = Path(self.agent_socket).parent / "launch" / ".bench" / uid
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        waiting = script.wait(NONCE, 600, config.MAIN_SCRIPT)
        (folder / config.SLOT_SCRIPT).write_bytes(waiting)
        record = pool_records.new(self._wish(1), uid, "bench-floor", datetime.now(UTC))
        asked = config.sandbox(record, installation="bench-floor", launch_folder=str(folder))
        if command is not None:
            asked = dataclasses.replace(asked, command=command)
        container = await self.engine.create(asked)
        try:
            await self.engine.start(container)
            yield container, folder
        finally:
            await self.engine.remove(container)
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def _attached(self, container: str) -> AsyncIterator[asyncio.Task[float]]:
        """When the program's first byte comes out of this container."""
        query = {"stream": "1", "stdout": "1"}
        path = f"/containers/{container}/attach"
        async with self.raw.hijack(path, query=query) as (connection, rest):

            async def first() -> float:
                frames, got, data = Frames(), b"", rest
                while True:
                    got += b"".join(piece for _, piece in frames.feed(data))
                    if got.startswith(WORD) or b"\n" + WORD in got:
                        return time.monotonic()
                    data = await connection.receive()
                    if not data:
                        raise ClusterError(f"{container} ended without a word")

            task = asyncio.create_task(first())
            await asyncio.sleep(0)
            try:
                yield task
            finally:
                task.cancel()

    # Many at once, refill, memory.

    async def _at_once(self) -> None:
        await self._pool(AT_ONCE)
        slots = await self._slots()
        memory = [await self._memory(slot) for slot in slots]
        async with contextlib.AsyncExitStack() as stack:
            firsts = [await stack.enter_async_context(self._attached(slot)) for slot in slots]
            began = time.monotonic()
            uids = await asyncio.gather(*(self._put(CLASS) for _ in slots))
            values = [await first - began for first in firsts]
        await asyncio.gather(*(self._gone(uid) for uid in uids))
        table = self.report.table(f"{AT_ONCE} calls at once, ms", "", *_QUANTILES)
        table.add("warm", *_cells(values))
        idle = self.report.table("memory of an idle slot, MiB in its cgroup", "", "p50", "most")
        mib = [value / (1 << 20) for value in memory]
        idle.add("slot", f"{median(mib):.1f}", f"{max(mib):.1f}")
        self.report.numbers |= {"at_once_seconds": values, "idle_bytes": memory}

    async def _memory(self, container: str) -> int:
        reply = await self.raw.get(
            f"/containers/{container}/stats", {"stream": "0", "one-shot": "1"}, within=30.0
        )
        return int(reply.read(lambda raw: raw["memory_stats"].get("usage", 0)))

    async def _refill(self) -> None:
        await self._pool(REFILL)
        uids = await asyncio.gather(*(self._put(CLASS) for _ in range(REFILL)))
        began = time.monotonic()
        await self._ready(REFILL)
        seconds = time.monotonic() - began
        await asyncio.gather(*(self._gone(uid) for uid in uids))
        table = self.report.table(f"an emptied pool of {REFILL}, two made at a time", "", "")
        table.add("slots made ready a second", f"{REFILL / seconds:.2f}")
        self.report.numbers["refill_per_second"] = REFILL / seconds

    # The agent.

    def _wish(self, size: int) -> PoolWanted:
        return PoolWanted(
            class_name=CLASS,
            image=self.image,
            resources=BOUNDS,
            maximum_deadline_seconds=600,
            minimum=size,
            maximum=size,
        )

    async def _pool(self, size: int) -> None:
        await self.agent.put_pools(PoolsWanted(pools=(self._wish(size),)), None)
        await self._ready(size)

    async def _seen(self) -> PoolObserved | None:
        pools = (await self.agent.node()).pools
        return pools[0] if pools else None

    async def _ready(self, size: int) -> None:
        async def rests() -> bool:
            seen = await self._seen()
            return seen is not None and (seen.ready, seen.creating, seen.retiring) == (size, 0, 0)

        await _until(rests)

    async def _slots(self) -> list[str]:
        """Containers of slots that nobody was given: those still under a slot's own name."""
        labels = {names.LABEL_INSTALLATION: self.installation, names.LABEL_KIND: "slot"}
        return [
            found.id
            for found in await self.engine.containers(labels)
            if found.name == names.container_name(self.installation, found.labels[names.LABEL_UID])
        ]

    async def _put(self, class_name: str, uid: str | None = None) -> str:
        uid = uid or f"warm-{uuid.uuid4().hex[:12]}"
        wanted = ExecutionWanted(
            uid=uid,
            name=uid,
            class_name=class_name,
            spec=self.spec,
            active_deadline_seconds=600,
        )
        await self.agent.put(wanted, None)
        return uid

    async def _gone(self, uid: str) -> None:
        async def ended() -> bool:
            return (await self.agent.get(uid)).outcome is not None

        async def removed() -> bool:
            return (await self.agent.remove(uid, None)).nothing_left

        await _until(ended)
        await _until(removed)

    async def _serving(self) -> None:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(errors.Unavailable):
                    if (await self.agent.node()).runtimes:
                        return
                await asyncio.sleep(0.1)

    async def _clear(self) -> None:
        await self.agent.put_pools(PoolsWanted(), None)

        async def gone() -> bool:
            return not await self._slots()

        await _until(gone)


async def _until(reached: Callable[[], Awaitable[bool]], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await reached():
                return
            await asyncio.sleep(0.02)


_QUANTILES = ("p50", "p90", "p99", "least", "most")


def _cells(values: list[float]) -> list[str]:
    found = [quantile(values, part) for part in (0.5, 0.9, 0.99)]
    return [f"{1000 * value:.1f}" for value in (*found, min(values), max(values))]
