"""The check of an archive that a helper sends: its own form passes, in any chunking, no other."""

import io
import tarfile
from collections.abc import Callable

import pytest

from isolet.agent.workspace import plaintar
from isolet.agent.workspace.plaintar import PlainTar
from isolet.base import errors

DEEP = "/".join(["d" * 100] * 3)


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", target: str = ""
) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), target
    head = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return head + content + bytes(-len(content) % 512)


END = bytes(1024)
FOLDER, LINK = tarfile.DIRTYPE, tarfile.SYMTYPE


def folders(path: str) -> bytes:
    parts = path.split("/")
    return b"".join(entry("/".join(parts[: n + 1]), FOLDER) for n in range(len(parts)))


def checked(data: bytes, piece: int = 1 << 20, *, most_bytes: int = 10_000) -> int:
    check = PlainTar(most_bytes=most_bytes, most_entries=20)
    for begin in range(0, len(data), piece):
        check.feed(data[begin : begin + piece])
    return check.finish()


GOOD = {
    "nothing": (b"", 0),
    "a file": (entry("f", content=b"x" * 700), 1),
    "a folder and what is in it": (entry("d", FOLDER) + entry("d/f"), 2),
    "links": (entry("a", LINK, target="/etc/passwd") + entry("b", LINK, target="x" * 300), 2),
    "long names": (folders(DEEP) + entry(f"{DEEP}/{'f' * 200}", content=b"y"), 4),
    "odd names": (entry("a\nb") + entry("-x") + entry("\udcff"), 3),
}


@pytest.mark.parametrize("piece", [1, 100, 512, 1 << 20])
@pytest.mark.parametrize(("data", "count"), GOOD.values(), ids=GOOD.keys())
def test_what_a_helper_writes_passes(data: bytes, count: int, piece: int) -> None:
    assert checked(data + END, piece) == count


def pax(*records: tuple[str, str]) -> bytes:
    info = tarfile.TarInfo("f")
    info.pax_headers = dict(records)
    return info.tobuf(tarfile.PAX_FORMAT)


def broken(change: Callable[[bytearray], None]) -> bytes:
    block = bytearray(entry("f"))
    change(block)
    return bytes(block)


BAD = {
    "an absolute path": entry("/f"),
    "a way up": entry("../f"),
    "a way up inside": entry("d", FOLDER) + entry("d/../f"),
    "this folder": entry("./f"),
    "a repository": entry(".git", FOLDER),
    "a repository in capitals": entry(".GIT", FOLDER),
    "twice": entry("f") + entry("f"),
    "below a file": entry("f") + entry("f/g"),
    "below a link": entry("f", LINK, target="/etc") + entry("f/g"),
    "below nothing": entry("d/f"),
    "a hard link": entry("f") + entry("g", tarfile.LNKTYPE, target="f"),
    "a device": entry("f", tarfile.CHRTYPE),
    "a fifo": entry("f", tarfile.FIFOTYPE),
    "a sparse file": entry("f", tarfile.GNUTYPE_SPARSE),
    "a pax header": pax(("comment", "x")),
    "a link to nothing": entry("f", LINK),
    "a folder with content": entry("d", FOLDER, content=b"x"),
    "a file with a target": entry("f", target="x"),
    "a wrong checksum": broken(lambda b: b.__setitem__(148, b[148] ^ 1)),
    "no number": broken(lambda b: b.__setitem__(slice(124, 135), b"zzzzzzzzzzz")),
    "a name with something behind its end": broken(lambda b: b.__setitem__(5, 65)),
    "too much content": entry("f", content=bytes(10_001)),
    "too many entries": b"".join(entry(f"f{n}") for n in range(21)),
    "an end and more": END + entry("f"),
    "a long name without an entry": entry("x" * 200)[:1024],
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_nothing_else_does(data: bytes) -> None:
    with pytest.raises(errors.Unavailable, match="the helper's archive was refused"):
        checked(data + END)


@pytest.mark.parametrize("cut", [1, 511, 512, 1024, 1500])
def test_it_has_to_be_whole(cut: int) -> None:
    whole = entry("f", content=b"x" * 700) + END
    with pytest.raises(errors.Unavailable, match="cut short"):
        checked(whole[:-cut])


def test_a_large_file_is_counted_without_being_held() -> None:
    info = tarfile.TarInfo("f")
    info.size = 9 << 30
    head = info.tobuf(tarfile.GNU_FORMAT)
    check = PlainTar(most_bytes=10 << 30, most_entries=1)
    check.feed(head)
    piece = bytes(1 << 20)
    for _ in range(9 << 10):
        check.feed(piece)
    check.feed(END)
    assert check.finish() == 1
    assert check.content_bytes == 9 << 30


def test_tarfile_agrees_on_what_passes() -> None:
    data = GOOD["long names"][0] + GOOD["links"][0] + END
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert len(archive.getmembers()) == checked(data)


def test_names_and_targets_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are held in the agent's own memory, and an empty file with a long path takes no room."""
    data = entry("n" * 200) + entry("m" * 50) + entry("l", LINK, target="t" * 300) + END
    monkeypatch.setattr(plaintar, "MOST_NAMES", 551)
    assert checked(data) == 3
    monkeypatch.setattr(plaintar, "MOST_NAMES", 550)
    with pytest.raises(errors.Unavailable, match="its names have more than 550 bytes"):
        checked(data)
