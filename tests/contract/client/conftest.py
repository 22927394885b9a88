"""One agent in memory, reached in three ways: called, over a Unix socket, over mutual TLS."""

import datetime
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from isolet.agent.server.handlers import Limits
from isolet.agent.server.server import AgentServer
from isolet.base.tls import TLSFiles
from isolet.cli import pki
from isolet.wire import http
from tests.contract.client.harness import LIMITS, NODE, Served, Way
from tests.contract.client.memory import MemoryAgent


def server_only(issuer: pki.Pair, now: datetime.datetime) -> pki.Pair:
    """A node's certificate as an earlier version made it."""
    name = x509.DNSName(http.server_name("node-2"))
    purposes = (ExtendedKeyUsageOID.SERVER_AUTH,)
    return pki._leaf(issuer, "node-2", [name], purposes, now, 1)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of certificates: each client's, the node's, another node's, a stranger's."""
    folder = tmp_path_factory.mktemp("pki")
    now = datetime.datetime.now(datetime.UTC)
    ours, strange = pki.authority(now), pki.authority(now)
    for name, pair, issuer in (
        ("operator", pki.client(ours, http.IDENTITY_OPERATOR, now), ours),
        ("stream", pki.client(ours, http.IDENTITY_STREAM, now), ours),
        ("dispatch", pki.client(ours, http.IDENTITY_DISPATCH, now), ours),
        (NODE, pki.node(ours, NODE, ["127.0.0.1", "localhost"], now), ours),
        ("node-2", pki.node(ours, "node-2", ["127.0.0.1"], now), ours),
        ("server-only", server_only(ours, now), ours),
        ("stranger", pki.client(strange, http.IDENTITY_OPERATOR, now), ours),
        ("distrustful", pki.client(ours, http.IDENTITY_OPERATOR, now), strange),
    ):
        pki.write(folder / name, pair, issuer)
    return folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="isolet-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def limits() -> Limits:
    """What the served agent bears."""
    return LIMITS


@pytest.fixture
async def served(short_folder: Path, certificates: Path, limits: Limits) -> AsyncIterator[Served]:
    agent = MemoryAgent(name=NODE, bookmark_seconds=0.05)
    server = AgentServer(agent, limits=limits)
    socket = short_folder / "agent.sock"
    await server.listen_unix(socket)
    files = TLSFiles.in_folder(certificates / NODE)
    port = await server.listen_tls("127.0.0.1", 0, files)
    probes = await server.listen_probes("127.0.0.1", 0)
    yield Served(agent, server, socket, port, probes, certificates)
    await server.close()


@pytest.fixture(params=["called", "unix", "tls"])
async def way(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Way]:
    if request.param == "called":
        yield Way(served.agent, served.agent, served.agent)
        return
    one = served.over_unix() if request.param == "unix" else served.over_tls()
    other = served.over_unix() if request.param == "unix" else served.over_tls("stream")
    yield Way(one, other, served.agent)
    await one.close()
    await other.close()
