"""A whole agent service on a real engine, and the runner over it; the service can be replaced."""

import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from isolet.agent.host import ExecutionHost
from isolet.agent.operations import StartRequest
from isolet.agent.runner import ProcessRunner
from isolet.agent.workspace.launch import LaunchFolders
from isolet.wire.execution import ExecutionSpec, Medium, Resources, Workspace
from isolet.wire.process import Sandbox
from tests.integration.agent.conftest import Node, environment
from tests.integration.processes.bench import Bench
from witness import Witness, loops_below

MIB = 1 << 20

LIMITS = Resources(
    cpu_millis=1000,
    memory_bytes=64 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=8 * MIB,
    shm_bytes=MIB,
    pids=64,
    output_bytes=MIB,
)


@pytest.fixture(scope="session")
def socket() -> str:
    return environment("ISOLET_DOCKER_SOCKETS").split()[0]


@pytest.fixture(scope="session")
def shell() -> str:
    return environment("ISOLET_IMAGE_SHELL")


@pytest.fixture(scope="session")
def python() -> str:
    return environment("ISOLET_IMAGE_PYTHON")


@pytest_asyncio.fixture
async def node(socket: str, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(socket, tmp_path)
    await node.open()
    yield node
    await leave(node)


async def leave(node: Node) -> None:
    """Have nothing left of a node."""
    if node.service is None:
        await node.open()
    await clear(node)
    await node.close()
    await LaunchFolders(node.run / "launch").close()
    shutil.rmtree(node.run, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(
    socket: str, shell: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bench]:
    """One agent for a module whose tests share a loop; nothing may be left of it."""
    node = Node(socket, tmp_path_factory.mktemp("agent"))
    await node.open()
    yield Bench(node, shell)
    await clear(node)
    witness = Witness(socket)
    assert witness.containers(node.installation) == []
    assert witness.volumes(node.installation) == []
    assert loops_below(node.root) == []
    await leave(node)


async def clear(node: Node) -> None:
    """Have nothing left on the node."""
    runner = ProcessRunner(node.service)
    for seen in (await node.service.snapshot()).processes:
        await runner._remove(seen.uid)
    for seen in (await node.service.snapshot()).executions:
        await ExecutionHost(node.service).reclaim(seen.uid)


@pytest.fixture
def runner(node: Node) -> ProcessRunner:
    return ProcessRunner(node.service)


@pytest.fixture
def host(node: Node) -> ExecutionHost:
    return ExecutionHost(node.service)


@pytest.fixture
def witness(socket: str) -> Witness:
    return Witness(socket)


@pytest.fixture
def sandbox(shell: str):
    def make(**changes: object) -> Sandbox:
        resources = LIMITS.model_copy(update=changes.pop("resources", {}))
        medium = changes.pop("medium", Medium.MEMORY)
        base = {"image": shell, "resources": resources, "workspace": Workspace(medium=medium)}
        return Sandbox(**{**base, **changes})

    return make


@pytest.fixture
def request_of(sandbox):
    """A start request: `request_of("sh", "-c", "…", files=…, medium=…)`."""

    def make(*command: str, **changes: object) -> StartRequest:
        own = {k: changes.pop(k) for k in ("medium", "resources", "image") if k in changes}
        place = {} if "execution_uid" in changes else {"sandbox": sandbox(**own)}
        base = {"operation_id": "one", "scope": "acme", "command": command, **place}
        return StartRequest(**{**base, **changes})

    return make


@pytest_asyncio.fixture
async def session(host: ExecutionHost, shell: str) -> str:
    """A running session's uid."""
    spec = ExecutionSpec(image=shell, resources=LIMITS)
    return (await host.provision(spec, uid="session", deadline_seconds=120)).uid


def in_seconds(seconds: float) -> datetime:
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC)
