"""Tar streams that a sandbox may send: each is refused with its reason, or means one thing only.

The tables carry the numbers of docs/reports.md.
"""

import hashlib
import io
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from isolet.agent.archive import foreign
from isolet.agent.archive.refusal import Limits, Reason, Refused
from tests.unit.agent.archive import tars
from tests.unit.agent.archive.tars import (
    END,
    TOP,
    archive,
    folder,
    hardlink,
    head,
    line,
    member,
    normalised,
    pax,
    record,
    symlink,
)
from tests.unit.agent.archive.trees import verified

LINK = b"/etc"


def refusal(data: bytes | io.RawIOBase, limits: Limits | None = None) -> tuple[Reason, bytes]:
    with pytest.raises(Refused) as refused:
        normalised(data, limits)
    return refused.value.reason, refused.value.member


@pytest.mark.parametrize(
    "name", [b"/abs", b"../up", b"a/../../b", b"a\\..\\..\\c", b"..", b"./../x", b"a//b", b"a/./b"]
)
@pytest.mark.parametrize("how", ["header", "long", "pax"])
def test_g02_a_name_that_leads_out(name: bytes, how: str) -> None:
    data = {
        "header": member(name, b"x"),
        "long": record(b"L", name + b"\0") + member(b"short", b"x"),
        "pax": pax(path=name) + member(b"short", b"x"),
    }[how]
    assert refusal(archive(data)) == (Reason.BAD_NAME, name.removeprefix(b"./"))


def test_the_workspace_itself_is_fine() -> None:
    entries, _, figures = normalised(archive(member(b"./f", b"x")))
    assert figures.entries == 2
    assert b'"name":"f"' in entries


OVERLONG = b"/".join([b"d" * 200] * 25)


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        # A link path that is longer than the system takes, so that what resolves it gives up.
        ([record(b"K", OVERLONG + b"\0"), symlink(b"l", b"x")], Reason.BAD_NAME),
        ([pax(linkpath=OVERLONG), symlink(b"l", b"x")], Reason.BAD_LINK),
        # A hard link to a symbolic link, which then is the link itself.
        ([symlink(b"l", LINK), hardlink(b"h", b"l")], Reason.BAD_LINK),
        ([symlink(b"l", LINK), hardlink(b"h", b"l"), member(b"h/x")], Reason.BAD_LINK),
        # A link without a name or without a target, which then is the folder itself.
        ([symlink(b"", LINK)], Reason.BAD_NAME),
        ([symlink(b"l", b"")], Reason.BAD_LINK),
        ([hardlink(b"l", b"")], Reason.BAD_LINK),
    ],
)
def test_g03_what_got_past_the_data_filter(blocks: list[bytes], reason: Reason) -> None:
    assert refusal(archive(*blocks))[0] is reason


def test_g04_a_size_that_belongs_to_another_record() -> None:
    data = pax(size=b"2048") + record(b"L", b"n" * 120 + b"\0") + member(b"n", b"a" * 512)
    assert refusal(archive(data, member(b"file_b", b"b")))[0] is Reason.BAD_HEADER


def test_g05_a_member_inside_the_body_of_another() -> None:
    hidden = member(b"hidden.txt", b"smuggled")
    data = pax(size=b"0") + member(b"plain.txt", hidden)
    assert refusal(archive(data))[0] is Reason.BAD_HEADER
    entries, _, _ = normalised(archive(member(b"plain.txt", hidden)))
    assert b"hidden" not in entries


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"x", Reason.TRAILING_DATA),
        (bytes(8 * 512) + b"x", Reason.TRAILING_DATA),
        (archive(member(b"hid", b"x")), Reason.TRAILING_DATA),
        (bytes(foreign.MAX_END_BYTES + 1), Reason.TRAILING_DATA),
    ],
)
def test_g07_what_follows_the_end(tail: bytes, reason: Reason) -> None:
    assert refusal(archive(member(b"f", b"x")) + tail)[0] is reason


@pytest.mark.parametrize("zeros", [0, 512, 9216, 1 << 20])
def test_zeros_that_fill_the_last_record_are_fine(zeros: int) -> None:
    assert normalised(archive(member(b"f", b"x")) + bytes(zeros))[2].entries == 2


def test_compressed_data_is_no_archive() -> None:
    assert refusal(b"\x1f\x8b\x08" + bytes(2000))[0] is Reason.BAD_HEADER


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([member(b"f"), symlink(b"f", LINK), member(b"f/x")], (Reason.DUPLICATE, b"f")),
        ([member(b"f"), member(b"./f")], (Reason.DUPLICATE, b"f")),
        ([folder(b"d/"), folder(b"d/")], (Reason.DUPLICATE, b"d")),
        ([TOP], (Reason.DUPLICATE, b".")),
        ([symlink(b"f", LINK), member(b"f/x")], (Reason.BAD_PARENT, b"f/x")),
        ([member(b"f"), member(b"f/x")], (Reason.BAD_PARENT, b"f/x")),
        ([member(b"d/x"), folder(b"d/")], (Reason.BAD_PARENT, b"d/x")),
        ([hardlink(b"b", b"a")], (Reason.BAD_LINK, b"b")),
        ([hardlink(b"b", b"../../etc/shadow")], (Reason.BAD_NAME, b"../../etc/shadow")),
        ([hardlink(b"b", b"/etc/shadow")], (Reason.BAD_NAME, b"/etc/shadow")),
        ([hardlink(b"b", b"b")], (Reason.BAD_LINK, b"b")),
        ([folder(b"d/"), hardlink(b"b", b"d")], (Reason.BAD_LINK, b"b")),
        ([member(b"a"), hardlink(b"b", b"a"), hardlink(b"c", b"b")], (Reason.BAD_LINK, b"c")),
    ],
)
def test_g09_g13_names_twice_and_links(blocks: list[bytes], expected: tuple[Reason, bytes]) -> None:
    assert refusal(archive(*blocks)) == expected


BODY = b"y" * 700


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive(head(b"c", b"3")), Reason.SPECIAL_FILE),
        (archive(head(b"b", b"4")), Reason.SPECIAL_FILE),
        (archive(head(b"p", b"6")), Reason.SPECIAL_FILE),
        (archive(head(b"s", b"S")), Reason.BAD_HEADER),
        (archive(head(b"t", b"7")), Reason.BAD_HEADER),
        (archive(head(b"v", b"V")), Reason.BAD_HEADER),
        (archive(head(b"m", b"M")), Reason.BAD_HEADER),
        (archive(head(b"z", b"Z")), Reason.BAD_HEADER),
        (archive(head(b"n", size=b"\xff" * 12)), Reason.BAD_HEADER),
        (archive(head(b"n", size=b"-0000000001")), Reason.BAD_HEADER),
        (archive(head(b"n", size=b"0000000000x")), Reason.BAD_HEADER),
        (archive(head(b"n", size=b"00000008")), Reason.BAD_HEADER),
        (archive(head(b"n", size=bytes(12))), Reason.BAD_HEADER),
        (archive(head(b"n", mode=b"rwxr-xr")), Reason.BAD_HEADER),
        (archive(head(b"n", uid=b"\xff" * 8)), Reason.BAD_HEADER),
        (archive(head(b"n", uid=b"\x80" + b"\xff" * 7)), Reason.BAD_ENTRIES),
        (archive(head(b"n", checksum=b"000001\0 ")), Reason.BAD_HEADER),
        (archive(head(b"n", checksum=b"not octa")), Reason.BAD_HEADER),
        (archive(head(b"n\0hidden")), Reason.BAD_HEADER),
        (archive(head(b"l", b"2", linkname=b"a\0b")), Reason.BAD_HEADER),
        (archive(head(b"n", magic=b"ustar\0\x30\x30", rest=bytes(155) + b"x")), Reason.BAD_HEADER),
        (archive(head(b"n", magic=b"zip")), Reason.BAD_HEADER),
        (archive(head(b"n/")), Reason.BAD_NAME),
        (archive(head(b"d/", b"5", size=512), bytes(512)), Reason.BAD_HEADER),
        (archive(head(b"l", b"2", size=512, linkname=b"x"), bytes(512)), Reason.BAD_HEADER),
        (archive(member(b"a"), head(b"h", b"1", size=3, linkname=b"a")), Reason.BAD_HEADER),
        (archive(head(b"f", linkname=b"x")), Reason.BAD_LINK),
        (archive(record(b"x", b"11 path=a\n")), Reason.BAD_HEADER),
        (archive(record(b"x", b"no record"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"x", b"99999 path=a\n"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"x", b"8 path=a\n"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"x", b"-1 path=a\n"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"x", b"010 path=a\n"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"x", b"5 =a\n"), member(b"f")), Reason.BAD_HEADER),
        (archive(pax(path=b"a\0b"), member(b"f")), Reason.BAD_HEADER),
        (archive(pax(mtime=b"tomorrow"), member(b"f")), Reason.BAD_HEADER),
        (archive(pax(uid=b"-1"), member(b"f")), Reason.BAD_HEADER),
        (archive(pax(uid=b"4294967295"), member(b"f")), Reason.BAD_ENTRIES),
        (
            archive(record(b"x", tars.line(b"SCHILY.xattr.a", b"b")), member(b"f")),
            Reason.BAD_HEADER,
        ),
        (
            archive(record(b"x", tars.line(b"GNU.sparse.major", b"1")), member(b"f")),
            Reason.BAD_HEADER,
        ),
        (archive(record(b"x", 2 * tars.line(b"path", b"b")), member(b"f")), Reason.BAD_HEADER),
        (archive(pax(path=b"a"), pax(path=b"b"), member(b"f")), Reason.BAD_HEADER),
        (archive(pax(path=b"a"), record(b"L", b"b\0"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"L", b"b\0"), pax(path=b"a"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"L", b"a\0"), record(b"L", b"b\0"), member(b"f")), Reason.BAD_HEADER),
        (archive(record(b"L", b"a\0b\0"), member(b"f")), Reason.BAD_NAME),
        (archive(record(b"L", b""), member(b"f")), Reason.BAD_NAME),
        (archive(record(b"L", b"n" * 5000), member(b"f")), Reason.BAD_NAME),
        (archive(record(b"K", b"x\0"), member(b"f")), Reason.BAD_LINK),
        (archive(record(b"L", b"a\0")), Reason.TRUNCATED),
        (archive(record(b"g", tars.line(b"comment", b"x"))), Reason.BAD_HEADER),
        (record(b"g", tars.line(b"path", b"x")) + archive(member(b"f")), Reason.BAD_HEADER),
        (TOP + bytes(512) + member(b"f") + END, Reason.BAD_HEADER),
    ],
)
def test_g10_broken_and_odd_headers(data: bytes, reason: Reason) -> None:
    assert refusal(data)[0] is reason


@pytest.mark.parametrize("name", [b"hard", b"c"])
def test_a_refusal_names_the_member(name: bytes) -> None:
    assert refusal(archive(member(b"a"), head(name, b"3")))[1] == name


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([member(b"f", b"x", magic=b"ustar\0\x30\x30")], b'"name":"f"'),
        ([member(b"f", b"x", magic=bytes(8))], b'"name":"f"'),
        ([member(b"f", b"x", kind=b"\0")], b'"name":"f"'),
        ([member(b"f", magic=b"ustar\0\x30\x30", rest=b"p".ljust(167, b"\0"))], b""),
        (
            [folder(b"p"), member(b"f", magic=b"ustar\0\x30\x30", rest=b"p".ljust(167, b"\0"))],
            b"p/f",
        ),
        ([record(b"L", b"n" * 200 + b"\0"), member(b"n" * 100)], b"n" * 200),
        ([record(b"L", b"n" * 200), member(b"n" * 100)], b"n" * 200),
        ([record(b"K", b"t" * 200 + b"\0"), symlink(b"l", b"t" * 100)], b"t" * 200),
        (
            [record(b"K", b"t\0"), record(b"L", b"long\0"), symlink(b"l", b"u")],
            b'"long","type":"sym',
        ),
        ([pax(path=b"p", mtime=b"1.5", atime=b"7"), member(b"f")], b'"mtime_ns":1500000000'),
        ([pax(mtime=b"-1.5"), member(b"f")], b'"mtime_ns":-1500000000'),
        ([pax(uid=b"4294967294"), member(b"f")], b'"uid":4294967294'),
        ([pax(linkpath=b"t"), symlink(b"f", b"x")], b'"target":"t"'),
        ([member(b"f", mtime=b"\xff" * 12)], b'"mtime_ns":-1000000000'),
        ([member(b"f", mode=0o100644)], b'"mode":"0644"'),
        ([member(b"f", mode=b"   644 ")], b'"mode":"0644"'),
        ([member(b"f", uid=b"\x80\0\0\0\x66\x66\x66\x66")], b'"uid":1717986918'),
        ([member(b"two\nlines")], b"two%0Alines"),
        ([member(b"\xff")], b"%FF"),
        ([member(b"a\\b")], b"a%5Cb"),
        ([symlink(b"l", b"../../etc/passwd")], b'"target":"../../etc/passwd"'),
        ([member(b"b", b"xyz"), hardlink(b"a", b"./b")], b'"name":"b","type":"hardlink"'),
    ],
)
def test_g10_harmless_ones_are_taken(blocks: list[bytes], expected: bytes) -> None:
    if not expected:
        assert refusal(archive(*blocks))[0] is Reason.BAD_PARENT
        return
    entries, content, figures = normalised(archive(*blocks))
    assert expected in entries
    assert verified(entries, content) == figures


def test_a_comment_of_git_is_taken() -> None:
    data = record(b"g", tars.line(b"comment", b"0" * 40)) + archive(member(b"f", b"x"))
    assert normalised(data)[2].entries == 2


def test_order_and_form_of_the_stream_do_not_show() -> None:
    one = [folder(b"d/"), member(b"d/z", b"1"), member(b"a", BODY), hardlink(b"d/l", b"a")]
    other = [
        member(b"./a", BODY),
        folder(b"./d"),
        hardlink(b"./d/l", b"./a"),
        member(b"./d/z", b"1"),
    ]
    third = [folder(b"d/"), member(b"d/l", BODY), hardlink(b"a", b"d/l"), member(b"d/z", b"1")]
    found = {normalised(archive(*blocks)) for blocks in (one, other, third)}
    assert len(found) == 1


@pytest.mark.parametrize("number", range(0, 5 * 512, 100))
def test_an_archive_that_is_cut_off(number: int) -> None:
    data = archive(member(b"f", BODY))
    assert len(data) == 6 * 512
    reason, _ = refusal(data[:number])
    assert reason is Reason.TRUNCATED


def test_g19_nothing_at_all_is_no_empty_workspace() -> None:
    assert refusal(b"")[0] is Reason.TRUNCATED
    assert refusal(END)[0] is Reason.NO_ROOT
    assert refusal(member(b"f") + END)[0] is Reason.BAD_PARENT
    assert normalised(archive())[2].entries == 1


class Endless(io.RawIOBase):
    """A stream that somebody keeps writing to; counts what was taken of it."""

    def __init__(self, first: bytes, then: Iterator[bytes]) -> None:
        self._have = bytearray(first)
        self._then = then
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._have:
            self._have += next(self._then)
        size = min(len(buffer), len(self._have))
        buffer[:size] = self._have[:size]
        del self._have[:size]
        self.taken += size
        return size


def zeros() -> Iterator[bytes]:
    while True:
        yield bytes(1 << 16)


def empty_members() -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        yield member(b"%d" % number)


def records() -> Iterator[bytes]:
    while True:
        yield pax(path=b"x" * 60_000)


@pytest.mark.parametrize(
    ("first", "then", "reason", "most"),
    [
        (b"", zeros, Reason.TRAILING_DATA, 4 << 20),
        (TOP, zeros, Reason.TRAILING_DATA, 4 << 20),
        (TOP, empty_members, Reason.TOO_MANY_ENTRIES, 2 << 20),
        (TOP, records, Reason.BAD_HEADER, 1 << 20),
        (TOP + head(b"f", size=100 << 20), zeros, Reason.TOO_LARGE, 1 << 20),
        (TOP + head(b"f", size=b"\x80" + bytes(6) + b"\xff" * 5), zeros, Reason.TOO_LARGE, 1 << 20),
        (TOP + head(b"x", b"x", size=100 << 20), zeros, Reason.TOO_LARGE, 1 << 20),
        (TOP + head(b"L", b"L", size=100 << 20), zeros, Reason.TOO_LARGE, 1 << 20),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:24]),
)
def test_g11_g19_what_has_no_end_is_cut_and_memory_stays_flat(
    first: bytes, then: Callable[[], Iterator[bytes]], reason: Reason, most: int
) -> None:
    stream = Endless(first, then())
    tracemalloc.start()
    try:
        found, _ = refusal(stream, Limits(entries=2_000, size_bytes=64 << 20))
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert found is reason
    assert stream.taken <= most


def test_a_message_holds_no_word_of_the_stream() -> None:
    data = record(b"x", line(b"word-of-the-tenant", b"1")) + member(b"f")
    with pytest.raises(Refused) as refused:
        normalised(archive(data))
    assert refused.value.reason is Reason.BAD_HEADER
    assert "tenant" not in refused.value.message


def test_a_stream_is_laid_aside_no_further_than_there_is_room() -> None:
    data = archive(member(b"f", bytes(4000)))
    entries, content, _ = normalised(data)
    room = 4000 + len(entries) + len(content)
    assert normalised(data, Limits(written_bytes=room))[0] == entries
    for less in (room - 1, 3999):
        assert refusal(data, Limits(written_bytes=less))[0] is Reason.NO_SPACE


def test_a_large_file_is_hashed_as_it_passes() -> None:
    data = bytes(range(256)) * 20_000
    entries, content, figures = normalised(archive(member(b"f", data)))
    assert hashlib.sha256(data).hexdigest().encode() in entries
    assert figures.size_bytes == len(data)
    assert verified(entries, content) == figures
