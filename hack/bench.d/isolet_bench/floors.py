"""What a warm start stands beside: the bare engine, with containers of the same configuration.

A container that waits is made and started first; then only the write into its stdin is timed, to
the first byte that comes out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from isolet.agent.engine.api import API, label_filter
from isolet.agent.engine.config import create_body
from isolet.agent.service import config, pool_records
from isolet.agent.workspace import script
from isolet.base import names
from isolet.wire.pool import PoolWanted

from .outputs import Outputs
from .raw import INSTALLATION, NONCE

Body = dict[str, object]
SETTLE = 0.3
"""Seconds after a container was started until it waits; nobody says when."""


class Floors:
    """Containers beside the agent's, on the same engine."""

    def __init__(self, api: API, outputs: Outputs, folder: Path, state: Path) -> None:
        """`folder` is on the tmpfs of the launch folders, `state` on the disk of the database."""
        self._api = api
        self._outputs = outputs
        self._folder = folder
        self._database = sqlite3.connect(state / "bench.db", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS t (x TEXT)")

    def close(self) -> None:
        """Let go of the disk."""
        self._database.close()

    async def commit(self) -> float:
        """What durability itself costs on the agent's disk: the one wait that no call can avoid."""
        began = time.monotonic()
        self._database.execute("INSERT INTO t VALUES (?)", ("x" * 1500,))
        return time.monotonic() - began

    @contextlib.asynccontextmanager
    async def line(self, pool: PoolWanted, word: str) -> AsyncIterator[str]:
        """A shell that reads a line and answers it."""
        command = ("sh", "-c", f"read -r l; echo {word}; exec sleep 60")
        async with self._started(pool, command=command) as (container, _):
            yield container

    @contextlib.asynccontextmanager
    async def launcher(self, pool: PoolWanted, word: str) -> AsyncIterator[str]:
        """The agent's own two scripts, with nobody but us between the line and the program."""
        async with self._started(pool) as (container, folder):
            argv = ("sh", "-c", f"echo {word}; exec sleep 60")
            content = script.build(script.Launch(argv=argv, nonce=NONCE[::-1]))
            (folder / config.MAIN_SCRIPT).write_bytes(content)
            yield container

    @contextlib.asynccontextmanager
    async def runner(self, pool: PoolWanted) -> AsyncIterator[str]:
        """The pool's own runner, which has the engine's stdin as its own."""
        assert pool.runner is not None
        async with self._started(pool, command=pool.runner.command, once=True) as (container, _):
            yield container

    async def write(self, container: str, data: bytes, word: str) -> float:
        """Seconds from the write into a waiting container's stdin until it says the word."""
        query = {"stream": "1", "stdin": "1"}
        async with self._api.hijack(f"/containers/{container}/attach", query=query) as (stream, _):
            await asyncio.sleep(0.02)
            began = time.monotonic()
            await stream.send(data)
            stream.finish_sending()
            return await self._outputs.first(word) - began

    async def cold(self, pool: PoolWanted, word: str) -> float:
        """Create and start a container that says the word: docker run."""
        body, folder = self._body(pool, ("echo", word))
        began = time.monotonic()
        container = await self._create(body)
        try:
            await self._api.change("POST", f"/containers/{container}/start")
            return await self._outputs.first(word) - began
        finally:
            await self._remove(container, folder)

    async def once(self, pool: PoolWanted) -> None:
        """A container from nothing to nothing."""
        body, folder = self._body(pool, ("true",))
        container = await self._create(body)
        try:
            await self._api.change("POST", f"/containers/{container}/start")
            await self._api.change("POST", f"/containers/{container}/wait", within=120.0)
        finally:
            await self._remove(container, folder)

    async def slots(self, labels: dict[str, str]) -> dict[str, list[str]]:
        """Containers of warm slots, by class."""
        query = {"filters": label_filter({**labels, names.LABEL_KIND: "slot"})}
        reply = await self._api.get("/containers/json", query)
        found: dict[str, list[str]] = {}
        for each in reply.read(list):
            found.setdefault(each["Labels"][names.LABEL_CLASS], []).append(each["Id"])
        return found

    async def memory(self, container: str) -> int:
        """Bytes that a container's cgroup holds now."""
        query = {"stream": "0", "one-shot": "1"}
        reply = await self._api.get(f"/containers/{container}/stats", query, within=60.0)
        return int(reply.read(lambda raw: raw["memory_stats"].get("usage", 0)))

    @contextlib.asynccontextmanager
    async def _started(
        self, pool: PoolWanted, *, command: tuple[str, ...] | None = None, once: bool = False
    ) -> AsyncIterator[tuple[str, Path]]:
        body, folder = self._body(pool, command)
        container = await self._create(body | {"StdinOnce": once})
        try:
            await self._api.change("POST", f"/containers/{container}/start")
            yield container, folder
        finally:
            await self._remove(container, folder)

    def _body(self, pool: PoolWanted, command: tuple[str, ...] | None) -> tuple[Body, Path]:
        """A slot's container, as the agent would have it made."""
        uid = f"floor-{uuid.uuid4().hex}"
        folder = self._folder / uid
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        waiting = script.wait(NONCE, 600, config.MAIN_SCRIPT)
        (folder / config.SLOT_SCRIPT).write_bytes(waiting)
        record = pool_records.new(pool, uid, INSTALLATION, datetime.now(UTC))
        asked = config.sandbox(record, installation=INSTALLATION, launch_folder=str(folder))
        body = create_body(asked)
        if command is not None:
            body["Cmd"] = list(command)
        return body, folder

    async def _create(self, body: Body) -> str:
        reply = await self._api.change("POST", "/containers/create", body=body)
        return str(reply.read(lambda raw: raw["Id"]))

    async def _remove(self, container: str, folder: Path) -> None:
        query = {"v": "1", "force": "1"}
        await self._api.change("DELETE", f"/containers/{container}", query)
        shutil.rmtree(folder, ignore_errors=True)
