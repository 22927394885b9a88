"""A whole agent service on a real engine with real disks, in this process, without HTTP."""

import os
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from isolet.agent import deadlines
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.engine.api import Timeouts
from isolet.agent.engine.docker import DockerEngine
from isolet.agent.host import ExecutionHost
from isolet.agent.policy import model as policy_model
from isolet.agent.service.context import Context
from isolet.agent.service.service import Service
from isolet.agent.store.sqlite import SQLiteStore
from isolet.agent.transfer.objectstore import ObjectStore
from isolet.agent.workspace.disk import DiskWorkspaces
from isolet.agent.workspace.launch import LaunchFolders
from isolet.agent.workspace.mirrors import Mirrors
from isolet.agent.workspace.trees import Trees
from isolet.base.clock import SystemClock
from isolet.base.tls import TLSFiles
from isolet.wire.execution import ExecutionSpec, Medium, Resources, Workspace

MIB = 1 << 20


def environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f'{name} is not set: run through hack/test, or eval "$(hack/cluster env)"')
    return value


@pytest.fixture(scope="session")
def socket() -> str:
    return environment("ISOLET_DOCKER_SOCKETS").split()[0]


@pytest.fixture(scope="session")
def shell() -> str:
    return environment("ISOLET_IMAGE_SHELL")


@pytest.fixture(scope="session")
def python() -> str:
    return environment("ISOLET_IMAGE_PYTHON")


class Node:
    """One agent's places; the service can be closed and opened again over them."""

    def __init__(self, socket: str, root: Path, name: str = "node-0") -> None:
        self.socket = socket
        self.root = root
        self.name = name
        self.key = os.urandom(32)
        self.certificate: TLSFiles | None = None
        self.object_store: ObjectStore | None = None
        self.installation = f"test-{uuid.uuid4().hex[:8]}"
        self.run = Path("/run/isolet-test") / self.installation
        self.policy = policy_model.default(
            policy_model.NodeFacts(cpus=64, memory_bytes=20 << 30, disk_bytes=20 << 30)
        )
        self.timeouts = Timeouts()
        self.service: Service | None = None
        self.engine: DockerEngine | None = None
        self.store: SQLiteStore | None = None
        self._closers: list[object] = []

    async def open(self) -> Service:
        engine = DockerEngine(self.socket, installation=self.installation, timeouts=self.timeouts)
        store = await SQLiteStore.open(self.root / "state")
        disks = DiskWorkspaces(self.root / "disks")
        await disks.prepare()
        launches = LaunchFolders(self.run / "launch")
        await launches.prepare()
        trees, mirrors = Trees(self.root / "trees"), Mirrors(self.root / "mirrors")
        trees.prepare()
        mirrors.prepare()
        context = Context(
            node=self.name,
            installation=self.installation,
            boot_id=deadlines.boot_id(),
            kernel=Path("/proc/version").read_text().strip(),
            key=self.key,
            state=self.root / "state",
            engine=engine,
            store=store,
            disks=disks,
            launches=launches,
            trees=trees,
            mirrors=mirrors,
            clock=SystemClock(),
            policy=self.policy,
            proof_of_runtime=lambda pid: "runsc" in Path(f"/proc/{pid}/cmdline").read_text(),
            certificate=self.certificate,
            object_store=self.object_store,
        )
        book = DeadlineBook(self.run / "deadlines.json", self.installation)
        self.service = Service(context, book)
        self.engine, self.store = engine, store
        self._closers = [engine, store]
        await self.service.start()
        await self.service.qualified()
        return self.service

    async def close(self) -> None:
        if self.service is not None:
            await self.service.close()
            for closer in self._closers:
                await closer.close()
            self.service = None

    async def clear(self) -> None:
        """Leave nothing of it on this machine but its records."""
        if self.service is None:
            await self.open()
        host = ExecutionHost(self.service)
        for seen in await host.list():
            await host.reclaim(seen.uid)
        await self.close()
        await LaunchFolders(self.run / "launch").close()
        shutil.rmtree(self.run, ignore_errors=True)


@pytest_asyncio.fixture
async def node(socket: str, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(socket, tmp_path)
    await node.open()
    yield node
    await node.clear()


@pytest.fixture
def host(node: Node) -> ExecutionHost:
    return ExecutionHost(node.service)


@pytest.fixture
def spec(shell: str):
    def make(*command: str, **changes: object) -> ExecutionSpec:
        resources = Resources(
            cpu_millis=1000,
            memory_bytes=64 * MIB,
            workspace_bytes=16 * MIB,
            tmp_bytes=4 * MIB,
            shm_bytes=MIB,
            pids=64,
            output_bytes=MIB,
        ).model_copy(update=changes.pop("resources", {}))
        workspace = Workspace(
            medium=changes.pop("medium", Medium.MEMORY),
            retain_seconds=changes.pop("retain_seconds", 0),
        )
        base = {"image": shell, "resources": resources, "workspace": workspace, "command": command}
        return ExecutionSpec(**{**base, **changes})

    return make
