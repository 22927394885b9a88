"""Files are replaced whole, by new ones of their own, and no failure leaves a part anywhere."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isolet.base import wholefile
from isolet.base.wholefile import Sync

ASIDE = ".f.new"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with something old in it."""
    found = tmp_path / "f"
    found.write_bytes(b"old and longer than the new")
    found.chmod(0o666)
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is forced to disk and moved, in order."""
    found: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        found.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        found.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    return found


@pytest.mark.parametrize(
    ("sync", "order"),
    [
        (Sync.NOTHING, ["rename"]),
        (Sync.CONTENT, ["content", "rename"]),
        (Sync.CONTENT_AND_NAME, ["content", "rename", "folder"]),
    ],
)
def test_what_is_forced_to_disk_and_when(
    path: Path, calls: list[str], sync: Sync, order: list[str]
) -> None:
    wholefile.write(path, b"new", sync=sync)
    assert calls == order
    assert (path.read_bytes(), names(path.parent)) == (b"new", ["f"])


def test_all_of_it_is_written_before_it_is_forced_to_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    wholefile.write(path, b"new")
    assert sizes == [3]


@pytest.mark.parametrize(
    ("umask", "mode", "found"),
    [(0, 0o600, 0o600), (0, 0o644, 0o644), (0o077, 0o644, 0o600), (0o022, 0o600, 0o600)],
    ids=oct,
)
def test_its_rights_are_its_own(path: Path, umask: int, mode: int, found: int) -> None:
    (path.parent / ASIDE).touch(mode=0o666)
    old = os.umask(umask)
    try:
        with wholefile.writing(path, mode=mode) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == found
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == found


def left_by_a_crash(aside: Path, victim: Path) -> None:
    aside.write_bytes(b"half of something, and longer than the new")


def a_link(aside: Path, victim: Path) -> None:
    aside.symlink_to(victim)


def a_link_to_nothing(aside: Path, victim: Path) -> None:
    aside.symlink_to(victim.with_name("nothing"))


def a_second_name(aside: Path, victim: Path) -> None:
    aside.hardlink_to(victim)


@pytest.mark.parametrize("lay", [left_by_a_crash, a_link, a_link_to_nothing, a_second_name])
def test_what_lies_aside_is_not_written_to(path: Path, lay: Callable[[Path, Path], None]) -> None:
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    lay(path.with_name(ASIDE), victim)
    wholefile.write(path, b"new")
    assert names(path.parent) == ["f", "victim"]
    assert (path.read_bytes(), victim.read_bytes()) == (b"new", b"precious")
    assert not path.is_symlink()


def test_a_link_in_the_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "f").symlink_to("victim")
    wholefile.write(tmp_path / "f", b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert ((tmp_path / "f").read_bytes(), (tmp_path / "f").is_symlink()) == (b"new", False)


class Broken(Exception):
    """What a block raises."""


def test_a_block_that_fails_leaves_the_old_file_alone(path: Path) -> None:
    def fail_half_way() -> None:
        with wholefile.writing(path) as file:
            file.write(b"new")
            file.flush()
            assert names(path.parent) == [ASIDE, "f"]
            raise Broken

    with pytest.raises(Broken):
        fail_half_way()
    assert (path.read_bytes()[:3], names(path.parent)) == (b"old", ["f"])


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
    with pytest.raises(OSError, match="no disk"):
        wholefile.write(path, b"new")
    assert (path.read_bytes()[:3], names(path.parent)) == (b"old", ["f"])


def test_only_a_folder_that_fails_leaves_the_new_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setattr(wholefile, "to_disk", fail)
    with pytest.raises(OSError, match="no disk"):
        wholefile.write(path, b"new", sync=Sync.CONTENT_AND_NAME)
    assert (path.read_bytes(), names(path.parent)) == (b"new", ["f"])


def test_the_first_error_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        wholefile.write(tmp_path / "gone" / "f", b"new")
    (tmp_path / ASIDE).mkdir()
    with pytest.raises(IsADirectoryError):
        wholefile.write(tmp_path / "f", b"new")
    assert names(tmp_path) == [ASIDE]


def test_it_may_be_written_elsewhere_and_get_other_rights(path: Path, tmp_path: Path) -> None:
    aside = tmp_path / "staging"
    with wholefile.writing(path, aside=aside) as file:
        assert names(tmp_path) == ["f", "staging"]
        os.fchmod(file.fileno(), 0o444)
    assert (stat.S_IMODE(path.stat().st_mode), names(tmp_path)) == (0o444, ["f"])


KILLED = """
import os, signal, sys
from pathlib import Path
from isolet.base import wholefile

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

with wholefile.writing(Path(sys.argv[1]), sync=wholefile.Sync.CONTENT_AND_NAME) as file:
    if sys.argv[2] == "write":
        file.write(b"half"); file.flush(); die()
    if sys.argv[2] == "rename":
        Path.rename = die
    if sys.argv[2] == "folder":
        wholefile.to_disk = die
    file.write(b"new")
"""


@pytest.mark.parametrize(
    ("where", "content", "left"),
    [
        ("write", b"old", [ASIDE, "f"]),
        ("rename", b"old", [ASIDE, "f"]),
        ("folder", b"new", ["f"]),
    ],
)
def test_a_process_that_is_killed_leaves_the_old_file_or_the_new(
    path: Path, where: str, content: bytes, left: list[str]
) -> None:
    path.write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), where], check=False)
    assert ended.returncode == -9
    assert (path.read_bytes(), names(path.parent)) == (content, left)
    wholefile.write(path, b"newer")
    assert (path.read_bytes(), names(path.parent)) == (b"newer", ["f"])


def test_no_link_is_forced_to_disk(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="symbolic links"):
        wholefile.to_disk(tmp_path / "link")
    wholefile.to_disk(tmp_path)
