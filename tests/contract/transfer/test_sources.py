"""Wherever a copy comes from, it is the same copy; and whoever is asked may be hostile."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from isolet.agent.service.copies import CannotRestore, NearestCopies
from isolet.agent.transfer.receive import Pace, receive
from isolet.agent.transfer.s3 import S3Store
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.checkpoint import MAX_MANIFEST_BYTES, Part
from isolet.wire.restore import RestoreFrom, StoreCopy
from tests.contract.transfer.conftest import Nodes, Server
from tests.contract.transfer.copy import UID, contents
from tests.ports import free_port

PACE = Pace(grace_seconds=30, tries=3, pause_seconds=0.01)
HASTE = Pace(grace_seconds=0.5, bytes_per_second=1 << 30, tries=2, pause_seconds=0.01)


def copies(nodes: Nodes, store: S3Store | None = None, pace: Pace = PACE) -> NearestCopies:
    return NearestCopies(nodes.here, files=nodes.files, store=store, pace=pace)


async def got(found: AbstractAsyncContextManager[Path]) -> dict[str, bytes]:
    async with found as folder:
        return contents(folder)


async def refusal(nodes: Nodes, told: RestoreFrom | None, **how: object) -> CannotRestore:
    with pytest.raises(CannotRestore) as caught:
        await got(copies(nodes, **how).fetch(nodes.restore, told))  # type: ignore[arg-type]
    assert [*(nodes.here._root / "aside").iterdir()] == []
    return caught.value


@pytest.fixture(params=["local", "peer", "store"])
async def way(
    request: pytest.FixtureRequest, nodes: Nodes, store: S3Store
) -> tuple[NearestCopies, RestoreFrom | None]:
    """One of three places that have the copy."""
    if request.param == "local":
        return NearestCopies(nodes.there), None
    if request.param == "peer":
        return copies(nodes), RestoreFrom(peer=nodes.peer())
    copy = await store.save(UID, nodes.there.folder(UID))
    return copies(nodes, store), RestoreFrom(in_store=copy)


async def test_it_is_the_same_wherever_it_is(
    nodes: Nodes, way: tuple[NearestCopies, RestoreFrom | None]
) -> None:
    found, told = way
    async with found.fetch(nodes.restore, told) as folder:
        assert contents(folder) == contents(nodes.there.folder(UID))
        assert all((folder / part.value).stat().st_mode & 0o044 for part in Part)
    assert [*(nodes.here._root / "aside").iterdir()] == []


async def test_it_is_held_until_it_is_let_go(
    nodes: Nodes, way: tuple[NearestCopies, RestoreFrom | None]
) -> None:
    found, told = way

    async def fail() -> None:
        async with found.fetch(nodes.restore, told):
            assert nodes.there.readers(UID) == (told is None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert nodes.there.readers(UID) == 0
    assert [*(nodes.here._root / "aside").iterdir()] == []


async def test_nobody_was_named(nodes: Nodes) -> None:
    assert (await refusal(nodes, None)).reason == reasons.CHECKPOINT_NOT_FOUND


async def test_the_store_stands_in_for_a_node_that_is_gone(nodes: Nodes, store: S3Store) -> None:
    copy = await store.save(UID, nodes.there.folder(UID))
    gone = nodes.peer(free_port())
    told = RestoreFrom(peer=gone, in_store=copy)
    assert await got(copies(nodes, store).fetch(nodes.restore, told)) == contents(
        nodes.there.folder(UID)
    )
    problem = await refusal(nodes, RestoreFrom(peer=gone))
    assert problem.reason == reasons.CHECKPOINT_UNAVAILABLE
    assert "node node-1" in problem.message


async def test_a_peer_that_is_another_node(nodes: Nodes) -> None:
    """Whatever its address: the name in its certificate is not the one that is meant."""
    problem = await refusal(nodes, RestoreFrom(peer=nodes.peer(node="node-3")))
    assert problem.reason == reasons.CHECKPOINT_UNAVAILABLE
    assert nodes.agent.readings == []


async def test_a_grant_that_is_none(nodes: Nodes) -> None:
    token = "not-a-grant-mQ3x"
    grant = nodes.peer().grant.model_copy(update={"token": token})
    problem = await refusal(nodes, RestoreFrom(peer=nodes.peer(grant=grant)))
    assert problem.reason == reasons.CHECKPOINT_UNAVAILABLE
    assert token not in problem.message


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "https://h/x", "unix:///x", "nonsense"])
async def test_an_endpoint_that_is_none(nodes: Nodes, endpoint: str) -> None:
    problem = await refusal(nodes, RestoreFrom(peer=nodes.peer(endpoint=endpoint)))
    assert problem.reason == reasons.CHECKPOINT_UNAVAILABLE
    assert nodes.agent.readings == []


async def test_a_peer_that_has_it_no_more(nodes: Nodes) -> None:
    nodes.agent.parts.clear()
    problem = await refusal(nodes, RestoreFrom(peer=nodes.peer()))
    assert problem.reason == reasons.CHECKPOINT_NOT_FOUND


Data = Callable[[dict[Part, bytes]], dict[Part, bytes]]


def flipped(part: Part, place: int) -> Data:
    def change(data: dict[Part, bytes]) -> dict[Part, bytes]:
        changed = bytearray(data[part])
        changed[place] ^= 1
        return {**data, part: bytes(changed)}

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flipped(Part.MANIFEST, 10), reasons.CHECKPOINT_INVALID),
        (flipped(Part.ENTRIES, 10), reasons.CHECKPOINT_INVALID),
        (lambda d: {**d, Part.MANIFEST: b""}, reasons.CHECKPOINT_INVALID),
        (lambda d: {**d, Part.MANIFEST: bytes(MAX_MANIFEST_BYTES + 1)}, reasons.CHECKPOINT_INVALID),
        (lambda d: {**d, Part.ENTRIES: d[Part.ENTRIES] + b"x"}, reasons.CHECKPOINT_INVALID),
        (lambda d: {**d, Part.CONTENT: d[Part.CONTENT] + b"x"}, reasons.CHECKPOINT_INVALID),
        (lambda d: {**d, Part.CONTENT: d[Part.CONTENT][:-1]}, reasons.CHECKPOINT_UNAVAILABLE),
        (lambda d: {**d, Part.CONTENT: b""}, reasons.CHECKPOINT_UNAVAILABLE),
    ],
)
async def test_a_peer_that_gives_something_else(nodes: Nodes, change: Data, reason: str) -> None:
    had = {part: nodes.agent.parts[UID, part] for part in Part}
    nodes.agent.parts = {(UID, part): data for part, data in change(had).items()}
    assert (await refusal(nodes, RestoreFrom(peer=nodes.peer()))).reason == reason


async def test_there_is_no_room_for_it(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.here, "room_bytes", lambda: 1 << 20)
    problem = await refusal(nodes, RestoreFrom(peer=nodes.peer()))
    assert problem.reason == reasons.CHECKPOINT_TOO_LARGE
    assert (UID, Part.CONTENT) in nodes.agent.parts


class Odd:
    """A source that does what a test says."""

    name = "odd"

    def __init__(self, parts: dict[Part, bytes], act: Callable[..., AsyncGenerator[bytes, None]]):
        self.parts = parts
        self.act = act
        self.asked: list[tuple[Part, int]] = []

    def read(self, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
        self.asked.append((part, offset))
        return self.act(self, part, offset)


def odd(nodes: Nodes, act: Callable[..., AsyncGenerator[bytes, None]]) -> Odd:
    return Odd({part: nodes.agent.parts[UID, part] for part in Part}, act)


async def breaks_off(source: Odd, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
    yield source.parts[part][offset : offset + 700_000]
    if offset + 700_000 < len(source.parts[part]):
        raise errors.Unavailable("broke off")


async def test_what_breaks_off_goes_on_from_there(nodes: Nodes, tmp_path: Path) -> None:
    source = odd(nodes, breaks_off)
    (tmp_path / "in").mkdir()
    await receive(source, nodes.restore, tmp_path / "in", room_bytes=1 << 30, pace=PACE)
    assert contents(tmp_path / "in") == contents(nodes.there.folder(UID))
    offsets = [offset for part, offset in source.asked if part is Part.CONTENT]
    assert offsets == [number * 700_000 for number in range(len(offsets))]
    assert len(offsets) > PACE.tries


async def drips(source: Odd, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
    while True:
        yield b"x"
        await asyncio.sleep(0.01)


async def says_nothing(source: Odd, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
    await asyncio.sleep(3600)
    yield b""


async def never_begins(source: Odd, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
    raise errors.Unavailable("down")
    yield b""


@pytest.mark.parametrize("act", [drips, says_nothing, never_begins])
async def test_who_is_slow_or_silent_is_given_up(
    nodes: Nodes, tmp_path: Path, act: Callable[..., AsyncGenerator[bytes, None]]
) -> None:
    with pytest.raises(errors.Unavailable):
        await receive(odd(nodes, act), nodes.restore, tmp_path, room_bytes=1 << 30, pace=HASTE)


async def endless(source: Odd, part: Part, offset: int) -> AsyncGenerator[bytes, None]:
    while True:
        source.given = getattr(source, "given", 0) + (64 << 10)  # type: ignore[attr-defined]
        yield bytes(64 << 10)


async def test_who_has_no_end_is_cut_off(nodes: Nodes, tmp_path: Path) -> None:
    source = odd(nodes, endless)
    with pytest.raises(errors.Refused):
        await receive(source, nodes.restore, tmp_path, room_bytes=1 << 30, pace=PACE)
    assert source.given <= MAX_MANIFEST_BYTES + (128 << 10)  # type: ignore[attr-defined]


async def test_no_secret_is_in_a_message_or_a_log(
    nodes: Nodes, store: S3Store, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    token = nodes.peer().grant.token
    told = RestoreFrom(
        peer=nodes.peer(free_port()), in_store=StoreCopy(store="main", key="checkpoints/none")
    )
    problem = await refusal(nodes, told, store=store)
    await got(copies(nodes).fetch(nodes.restore, RestoreFrom(peer=nodes.peer())))
    secret = server.access.credentials.read_text().split("= ")[-1].strip()
    said = caplog.text + problem.message
    assert "no copy" in said
    assert token not in said
    assert secret not in said
