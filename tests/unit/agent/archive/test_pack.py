"""What a folder may hold that is to be packed, and what happens where it may not."""

import io
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from isolet.agent.archive import copying
from isolet.agent.archive import pack as packing
from isolet.agent.archive.refusal import Limits, Reason, Refused
from isolet.agent.archive.unpack import Folder
from tests.unit.agent.archive.trees import packed, unpacked


def refusal(folder: Path, limits: Limits | None = None) -> tuple[Reason, bytes]:
    with pytest.raises(Refused) as refused:
        packed(folder, limits)
    return refused.value.reason, refused.value.member


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_what_is_no_file_folder_or_link_is_named(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "d").mkdir()
    make(tmp_path / "d" / "odd")
    assert refusal(tmp_path) == (Reason.SPECIAL_FILE, b"d/odd")


def test_a_name_that_leads_upwards_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a\\..\\b").touch()
    assert refusal(tmp_path) == (Reason.BAD_NAME, b"a\\..\\b")


def test_too_deep(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "c"
    place.mkdir(parents=True)
    assert packed(tmp_path, Limits(depth=3))[2].entries == 4
    assert refusal(tmp_path, Limits(depth=2)) == (Reason.TOO_DEEP, b"a/b/c")


def test_a_path_that_is_longer_than_any_call_takes(tmp_path: Path) -> None:
    """It can be made step by step, and is refused in the same way."""
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("n" * 200, dir_fd=folder)
        below = os.open("n" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    reason, member = refusal(tmp_path)
    assert reason is Reason.BAD_NAME
    assert member.startswith(b"n" * 200 + b"/n")


def test_too_many_entries(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert packed(tmp_path, Limits(entries=6))[2].entries == 6
    assert refusal(tmp_path, Limits(entries=5))[0] is Reason.TOO_MANY_ENTRIES
    assert refusal(tmp_path, Limits(entries=4))[0] is Reason.TOO_MANY_ENTRIES


def test_too_many_bytes_count_before_they_are_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(tmp_path, Limits(size_bytes=1 << 30)) == (Reason.TOO_LARGE, b"sparse")


def test_a_file_with_two_names_is_stored_once(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"x" * 1000)
    (tmp_path / "a").hardlink_to(tmp_path / "b")
    entries, content, figures = packed(tmp_path)
    assert figures.size_bytes == 1000
    assert b'"name":"a","type":"file"' in entries
    assert b'"name":"b","type":"hardlink"' in entries
    assert content.count(b"x" * 1000) == 1


class Changing(io.BytesIO):
    """Does something once it is first written to."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act: Callable[[], object] | None = act

    def write(self, data: object) -> int:
        act, self._act = self._act, None
        if act is not None:
            act()
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("gone", lambda top: (top / "z").unlink()),
        ("now a link", lambda top: ((top / "z").unlink(), (top / "z").symlink_to("/etc/passwd"))),
        ("now a folder", lambda top: ((top / "z").unlink(), (top / "z").mkdir())),
        ("now a fifo", lambda top: ((top / "z").unlink(), os.mkfifo(top / "z"))),
        ("folder now a link", lambda top: ((top / "y").rmdir(), (top / "y").symlink_to("/etc"))),
        ("a new name", lambda top: (top / "new").touch()),
    ],
)
def test_g15_names_that_change_meanwhile(
    tmp_path: Path, name: str, act: Callable[[Path], object]
) -> None:
    (tmp_path / "y").mkdir()
    (tmp_path / "z").write_bytes(b"inside")
    folder = os.open(tmp_path, os.O_RDONLY)
    content = Changing(lambda: act(tmp_path))
    try:
        with pytest.raises(Refused) as refused:
            packing.pack(folder, io.BytesIO(), content, Limits())
    finally:
        os.close(folder)
    assert refused.value.reason is Reason.CHANGED
    assert b"root:" not in content.getvalue()


@pytest.mark.parametrize("size", [100, copying.SMALL, copying.SMALL + 1, 3 * copying.BUFFER])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_file_whose_size_changes_meanwhile(
    tmp_path: Path, size: int, by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(size))
    real = packing.check

    def check_and_change(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        if path.stat().st_size == size and given[0].name == b"f":  # type: ignore[attr-defined]
            os.truncate(path, size + by)

    monkeypatch.setattr(packing, "check", check_and_change)
    assert refusal(tmp_path) == (Reason.CHANGED, b"f")


def test_nothing_is_written_over_what_is_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("x")
    entries, content, _ = packed(source)
    target = tmp_path / "target"
    unpacked(entries, content, target)
    descriptor = os.open(target, os.O_RDONLY)
    with pytest.raises(Refused) as refused:
        Folder(descriptor)
    os.close(descriptor)
    assert refused.value.reason is Reason.NOT_EMPTY


def test_no_more_is_written_than_there_is_room_for(tmp_path: Path) -> None:
    """Both files together: names take room in each of them."""
    (tmp_path / ("n" * 200)).write_bytes(bytes(100))
    entries, content, _ = packed(tmp_path)
    room = len(entries) + len(content)
    assert packed(tmp_path, Limits(written_bytes=room))[:2] == (entries, content)
    reason, _ = refusal(tmp_path, Limits(written_bytes=room - 1))
    assert reason is Reason.NO_SPACE
