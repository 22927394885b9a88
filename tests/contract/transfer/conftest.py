"""Two nodes' folders, a server of the first, and a real S3 server."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isolet.agent.server.server import AgentServer
from isolet.agent.transfer.s3 import Access, S3Store
from isolet.agent.workspace.checkpoints import CheckpointFolders
from isolet.base.tls import TLSFiles
from isolet.wire.checkpoint import Part
from isolet.wire.restore import Grant, Peer, Restore
from tests.contract.client.conftest import certificates as certificates
from tests.contract.client.harness import LIMITS, NODE
from tests.contract.client.memory import MemoryAgent
from tests.contract.client.memory_checkpoints import NOON
from tests.contract.transfer.copy import UID, make
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
KEY, SECRET = "isolet-test", "isolet-test-secret-k7Qp"


@dataclass
class Nodes:
    """A copy on the first node, a server that gives it out, and a second node without one."""

    here: CheckpointFolders
    there: CheckpointFolders
    restore: Restore
    agent: MemoryAgent
    port: int
    files: TLSFiles

    def peer(self, port: int | None = None, **changes: object) -> Peer:
        grant = Grant(token=f"{UID}/node-2", expires_at=NOON)
        endpoint = f"https://127.0.0.1:{port or self.port}"
        return Peer(node=NODE, endpoint=endpoint, grant=grant).model_copy(update=changes)


def folders(root: Path) -> CheckpointFolders:
    made = CheckpointFolders(root)
    made.prepare()
    return made


@pytest.fixture
async def nodes(tmp_path: Path, certificates: Path) -> AsyncIterator[Nodes]:
    first, second = folders(tmp_path / "node-1"), folders(tmp_path / "node-2")
    restore = make(first, tmp_path / "work")
    agent = MemoryAgent(name=NODE)
    agent.parts = {(UID, part): first.part(UID, part.value).read_bytes() for part in Part}
    server = AgentServer(agent, limits=LIMITS)
    port = await server.listen_tls("127.0.0.1", 0, TLSFiles.in_folder(certificates / NODE))
    files = TLSFiles.in_folder(certificates / "node-2")
    yield Nodes(second, first, restore, agent, port, files)
    await server.close()


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        assert process.poll() is None, "the S3 server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the S3 server does not listen")


@dataclass
class Server:
    """A real S3 server over a folder."""

    port: int
    data: Path
    process: "subprocess.Popen[bytes]"
    access: Access


@contextlib.contextmanager
def s3_server(folder: Path, port: int) -> Iterator[Server]:
    """Run versitygw; its bucket is the folder `data/isolet`."""
    tools = subprocess.run(
        [ROOT / "hack" / "tools", "versitygw"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    data = folder / "data"
    (data / "isolet").mkdir(parents=True, exist_ok=True)
    credentials = folder / "store.ini"
    credentials.write_text(
        f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    credentials.chmod(0o600)
    environment = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET, "PATH": os.environ["PATH"]}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [f"{tools}/versitygw", "--port", f"127.0.0.1:{port}", "posix", str(data)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    access = Access(
        name="main",
        endpoint=f"http://127.0.0.1:{port}",
        bucket="isolet",
        prefix="checkpoints/",
        region="us-east-1",
        credentials=credentials,
        authority=None,
    )
    try:
        wait_for(port, process)
        yield Server(port, data, process, access)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("s3"), free_port()) as running:
        yield running


@pytest.fixture
async def store(server: Server) -> AsyncIterator[S3Store]:
    made = S3Store(server.access)
    yield made
    await made.close()
