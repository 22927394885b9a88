"""Launch folders on a real tmpfs."""

import os
import subprocess
from pathlib import Path

import pytest

from isolet.agent.workspace import commands
from isolet.agent.workspace.launch import LaunchFolders
from isolet.base import errors, statfs

SCRIPT = b"export A='canary-77'\n"


@pytest.fixture
def memory(tmp_path: Path):
    """A tmpfs of 1 MiB."""
    point = tmp_path / "memory"
    point.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "launch", str(point)]
    subprocess.run(options, check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
async def folders(memory: Path) -> LaunchFolders:
    found = LaunchFolders(memory / "isolet" / "launch")
    await found.prepare()
    return found


async def test_where_there_is_no_tmpfs_one_is_mounted_once(tmp_path: Path) -> None:
    root = tmp_path / "launch"
    folders = LaunchFolders(root)
    await folders.prepare()
    try:
        assert (root.is_mount(), statfs.magic(root)) == (True, statfs.TMPFS)
        folders.write("u1", "launch", SCRIPT)
        again = LaunchFolders(root)
        await again.prepare()
        assert again.list() == ("u1",)
        flags = os.statvfs(root).f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV
    finally:
        folders.remove("u1")
        await folders.close()
    assert not root.is_mount()
    assert list(root.iterdir()) == [], "nothing was written below the mount"


async def test_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(argv: object, *, timeout: float) -> str:
        return ""

    monkeypatch.setattr(commands, "run", nothing)
    with pytest.raises(errors.Refused, match="not on a tmpfs") as caught:
        await LaunchFolders(tmp_path / "launch").prepare()
    assert caught.value.reason == "NotInMemory"


async def test_a_link_is_refused_and_nothing_is_mounted_over_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(errors.Refused, match="is a link"):
        await LaunchFolders(tmp_path / "link").prepare()
    assert not (tmp_path / "real").is_mount()


def test_a_folder_and_its_file(folders: LaunchFolders, memory: Path) -> None:
    old = os.umask(0o077)
    try:
        path = folders.write("u1", "launch", SCRIPT)
    finally:
        os.umask(old)
    assert path == folders.folder("u1") / "launch"
    assert path.read_bytes() == SCRIPT
    assert path.stat().st_mode & 0o7777 == 0o444
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    assert path.parent.parent.stat().st_mode & 0o7777 == 0o700
    assert folders.list() == ("u1",)


def test_another_user_of_the_host_reads_nothing(folders: LaunchFolders) -> None:
    path = folders.write("u1", "launch", SCRIPT)
    command = ["setpriv", "--reuid", "65532", "--regid", "65532", "--clear-groups"]
    done = subprocess.run([*command, "cat", str(path)], capture_output=True, check=False)
    assert done.returncode != 0
    assert done.stdout == b""


def test_writing_again_replaces_it_whole(folders: LaunchFolders) -> None:
    path = folders.write("u1", "launch", SCRIPT)
    held = path.open("rb")
    folders.write("u1", "launch", b"new")
    assert (held.read(), path.read_bytes()) == (SCRIPT, b"new")
    assert [p.name for p in path.parent.iterdir()] == ["launch"]
    held.close()


def test_a_full_tmpfs_leaves_the_old_file(folders: LaunchFolders) -> None:
    path = folders.write("u1", "launch", SCRIPT)
    with pytest.raises(errors.Unavailable) as caught:
        folders.write("u1", "launch", bytes(2 << 20))
    assert caught.value.reason == "NodeStorageFull"
    assert path.read_bytes() == SCRIPT
    folders.write("u2", "launch", bytes(500 << 10))


def test_removing(folders: LaunchFolders) -> None:
    folders.write("u1", "launch", SCRIPT)
    folders.write("u1", "e1", SCRIPT)
    folders.remove_file("u1", "e1")
    folders.remove_file("u1", "e1")
    assert [p.name for p in folders.folder("u1").iterdir()] == ["launch"]
    folders.remove("u1")
    folders.remove("u1")
    assert folders.list() == ()


async def test_a_restart_finds_them_and_drops_what_was_half_written(
    folders: LaunchFolders, memory: Path
) -> None:
    folders.write("u1", "launch", SCRIPT)
    root = memory / "isolet" / "launch"
    (root / ".staging" / "u2.launch").write_bytes(SCRIPT)
    again = LaunchFolders(root)
    await again.prepare()
    assert again.list() == ("u1",)
    assert (root / "u1" / "launch").read_bytes() == SCRIPT
    assert list((root / ".staging").iterdir()) == []


@pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b", ".staging", "a\n", "x" * 65, "-a"])
def test_a_uid_is_no_path(folders: LaunchFolders, uid: str) -> None:
    for call in (folders.folder, folders.remove, lambda u: folders.write(u, "launch", b"")):
        with pytest.raises(errors.Invalid):
            call(uid)
    assert folders.list() == ()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a.b", "a\n"])
def test_a_name_is_no_path(folders: LaunchFolders, name: str) -> None:
    for call in (lambda n: folders.write("u1", n, b""), lambda n: folders.remove_file("u1", n)):
        with pytest.raises(errors.Invalid):
            call(name)
