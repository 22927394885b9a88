"""Disks on real loop devices."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from isolet.agent.workspace import commands, disk, ext4, loops
from isolet.agent.workspace.disk import DiskWorkspaces
from isolet.base import errors

MIB = 1 << 20
OWNER = (65532, 65533)


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[DiskWorkspaces]:
    found = DiskWorkspaces(tmp_path / "disks")
    await found.prepare()
    yield found
    for one in await found.list():
        await found.release(one.uid)
    assert not _ours(tmp_path)


def _ours(root: Path) -> list[str]:
    """Loop devices over anything below `root`, as the kernel lists them."""
    return [device for device, text in loops.bound() if text.startswith(f"{root}/")]


@contextmanager
def mounted(device: str, tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "mnt a\tb"
    point.mkdir(exist_ok=True)
    options = disk.volume_options(device)
    command = ["mount", "-t", options["type"], "-o", options["o"], device, str(point)]
    subprocess.run(command, check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def _image(tmp_path: Path, uid: str = "u1") -> Path:
    return tmp_path / "disks" / "ready" / f"{uid}.img"


async def test_a_disk_is_whole_empty_and_its_owners(disks: DiskWorkspaces, tmp_path: Path) -> None:
    device = await disks.make("u1", 16 * MIB, *OWNER)
    at = _image(tmp_path).stat()
    assert (at.st_size, at.st_mode & 0o777) == (16 * MIB, 0o600)
    assert at.st_blocks * 512 >= 16 * MIB, "its blocks are reserved"
    with mounted(device, tmp_path) as point:
        assert list(point.iterdir()) == [], "no lost+found"
        root = point.stat()
        assert (root.st_uid, root.st_gid, root.st_mode & 0o777) == (*OWNER, 0o755)
    await commands.run(["e2fsck", "-fn", str(_image(tmp_path))], timeout=30)


async def test_no_page_of_a_disk_is_kept_twice(disks: DiskWorkspaces) -> None:
    """Where its blocks are those of the node's file system; small disks have smaller ones."""
    found = {}
    for size in (16 * MIB, 512 * MIB):
        device = await disks.make(f"u{size}", size, *OWNER)
        found[size] = Path("/sys/block", Path(device).name, "loop", "dio").read_text().strip()
    assert found == {16 * MIB: "0", 512 * MIB: "1"}


async def test_what_a_direct_disk_holds_is_there_after_it_was_mounted_again(
    disks: DiskWorkspaces, tmp_path: Path
) -> None:
    device = await disks.make("u1", 512 * MIB, *OWNER)
    data = os.urandom(3 * MIB + 5)
    with mounted(device, tmp_path) as point:
        (point / "f").write_bytes(data)
    await commands.run(["e2fsck", "-fn", device], timeout=30)
    with mounted(device, tmp_path) as point:
        assert (point / "f").read_bytes() == data


async def test_it_is_made_once(disks: DiskWorkspaces, tmp_path: Path) -> None:
    devices = await asyncio.gather(*(disks.make("u1", 4 * MIB, *OWNER) for _ in range(8)))
    inode = _image(tmp_path).stat().st_ino
    assert len({*devices, await disks.make("u1", 4 * MIB, *OWNER)}) == 1
    assert _ours(tmp_path) == [devices[0]]
    assert _image(tmp_path).stat().st_ino == inode


async def test_another_size_is_another_disk(disks: DiskWorkspaces) -> None:
    await disks.make("u1", 4 * MIB, *OWNER)
    with pytest.raises(errors.Conflict):
        await disks.make("u1", 8 * MIB, *OWNER)


async def test_many_at_once_have_a_device_each(disks: DiskWorkspaces, tmp_path: Path) -> None:
    uids = [f"u{n}" for n in range(24)]
    devices = await asyncio.gather(*(disks.make(uid, 2 * MIB, *OWNER) for uid in uids))
    assert len(set(devices)) == 24
    for uid, device in zip(uids, devices, strict=True):
        assert await disks.device_of(uid) == device
        assert loops.identity(device) == (
            _image(tmp_path, uid).stat().st_dev,
            _image(tmp_path, uid).stat().st_ino,
        )


async def test_agents_of_one_machine_do_not_take_each_others_devices_away(tmp_path: Path) -> None:
    """Each binds and lets go all the time, which its own lock does not know of the others."""
    agents = [DiskWorkspaces(tmp_path / f"agent-{number}") for number in range(4)]

    async def probe(agent: DiskWorkspaces) -> list[str | None]:
        await agent.prepare()
        return [await agent.usable() for _ in range(30)]

    found = await asyncio.gather(*map(probe, agents))
    assert found == [[None] * 30] * 4


async def test_what_was_written_outlives_a_detach(disks: DiskWorkspaces, tmp_path: Path) -> None:
    """A reboot, or somebody's losetup -d: the number changes, the disk does not."""
    device = await disks.make("u1", 4 * MIB, *OWNER)
    with mounted(device, tmp_path) as point:
        (point / "kept").write_text("x")
    _detach(device)
    assert await disks.device_of("u1") is None
    # The kernel gives the number to the next, which may be somebody else's for a moment.
    for number in range(20):
        other = await disks.make(name := f"another-{number}", 2 * MIB, *OWNER)
        if other == device:
            break
    assert other == device, "the control: the number is used again"
    again = await disks.make("u1", 4 * MIB, *OWNER)
    assert again != device
    assert (await disks.device_of("u1"), await disks.device_of(name)) == (again, other)
    with mounted(again, tmp_path) as point:
        assert (point / "kept").read_text() == "x"


async def test_a_half_made_image_is_remade(disks: DiskWorkspaces, tmp_path: Path) -> None:
    aside = tmp_path / "disks" / "making" / "u1.img"
    aside.write_bytes(b"half")
    assert [one.uid for one in await disks.list()] == ["u1"]
    device = await disks.make("u1", 4 * MIB, *OWNER)
    assert not aside.exists()
    with mounted(device, tmp_path) as point:
        assert list(point.iterdir()) == []


async def test_a_restart_throws_away_what_is_half_made(
    disks: DiskWorkspaces, tmp_path: Path
) -> None:
    (tmp_path / "disks" / "making" / "u2.img").write_bytes(b"half")
    device = await disks.make("u1", 4 * MIB, *OWNER)
    again = DiskWorkspaces(tmp_path / "disks")
    await again.prepare()
    assert [(one.uid, one.device) for one in await again.list()] == [("u1", device)]


async def test_release_leaves_nothing_and_may_be_repeated(
    disks: DiskWorkspaces, tmp_path: Path
) -> None:
    await disks.make("u1", 4 * MIB, *OWNER)
    await disks.release("u1")
    assert (await disks.list(), _ours(tmp_path)) == ((), [])
    assert _files(tmp_path) == []
    await disks.release("u1")
    await disks.release("never-there")


async def test_a_mounted_disk_is_not_released(disks: DiskWorkspaces, tmp_path: Path) -> None:
    device = await disks.make("u1", 4 * MIB, *OWNER)
    with mounted(device, tmp_path) as point:
        (point / "kept").write_text("x")
        with pytest.raises(errors.Conflict) as caught:
            await disks.release("u1")
        assert caught.value.reason == "DiskInUse"
        assert await disks.device_of("u1") == device
        assert (point / "kept").read_text() == "x"
    await disks.release("u1")
    assert await disks.list() == ()


async def test_a_device_that_somebody_has_open_is_let_go_when_they_close_it(
    disks: DiskWorkspaces, tmp_path: Path
) -> None:
    device = await disks.make("u1", 4 * MIB, *OWNER)
    held = os.open(device, os.O_RDONLY)
    asyncio.get_running_loop().call_later(0.3, os.close, held)
    await disks.release("u1")
    assert (await disks.list(), _ours(tmp_path)) == ((), [])


async def test_other_peoples_loops_are_not_touched(disks: DiskWorkspaces, tmp_path: Path) -> None:
    """An image of the same file name elsewhere, attached by somebody else."""
    theirs = tmp_path / "theirs" / "u1.img"
    theirs.parent.mkdir()
    theirs.write_bytes(bytes(MIB))
    while (device := loops.attach(theirs)) is None:
        pass
    try:
        assert await disks.device_of("u1") is None
        await disks.release("u1")
        ours = await disks.make("u1", 2 * MIB, *OWNER)
        assert ours != device
        await disks.release("u1")
        assert [one.uid for one in await disks.list()] == []
        assert dict(loops.bound())[device] == str(theirs)
        loops.detach(device, (0, 0))
        assert dict(loops.bound())[device] == str(theirs), "not the file that was named"
    finally:
        _detach(device)


async def test_a_device_whose_image_was_deleted_is_found_and_freed(
    disks: DiskWorkspaces, tmp_path: Path
) -> None:
    device = await disks.make("u1", 2 * MIB, *OWNER)
    _image(tmp_path).unlink()
    assert [(one.uid, one.device) for one in await disks.list()] == [("u1", device)]
    assert await disks.device_of("u1") is None
    await disks.release("u1")
    assert _ours(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A host file system of 24 MiB."""
    point = tmp_path / "host"
    point.mkdir()
    image = tmp_path / "host.img"
    subprocess.run(["truncate", "-s", "24M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("keep_free", [0, 4 * MIB], ids=["by the kernel", "by what is kept free"])
async def test_a_full_node_is_refused_and_nothing_is_left(small_disk: Path, keep_free: int) -> None:
    disks = DiskWorkspaces(small_disk / "disks", keep_free_bytes=keep_free)
    await disks.prepare()
    await disks.make("u1", 8 * MIB, *OWNER)
    before = disks.space()
    with pytest.raises(errors.Unavailable) as caught:
        await disks.make("u2", 20 * MIB, *OWNER)
    assert caught.value.reason == "NodeStorageFull"
    assert [one.uid for one in await disks.list()] == ["u1"]
    assert disks.space() == before
    await disks.release("u1")
    assert disks.space().free_bytes >= before.free_bytes + 8 * MIB


async def test_the_kernel_has_the_last_word(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that both saw room: the reservation itself refuses the second."""
    disks = DiskWorkspaces(small_disk / "disks", keep_free_bytes=0)
    await disks.prepare()
    room = disk.Space(total_bytes=1 << 40, free_bytes=1 << 40)
    monkeypatch.setattr(disks, "space", lambda: room)
    with pytest.raises(errors.Unavailable) as caught:
        await disks.make("u1", 64 * MIB, *OWNER)
    assert caught.value.reason == "NodeStorageFull"
    assert await disks.list() == ()


async def test_a_caller_that_gives_up_leaves_nothing_half_made(
    disks: DiskWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def slow(argv: object, *, timeout: float) -> str:
        reached.set()
        return await commands.run(["sleep", "60"], timeout=timeout)

    original = DiskWorkspaces._format

    async def formatting(self: DiskWorkspaces, aside: Path, user: int, group: int) -> None:
        await slow([], timeout=60)

    monkeypatch.setattr(DiskWorkspaces, "_format", formatting)
    task = asyncio.create_task(disks.make("u1", 2 * MIB, *OWNER))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await disks.list() == ()
    monkeypatch.setattr(DiskWorkspaces, "_format", original)
    await disks.make("u1", 2 * MIB, *OWNER)


async def test_usable_says_why_not(
    disks: DiskWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await disks.usable() is None
    assert _files(tmp_path) == []
    monkeypatch.setattr(commands, "_ENV", {"PATH": "/no/such"})
    assert "mkfs.ext4 cannot be run here" in str(await disks.usable())
    assert await DiskWorkspaces(tmp_path / "no" / "such").usable() is not None
    assert _files(tmp_path) == []


async def test_a_probe_that_a_crash_left_is_removed_at_the_start(
    disks: DiskWorkspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(self: DiskWorkspaces, image: Path) -> None:
        raise errors.Unavailable("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(DiskWorkspaces, "_remove", crash)
        assert await disks.usable() == "killed here"
    assert len(_ours(tmp_path)) == 1
    await DiskWorkspaces(tmp_path / "disks").prepare()
    assert (_ours(tmp_path), _files(tmp_path)) == ([], [])


def _files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "disks").rglob("*.img"))


async def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(errors.Unavailable, match=r"longer than 0\.2 s"):
        await commands.run(["sleep", "60"], timeout=0.2)


def _fill(point: Path, chunk: int) -> None:
    """A write that does not fit fails whole, so what is left is less than one chunk."""
    with open(point / "big", "wb", 0) as file, suppress(OSError):
        while True:
            file.write(b"x" * chunk)


def _detach(device: str) -> None:
    subprocess.run(["losetup", "-d", device], check=True)


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(2 * MIB, 1 << 16), (16 * MIB, 1 << 17), (64 * MIB, MIB), (600 * MIB, MIB)],
)
async def test_full_is_said_of_a_full_disk_mounted_or_not(
    size: int, chunk: int, disks: DiskWorkspaces, tmp_path: Path
) -> None:
    device = await disks.make("u1", size, *OWNER)
    assert not await disks.is_full("u1")
    with mounted(device, tmp_path) as point:
        assert not await disks.is_full("u1")
        _fill(point, chunk)
        assert await disks.is_full("u1")
    assert await disks.is_full("u1")
    _detach(device)
    assert await disks.is_full("u1"), "also by the image alone"
    again = await disks.make("u1", size, *OWNER)
    with mounted(again, tmp_path) as point:
        (point / "big").unlink()
    assert not await disks.is_full("u1")


async def test_full_of_inodes(disks: DiskWorkspaces, tmp_path: Path) -> None:
    device = await disks.make("u1", 2 * MIB, *OWNER)
    with mounted(device, tmp_path) as point, suppress(OSError):
        for number in range(10_000):
            (point / str(number)).touch()
    usage = await disks.usage("u1")
    assert usage is not None
    assert (usage.free_inodes, usage.full) == (0, True)


async def test_half_full_is_not_full(disks: DiskWorkspaces, tmp_path: Path) -> None:
    device = await disks.make("u1", 64 * MIB, *OWNER)
    with mounted(device, tmp_path) as point:
        (point / "half").write_bytes(bytes(32 * MIB))
        seen = os.statvfs(point)
    usage = await disks.usage("u1")
    assert usage is not None
    assert not usage.full
    assert usage == ext4.tables(str(_image(tmp_path))), "device and image agree"
    assert usage.free_inodes == seen.f_ffree
    assert abs(usage.free_bytes - seen.f_bavail * seen.f_frsize) < MIB


async def test_a_disk_that_is_gone_is_not_full(disks: DiskWorkspaces) -> None:
    assert await disks.usage("u1") is None
    assert await disks.is_full("u1") is False


@pytest.mark.parametrize("raw", [b"", b"x" * 100, bytes(1 << 20), os.urandom(1 << 16)])
def test_what_is_no_ext4(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.img").write_bytes(raw)
    with pytest.raises(errors.Unavailable):
        ext4.usage(str(tmp_path / "x.img"))


@pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b", ".x", "a\n", "x" * 65])
async def test_a_uid_is_no_path(disks: DiskWorkspaces, uid: str) -> None:
    for call in (disks.make(uid, MIB, 1, 1), disks.release(uid), disks.device_of(uid)):
        with pytest.raises(errors.Invalid):
            await call
    assert await disks.list() == ()
