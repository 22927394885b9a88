"""The program as a helper without rights, on what it is meant for: a disk, and a tar stream."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from isolet.agent.archive import program
from isolet.agent.archive.entries import Figures, Owner
from isolet.agent.archive.refusal import Reason, Refused
from isolet.agent.helper.spawn import Limits, Mount, Rights
from isolet.agent.service import archiver
from isolet.agent.workspace.disk import DiskWorkspaces
from isolet.base import errors
from tests.unit.agent.archive.tars import normalised

USER = Owner(4000, 4001)
OUT = {"entries": "/out/entries", "content": "/out/content"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that the helper may write to."""
    folder = tmp_path / "out"
    folder.mkdir(mode=0o700)
    os.chown(folder, *USER)
    return folder


def rights(out: Path, *mounts: Mount, largest: int = 1 << 30) -> Rights:
    return Rights(
        user=USER.uid,
        group=USER.gid,
        mounts=(Mount(str(out), "/out", writable=True), *mounts),
        limits=Limits(file=largest),
    )


async def disks_in(folder: Path) -> DiskWorkspaces:
    disks = DiskWorkspaces(folder / "disks")
    await disks.prepare()
    return disks


def fill(device: str, folder: Path) -> None:
    """Files of the user on a disk."""
    work = folder / "mounted"
    work.mkdir()
    subprocess.run(["mount", device, work], check=True)
    try:
        (work / "d").mkdir(mode=0o700)
        (work / "d" / "f").write_bytes(os.urandom(3_000_000))
        (work / "l").symlink_to("/etc/passwd")
        for path in (work / "d", work / "d" / "f", work / "l"):
            os.chown(path, *USER, follow_symlinks=False)
    finally:
        subprocess.run(["umount", work], check=True)


def tar_of(folder: Path) -> bytes:
    return subprocess.run(
        ["tar", "-c", "-f", "-", "."], cwd=folder, stdout=subprocess.PIPE, check=True
    ).stdout


async def test_from_one_disk_to_another(tmp_path: Path, out: Path) -> None:
    disks = await disks_in(tmp_path)
    one = await disks.make("u1", 16 << 20, *USER)
    other = await disks.make("u2", 16 << 20, *USER)
    try:
        fill(one, tmp_path)
        seen = rights(out, Mount(one, "/disk", kind="ext4"))
        figures = await program.ask("pack", {"root": "/disk", **OUT}, seen, seconds=60)
        assert figures.entries == 4
        seen = rights(out, Mount(other, "/disk", True, "ext4"))
        request: dict[str, Any] = {"root": "/disk", **OUT, "owner": USER}
        assert await program.ask("unpack", request, seen, seconds=60) == figures
        seen = rights(out, Mount(other, "/disk", kind="ext4"))
        assert await program.ask("pack", {"root": "/disk", **OUT}, seen, seconds=60) == figures
        assert sorted(os.listdir(out)) == ["content", "entries"]
    finally:
        for uid in ("u1", "u2"):
            await disks.release(uid)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for place in range(0, len(data), 65536):
        yield data[place : place + 65536]


async def test_from_a_stream(tmp_path: Path, out: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "f").write_bytes(os.urandom(3_000_000))
    stream = tar_of(tmp_path / "work")
    request = {"stream": 0, "aside": "/out/aside", "owner": USER, **OUT}
    seen = rights(out)
    figures = await program.ask("normalise", request, seen, seconds=60, stream=pieces(stream))
    assert figures == normalised(stream, owner=USER)[2]
    assert await program.ask("verify", OUT, seen, seconds=60) == figures


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(65536)


async def test_a_stream_without_end_is_cut(out: Path) -> None:
    request = {"stream": 0, "aside": "/out/aside", **OUT}
    with pytest.raises(Refused) as refused:
        await program.ask("normalise", request, rights(out), seconds=60, stream=endless())
    assert refused.value.reason is Reason.TRAILING_DATA


async def test_a_file_that_is_too_large_to_write_is_refused(tmp_path: Path, out: Path) -> None:
    (out / "work").mkdir()
    (out / "work" / "f").write_bytes(bytes(3_000_000))
    os.chown(out / "work", *USER)
    request = {"root": "/out/work", **OUT}
    with pytest.raises(Refused) as refused:
        await program.ask("pack", request, rights(out, largest=1 << 20), seconds=60)
    assert refused.value.reason is Reason.NO_SPACE


THREADS = """\
import os, sys, threading, time
os.setuid(int(sys.argv[1]))
for _ in range(100):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("up", flush=True)
time.sleep(1000)
"""


async def test_others_on_the_node_who_are_the_same_user_take_nothing_from_it(
    tmp_path: Path, out: Path
) -> None:
    disks = await disks_in(tmp_path)
    device = await disks.make("u1", 16 << 20, *USER)
    bounds = archiver.Bounds(size_bytes=16 << 20, file_bytes=1 << 30, seconds=60)
    argv = [sys.executable, "-c", THREADS, str(USER.uid)]
    pod = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert pod.stdout is not None
        assert await pod.stdout.readline() == b"up\n"
        assert (await archiver.pack(device, out, USER, bounds)).entries == 1
    finally:
        pod.kill()
        await pod.communicate()
        await disks.release("u1")


async def test_something_else_than_a_file_in_its_place_stops_nobody(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lies(*_: object, **__: object) -> Figures:
        for name in OUT:
            os.mkfifo(out / name)
        return Figures(1, 1, "sha256:", 1, 1)

    monkeypatch.setattr(program, "ask", lies)
    bounds = archiver.Bounds(size_bytes=1, file_bytes=1, seconds=60)
    with pytest.raises(errors.Unavailable, match="something else than a file"):
        await archiver.pack("/dev/null", out, USER, bounds)
