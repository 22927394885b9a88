"""The HTTP session that kopf is given, over real TLS: it is over only once its sockets are."""

import asyncio
import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from isolet.base import errors
from isolet.cli import pki
from isolet.operator.cluster import Access, KubeCluster, kopf_session
from isolet.operator.kube import NODES

LATE = 0.5
"""Seconds after which the server says farewell: longer than a few turns of the loop."""
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Begin one answer that never ends, and answer its reader's farewell late."""
    plain, _ = listener.accept()
    with context.wrap_socket(plain, server_side=True) as made:
        while b"\r\n\r\n" not in made.recv(65536):
            continue
        made.sendall(HEAD)
        while made.recv(65536):
            continue
        time.sleep(LATE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig that leads to it."""
    now = datetime.datetime.now(datetime.UTC)
    authority = pki.authority(now)
    pki.write(tmp_path / "n", pki.node(authority, "n", ["127.0.0.1"], now), authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "n" / "tls.crt", tmp_path / "n" / "tls.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, context))
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        cluster = {"server": url, "certificate-authority": str(tmp_path / "n" / "ca.crt")}
        file = tmp_path / "kubeconfig"
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file.write_text(yaml.safe_dump(config))
        yield file
        thread.join(60)


async def test_a_watch_that_was_cut_off_is_waited_for(server: Path) -> None:
    session = await kopf_session(Access(kubeconfig=server))
    answer = await session.http.get(session.server + "/watch")
    assert await answer.content.readany() == b"{}"
    answer.close()
    await session.http.close()
    began = time.monotonic()
    assert not await session.sockets.closed(within=0), "the control: it is open still"
    assert await session.sockets.closed(within=60)
    assert time.monotonic() - began > LATE / 2


async def test_a_call_that_was_given_up_is_waited_for(server: Path) -> None:
    cluster = await KubeCluster.connect(Access(kubeconfig=server), timeout=LATE)
    with pytest.raises(errors.Unavailable):
        await cluster.get(NODES, "", "n")
    made = list(cluster._sockets._made)
    assert [each.fileno() != -1 for each in made] == [True]
    await cluster.close()
    assert [each.fileno() for each in made] == [-1]


async def test_a_server_that_never_says_farewell_is_not_waited_for(server: Path) -> None:
    session = await kopf_session(Access(kubeconfig=server))
    async with asyncio.timeout(60):
        answer = await session.http.get(session.server + "/watch")
        answer.close()
        await session.http.close()
        assert not await session.sockets.closed(within=LATE / 5)
        assert await session.sockets.closed(within=60)
