"""What the suite is made of: a message, a served agent, the ways to call it."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from isolet.agent.server.handlers import Limits
from isolet.agent.server.parse import BodyPace
from isolet.agent.server.server import AgentServer
from isolet.base.tls import TLSFiles
from isolet.client.connection import Timeouts
from isolet.client.http import HTTPAgent
from isolet.wire.agent_api import AgentAPI
from isolet.wire.execution import ExecutionSpec, ExecutionWanted, Resources
from tests.contract.client.memory import MemoryAgent

NODE = "node-1"
LIMITS = Limits(connections=24, streams=3, shutdown_seconds=0.5)
HASTY = replace(
    LIMITS,
    idle_seconds=0.4,
    handshake_seconds=0.4,
    stream_write_seconds=0.4,
    answer_seconds=0.4,
    pace=BodyPace(grace_seconds=0.4),
)
"""For those who wait until one of them is passed; on a busy machine others would pass them too."""
hasty = pytest.mark.parametrize("limits", [HASTY], ids=["hasty"])
TIMEOUTS = Timeouts(connect=20, read=60, write=60, output=60, exec_grace=60, watch_inactivity=60)


def resources(**changes: int) -> Resources:
    sizes = {
        "cpu_millis": 500,
        "memory_bytes": 64 << 20,
        "workspace_bytes": 16 << 20,
        "tmp_bytes": 4 << 20,
        "shm_bytes": 1 << 20,
        "pids": 64,
        "output_bytes": 1 << 20,
    }
    return Resources(**{**sizes, **changes})


def wanted(uid: str = "uid-1", **changes: object) -> ExecutionWanted:
    spec = ExecutionSpec(image="sha256:" + "a" * 64, resources=resources())
    base = {"uid": uid, "name": "hello", "spec": spec, "active_deadline_seconds": 60}
    return ExecutionWanted.model_validate({**base, **changes})


@dataclass
class Served:
    """An agent behind its server."""

    agent: MemoryAgent
    server: AgentServer
    socket: Path
    port: int
    probes: int
    certificates: Path

    def over_unix(self, **options: object) -> HTTPAgent:
        return HTTPAgent(f"unix://{self.socket}", **{"timeouts": TIMEOUTS, **options})

    def over_tls(self, who: str = "operator", **options: object) -> HTTPAgent:
        files = TLSFiles.in_folder(self.certificates / who)
        endpoint = f"https://127.0.0.1:{self.port}"
        return HTTPAgent(
            endpoint, **{"node": NODE, "files": files, "timeouts": TIMEOUTS, **options}
        )


@dataclass
class Way:
    """A way to call an agent, and the agent behind it; over TLS each right has a caller."""

    api: AgentAPI
    streams: AgentAPI
    agent: MemoryAgent
