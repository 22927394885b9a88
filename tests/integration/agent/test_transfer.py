"""Two agents, each on an engine of its own: a Checkpoint of one is restored by the other."""

import asyncio
import contextlib
import datetime
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from isolet.agent.host import ExecutionHost, restored_spec
from isolet.agent.server.server import AgentServer
from isolet.agent.transfer.s3 import S3Store
from isolet.base import errors
from isolet.base.tls import TLSFiles
from isolet.cli import pki
from isolet.client.http import HTTPAgent
from isolet.plan import reasons
from isolet.wire import http
from isolet.wire.checkpoint import CheckpointObserved, Part
from isolet.wire.execution import ExecRequest, ExecutionObserved, ExecutionWanted, Medium
from isolet.wire.restore import Grant, Peer, Restore, RestoreFrom, StoreCopy
from tests.contract.transfer.conftest import SECRET, Server, s3_server
from tests.integration.agent import checkpoints
from tests.integration.agent.conftest import Node, environment
from tests.ports import free_port

FILL = (
    "mkdir d; echo kept >d/f; head -c 2000000 /dev/urandom >big; chmod 600 big; sha256sum big d/f"
)


class Pair:
    """Two nodes; the first is served over mutual TLS."""

    def __init__(self, first: Node, second: Node, pki_folder: Path) -> None:
        self.first, self.second = first, second
        self.pki = pki_folder
        self.port = 0
        self.server: AgentServer | None = None

    async def serve(self) -> None:
        self.server = AgentServer(self.first.service)
        files = TLSFiles.in_folder(self.pki / "node-0")
        self.port = await self.server.listen_tls("127.0.0.1", 0, files)

    async def stop(self) -> None:
        """The first node is gone."""
        if self.server is not None:
            await self.server.close()
            self.server = None

    def client(self, who: str) -> HTTPAgent:
        files = TLSFiles.in_folder(self.pki / who)
        return HTTPAgent(f"https://127.0.0.1:{self.port}", node="node-0", files=files)

    def peer(self, grant: Grant) -> RestoreFrom:
        endpoint = f"https://127.0.0.1:{self.port}"
        return RestoreFrom(peer=Peer(node="node-0", endpoint=endpoint, grant=grant))


def certificates(folder: Path) -> Path:
    now = datetime.datetime.now(datetime.UTC)
    issuer = pki.authority(now)
    for name in ("node-0", "node-1", "node-2"):
        pki.write(folder / name, pki.node(issuer, name, ["127.0.0.1"], now), issuer)
    operator = pki.client(issuer, http.IDENTITY_OPERATOR, now)
    pki.write(folder / "operator", operator, issuer)
    return folder


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("s3"), free_port()) as running:
        yield running


@contextlib.asynccontextmanager
async def a_pair(tmp_path: Path, server: Server | None) -> AsyncIterator[Pair]:
    sockets = environment("ISOLET_DOCKER_SOCKETS").split()
    folder = certificates(tmp_path / "pki")
    nodes = [Node(sockets[n % len(sockets)], tmp_path / f"n{n}", f"node-{n}") for n in (0, 1)]
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            node.certificate = TLSFiles.in_folder(folder / node.name)
            if server is not None:
                node.object_store = S3Store(server.access)
                stack.push_async_callback(node.object_store.close)
            stack.push_async_callback(node.clear)
            await node.open()
        pair = Pair(*nodes, folder)
        stack.push_async_callback(pair.stop)
        await pair.serve()
        yield pair


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with a_pair(tmp_path, None) as made:
        yield made


@pytest_asyncio.fixture
async def stored(tmp_path: Path, s3: Server) -> AsyncIterator[Pair]:
    async with a_pair(tmp_path, s3) as made:
        yield made


async def taken(
    pair: Pair, spec, medium: Medium = Medium.DISK, fill: str = FILL, **changes: object
) -> tuple[CheckpointObserved, bytes]:
    """A Checkpoint on the first node and what its workspace looked like; its session is gone."""
    host = ExecutionHost(pair.first.service)
    seen = await host.provision(spec(medium=medium, **changes))
    result = await host.exec(seen.uid, ExecRequest(command=("sh", "-c", fill)))
    assert result.exit_code == 0, result.stderr
    found = await checkpoints.take(pair.first.service, f"c-{uuid.uuid4().hex[:6]}", seen.uid)
    assert found.outcome.succeeded, found.outcome
    await host.reclaim(seen.uid)
    return found, result.stdout


async def restored(
    pair: Pair, seen: CheckpointObserved, told: RestoreFrom | None
) -> ExecutionObserved:
    """What becomes of a session on the second node that starts from it."""
    restore = Restore(
        checkpoint_uid=seen.uid,
        manifest_digest=seen.manifest_digest,
        content_digest=seen.manifest.content_digest,
    )
    spec = restored_spec(seen.manifest).model_copy(update={"restore": restore})
    wanted = ExecutionWanted(
        uid=f"e-{uuid.uuid4().hex[:6]}",
        name="again",
        spec=spec,
        active_deadline_seconds=300,
        restore_from=told,
    )
    service = pair.second.service
    await service.put(wanted, None)
    async with asyncio.timeout(120):
        while True:
            found = await service.get(wanted.uid)
            if found.step.value == "Running" or found.outcome is not None:
                return found
            await asyncio.sleep(0.05)


async def look(pair: Pair, seen: ExecutionObserved) -> bytes:
    assert seen.outcome is None, seen.outcome
    command = ("sh", "-c", "sha256sum big d/f")
    result = await ExecutionHost(pair.second.service).exec(seen.uid, ExecRequest(command=command))
    return result.stdout


@pytest.mark.parametrize("medium", list(Medium))
async def test_from_node_to_node_under_a_grant(pair: Pair, spec, medium: Medium, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    seen, before = await taken(pair, spec, medium)
    operator = pair.client("operator")
    grant = await operator.grant_checkpoint(seen.uid, "node-1", 60, None)
    await operator.close()
    again = await restored(pair, seen, pair.peer(grant))
    assert await look(pair, again) == before
    assert list((pair.second.root / "state" / "checkpoints").glob("*/*")) == []
    assert grant.token not in caplog.text
    async with asyncio.timeout(60):  # Whoever gave it out hears of the end a little later.
        while (await pair.first.service.get_checkpoint(seen.uid)).readers:
            await asyncio.sleep(0.05)


async def refused(pair: Pair, who: str, seen: CheckpointObserved, token: str) -> str:
    client = pair.client(who)
    try:
        with pytest.raises(errors.Refused) as caught:
            await anext(client.read_checkpoint(seen.uid, Part.MANIFEST, token=token))
        return caught.value.reason
    finally:
        await client.close()


async def test_no_other_grant_lets_anyone_read(pair: Pair, spec) -> None:
    seen, _ = await taken(pair, spec)
    other, _ = await taken(pair, spec)
    service = pair.first.service
    mine = await service.grant_checkpoint(seen.uid, "node-1", 60, None)
    short = await service.grant_checkpoint(seen.uid, "node-1", 1, None)
    forged = mine.token[:-2] + ("AA" if mine.token[-2:] != "AA" else "BB")
    assert await refused(pair, "node-1", seen, forged) == "GrantRefused"
    assert await refused(pair, "node-2", seen, mine.token) == "GrantRefused"
    assert await refused(pair, "node-1", other, mine.token) == "GrantRefused"
    assert await refused(pair, "operator", seen, mine.token) == "IdentityNotAllowed"
    await asyncio.sleep(1.1)
    assert await refused(pair, "node-1", seen, short.token) == "GrantRefused"
    client = pair.client("node-1")
    read = [p async for p in client.read_checkpoint(seen.uid, Part.MANIFEST, token=mine.token)]
    assert b"".join(read) == seen.manifest.to_json()
    await client.close()
    expired = await restored(pair, seen, pair.peer(short))
    assert expired.outcome.reason == reasons.CHECKPOINT_UNAVAILABLE
    assert short.token not in expired.outcome.message
    await ExecutionHost(pair.second.service).reclaim(expired.uid)
    assert list((pair.second.root / "state" / "checkpoints").glob("*/*")) == []


async def test_a_copy_is_not_removed_under_its_reader(pair: Pair, spec) -> None:
    # More than sockets hold, so that it cannot all be on its way.
    fill, room = "head -c 48000000 /dev/urandom >big", {"workspace_bytes": 64 << 20}
    seen, _ = await taken(pair, spec, fill=fill, resources=room)
    service = pair.first.service
    grant = await service.grant_checkpoint(seen.uid, "node-1", 60, None)
    client = pair.client("node-1")
    stream = client.read_checkpoint(seen.uid, Part.CONTENT, token=grant.token)
    await anext(stream)
    assert (await service.get_checkpoint(seen.uid)).readers == 1
    await service.remove_checkpoint(seen.uid, None)
    async with asyncio.timeout(60):
        while (waiting := (await service.get_checkpoint(seen.uid)).waiting) is None:
            await asyncio.sleep(0.05)
    assert waiting.reason == reasons.CHECKPOINT_IN_USE
    await stream.aclose()
    await client.close()
    assert (await checkpoints.gone(service, seen.uid)).nothing_left


async def in_store(pair: Pair, seen: CheckpointObserved) -> StoreCopy:
    async with asyncio.timeout(60):
        while (copy := (await pair.first.service.get_checkpoint(seen.uid)).in_store) is None:
            await asyncio.sleep(0.05)
        return copy


def kept(s3: Server) -> list[Path]:
    return [path for path in (s3.data / "isolet").rglob("*") if path.is_file()]


async def test_the_store_stands_in_for_a_node_that_is_gone(
    stored: Pair, s3: Server, spec, caplog
) -> None:
    caplog.set_level(logging.DEBUG)
    seen, before = await taken(stored, spec)
    grant = await stored.first.service.grant_checkpoint(seen.uid, "node-1", 60, None)
    copy = await in_store(stored, seen)
    assert len(kept(s3)) == 3
    await stored.stop()
    await stored.first.close()
    told = stored.peer(grant).model_copy(update={"in_store": copy})
    assert await look(stored, await restored(stored, seen, told)) == before
    # Its node is gone for good: another one that has the store removes it.
    gone = await stored.second.service.remove_checkpoint(seen.uid, None)
    assert gone.nothing_left
    assert kept(s3) == []
    for secret in (SECRET, grant.token):
        assert secret not in caplog.text


async def test_it_goes_from_the_store_with_its_checkpoint(stored: Pair, s3: Server, spec) -> None:
    seen, _ = await taken(stored, spec)
    await in_store(stored, seen)
    assert len(kept(s3)) == 3
    assert (await stored.first.service.node()).object_stores == ("main",)
    assert (await checkpoints.gone(stored.first.service, seen.uid)).nothing_left
    assert kept(s3) == []


async def test_a_store_that_is_down_is_said_and_waited_for(tmp_path: Path, spec) -> None:
    port = free_port()
    with s3_server(tmp_path / "s3", port) as running:
        pass
    async with a_pair(tmp_path, running) as pair:
        seen, _ = await taken(pair, spec)
        async with asyncio.timeout(60):
            while (waiting := (await pair.first.service.get_checkpoint(seen.uid)).waiting) is None:
                await asyncio.sleep(0.1)
        assert waiting.reason == reasons.OBJECT_STORE_UNAVAILABLE
        assert (await pair.first.service.get_checkpoint(seen.uid)).on_node
        with s3_server(tmp_path / "s3", port):
            await in_store(pair, seen)
            assert (await checkpoints.gone(pair.first.service, seen.uid)).nothing_left
