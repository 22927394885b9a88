"""The object store against a real server: versitygw, whose objects are files a test can see."""

import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from isolet.agent.transfer import s3
from isolet.agent.transfer.s3 import S3Store
from isolet.agent.workspace.checkpoints import PARTS
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.checkpoint import Part
from isolet.wire.restore import StoreCopy
from tests.contract.transfer.conftest import Nodes, Server, s3_server
from tests.contract.transfer.copy import UID, contents
from tests.ports import free_port
from tests.witness import files_below


def kept(server: Server) -> set[str]:
    """Every file below the bucket, as the server's own disk has it; halves of uploads as well."""
    bucket = server.data / "isolet"
    return {str(path.relative_to(bucket)) for path in files_below(bucket)}


async def nothing_is_kept(server: Server) -> None:
    """Wait until it has let go of what was still on its way to it when it was cut off."""
    async with asyncio.timeout(60):
        while kept(server):
            await asyncio.sleep(0.05)


async def test_what_is_saved_is_there_and_what_is_removed_is_gone(
    nodes: Nodes, store: S3Store, server: Server
) -> None:
    folder = nodes.there.folder(UID)
    copy = await store.save(UID, folder)
    assert copy == StoreCopy(store="main", key=f"checkpoints/{UID}")
    assert {f"checkpoints/{UID}/{name}" for name in PARTS} == kept(server)
    assert contents(server.data / "isolet" / "checkpoints" / UID) == contents(folder)
    assert await store.save(UID, folder) == copy
    await store.remove(UID)
    assert kept(server) == set()
    await store.remove(UID)


async def test_a_large_file_goes_in_parts(tmp_path: Path, store: S3Store, server: Server) -> None:
    data = bytes(range(256)) * (40 << 12)
    for name in PARTS:
        (tmp_path / name).write_bytes(data if name == "content" else b"x")
    await store.save("large", tmp_path)
    assert (server.data / "isolet/checkpoints/large/content").read_bytes() == data
    source = store.source(StoreCopy(store="main", key="checkpoints/large"))
    read = [piece async for piece in source.read(Part.CONTENT, 5)]
    assert b"".join(read) == data[5:]
    await store.remove("large")
    assert kept(server) == set()


async def test_one_that_was_cut_off_half_way_leaves_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a killed agent leaves it: some parts of an upload, nothing that is a copy."""
    store, reached = S3Store(server.access), threading.Event()
    for name in PARTS:
        (tmp_path / name).write_bytes(bytes(40 << 20) if name == "content" else b"x")

    def stop(_: threading.Event, calls: list[int] = []) -> None:  # noqa: B006
        calls.append(1)
        if len(calls) > 3:
            reached.set()
            raise s3._Stopped

    monkeypatch.setattr(s3, "_go_on", stop)
    monkeypatch.setattr("minio.Minio._abort_multipart_upload", lambda *_: None)
    with pytest.raises(errors.Unavailable):
        await store.save("half", tmp_path)
    assert reached.is_set()
    assert kept(server), "the control: the server has a part"
    monkeypatch.undo()
    with pytest.raises(errors.NotFound):
        [_ async for _ in store.read("checkpoints/half", Part.MANIFEST, 0)]
    await store.remove("half")
    await nothing_is_kept(server)
    await store.close()


@pytest.mark.parametrize(
    "copy",
    [
        StoreCopy(store="other", key=f"checkpoints/{UID}"),
        StoreCopy(store="main", key=f"elsewhere/{UID}"),
        StoreCopy(store="main", key="checkpoints/../x"),
        StoreCopy(store="main", key="checkpoints/"),
        StoreCopy(store="main", key=""),
    ],
)
async def test_no_other_key_is_read(store: S3Store, copy: StoreCopy) -> None:
    with pytest.raises(errors.NotFound):
        store.source(copy)


async def test_a_store_that_is_down_is_told_and_tried_again(nodes: Nodes, tmp_path: Path) -> None:
    port = free_port()
    with s3_server(tmp_path / "s3", port) as running:
        access = running.access
    store = S3Store(access)
    folder = nodes.there.folder(UID)
    for work in (store.save(UID, folder), store.remove(UID)):
        with pytest.raises(errors.Unavailable) as caught:
            await work
        assert caught.value.reason == reasons.OBJECT_STORE_UNAVAILABLE
    with s3_server(tmp_path / "s3", port) as running:
        await store.save(UID, folder)
        assert len(kept(running)) == len(PARTS)
    await store.close()


async def test_what_came_back_otherwise_is_not_saved(
    nodes: Nodes, store: S3Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Store, "_digest", lambda *_: "0" * 64)
    with pytest.raises(errors.Unavailable) as caught:
        await store.save(UID, nodes.there.folder(UID))
    assert caught.value.reason == reasons.OBJECT_STORE_UNAVAILABLE
    await store.remove(UID)
    assert kept(server) == set()


async def test_who_is_not_let_in_is_told_so_without_a_secret(
    nodes: Nodes, server: Server, tmp_path: Path
) -> None:
    credentials = tmp_path / "other.ini"
    secret = "another-secret-Zq8w"
    credentials.write_text(f"[default]\naws_access_key_id=nobody\naws_secret_access_key={secret}\n")
    credentials.chmod(0o600)
    store = S3Store(replace(server.access, credentials=credentials))
    with pytest.raises(errors.Unavailable) as caught:
        await store.save(UID, nodes.there.folder(UID))
    assert caught.value.message.startswith("object store main: ")
    assert secret not in caught.value.message
    shutil.copyfile(server.access.credentials, credentials)
    await store.save(UID, nodes.there.folder(UID))
    await store.remove(UID)
    await store.close()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("[default]\naws_access_key_id=a\naws_secret_access_key=s3cr\n", 0o640, "chmod 600"),
        ("[default]\naws_access_key_id=a\n", 0o600, "aws_secret_access_key"),
        ("[other]\n", 0o600, "default"),
        ("s3cr", 0o600, "default"),
    ],
)
def test_credentials_that_are_none(tmp_path: Path, text: str, mode: int, said: str) -> None:
    path = tmp_path / "c.ini"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises((OSError, ValueError), match=said) as caught:
        s3.read_credentials(path)
    assert "s3cr" not in str(caught.value)


async def test_it_ends_while_something_is_under_way(tmp_path: Path, server: Server) -> None:
    store = S3Store(server.access)
    for name in PARTS:
        with (tmp_path / name).open("wb") as file:
            file.truncate(2 << 30)
    saving = asyncio.create_task(store.save("endless", tmp_path))
    while not kept(server):
        await asyncio.sleep(0.01)
    await store.close()
    with pytest.raises(errors.Unavailable):
        await saving
    again = S3Store(server.access)
    await again.remove("endless")
    await nothing_is_kept(server)
    await again.close()
