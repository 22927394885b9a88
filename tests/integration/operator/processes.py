"""Operators as processes, and agents in this one that they reach over Unix sockets."""

import asyncio
import contextlib
import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fakes.agent import FakeAgent
from isolet.agent.server.server import AgentServer
from isolet.base import steps
from isolet.base.tls import TLSFiles
from isolet.cli import pki
from isolet.wire import http
from tests.integration.operator.harness import World, until

ROOT = Path(__file__).parents[3]
LEASE = {"duration": 10.0, "renew": 7.5, "retry": 0.2, "request": 3.0, "heartbeat": 7.0}
"""Waited out by those who replace a leader; a busy machine does not lose it."""
SHORT_LEASE = {"duration": 3.0, "renew": 2.2, "retry": 0.2, "request": 1.0, "heartbeat": 2.0}
SHORT_LINKS = {"account_every": 0.5, "silence": 3.0, "backoff": 0.05, "backoff_cap": 0.2}
CONSTANTS = {
    "isolet.plan.node.HEARD_SECONDS": 4.0,
    "isolet.plan.orphans.GRACE_SECONDS": 0.5,
    "isolet.plan.orphans.LOOK_SECONDS": 0.5,
}


class OperatorProcess:
    """One operator process, with its log in a file."""

    def __init__(
        self, world: World, folder: Path, *, lease: dict[str, float] = LEASE, **trap: str
    ) -> None:
        settings = dataclasses.asdict(world.settings())
        settings |= {
            "kubeconfig": str(world.kubeconfig),
            "agent_tls": str(world.agent_tls) if world.agent_tls else None,
            "lease": lease,
            "links": SHORT_LINKS,
            "resync_seconds": 1.0,
            "drain_seconds": 3.0,
        }
        self.identity = settings["identity"]
        self.log = folder / f"{self.identity}.log"
        environment = {**os.environ, **trap}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.operator.launch",
                    json.dumps({"settings": settings, "constants": CONSTANTS}),
                ],
                cwd=ROOT,
                env=environment,
                stderr=out,
                stdout=out,
            )

    def entries(self) -> list[dict[str, Any]]:
        """The log's lines."""
        found = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def led(self) -> bool:
        return any(entry.get("msg") == "leading" for entry in self.entries())

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            self.process.send_signal(number)

    async def ended(self, seconds: float = 60) -> int:
        await until(lambda: not self.alive, f"{self.identity} ended", seconds)
        return int(self.process.returncode)

    async def close(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        await self.ended()


@contextlib.asynccontextmanager
async def served(world: World, folder: Path, *, over_tls: bool = False) -> AsyncIterator[Any]:
    """Makes nodes whose agents processes can reach, and over TLS each other's too."""
    servers = []
    now = datetime.datetime.now(datetime.UTC)
    authority = pki.authority(now)
    if over_tls:
        world.agent_tls = folder / "operator"
        pki.write(world.agent_tls, pki.client(authority, http.IDENTITY_OPERATOR, now), authority)

    async def add(name: str) -> FakeAgent:
        agent = FakeAgent(f"{name}-{world.suffix}", bookmark=0.5)
        world.agents[agent.name] = agent
        server = AgentServer(agent)
        servers.append(server)
        if over_tls:
            mine = folder / agent.name
            pki.write(mine, pki.node(authority, agent.name, ["127.0.0.1"], now), authority)
            port = await server.listen_tls("127.0.0.1", 0, TLSFiles.in_folder(mine))
            await world.add_node(name, endpoint=f"https://127.0.0.1:{port}")
        else:
            socket = folder / f"{agent.name}.sock"
            await server.listen_unix(socket)
            await world.add_node(name, endpoint=f"unix://{socket}")
        return agent

    try:
        yield add
    finally:
        for server in servers:
            await server.close()


def trap(step: str, file: Path, action: str) -> dict[str, str]:
    """Environment that strikes a process at a step."""
    return {steps.ENV_AT: step, steps.ENV_ACTION: action, steps.ENV_FILE: str(file)}


async def struck(file: Path, step: str, seconds: float = 60) -> None:
    """Wait until a process has reached its trap."""
    await until(lambda: file.exists() and step in file.read_text().splitlines(), step, seconds)
    await asyncio.sleep(0.1)
