"""Which entries, and which order of entries, are taken."""

import io

import pytest

from isolet.agent.archive import names
from isolet.agent.archive.entries import (
    MAX_LINE,
    Entry,
    Order,
    line,
    link_targets,
    parse,
)
from isolet.agent.archive.refusal import Limits, Reason, Refused

DEPTH = 128
DIGEST = "0" * 64


def folder(name: bytes, **fields: int) -> Entry:
    return Entry(name, "folder", 0o755, 1, 1, 0)._replace(**fields)


def file(name: bytes, size: int = 0) -> Entry:
    return Entry(name, "file", 0o644, 1, 1, 0, size, DIGEST)


def symlink(name: bytes, target: bytes, mode: int = 0o777) -> Entry:
    return Entry(name, "symlink", mode, 1, 1, 0, 0, "", target)


def hardlink(name: bytes, target: bytes) -> Entry:
    return Entry(name, "hardlink", 0o644, 1, 1, 0, 0, "", target)


TOP = folder(b".")


def take(*found: Entry, limits: Limits | None = None) -> Order:
    limits = limits or Limits()
    lines = io.BytesIO(b"".join(map(line, found)))
    order = Order(limits, link_targets(lines, limits))
    lines.seek(0)
    for text in lines:
        order.take(parse(text, limits.depth))
    return order


def test_a_line_is_json_in_one_form() -> None:
    entry = Entry(b'd/\xfc "%\\', "file", 0o4755, 1000, 0, -5, 7, DIGEST)
    text = line(entry)
    assert text == (
        b'{"name":"d/%FC %22%25%5C","type":"file","mode":"4755","uid":1000,"gid":0,'
        b'"mtime_ns":-5,"size":7,"sha256":"' + DIGEST.encode() + b'"}\n'
    )
    assert parse(text, DEPTH) == entry


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"/abs", Reason.BAD_NAME),
        (b"../up", Reason.BAD_NAME),
        (b"a/../../b", Reason.BAD_NAME),
        (b"a\\..\\..\\c", Reason.BAD_NAME),
        (b"a\\..", Reason.BAD_NAME),
        (b"..\\a", Reason.BAD_NAME),
        (b"a/b\\../c", Reason.BAD_NAME),
        (b"./a", Reason.BAD_NAME),
        (b"a/.", Reason.BAD_NAME),
        (b"a//b", Reason.BAD_NAME),
        (b"a/", Reason.BAD_NAME),
        (b"", Reason.BAD_NAME),
        (b"..", Reason.BAD_NAME),
        (b"a\0b", Reason.BAD_NAME),
        (b"n" * 256, Reason.BAD_NAME),
        (b"/".join([b"n" * 200] * 21), Reason.BAD_NAME),
        (b"/".join([b"n"] * 129), Reason.TOO_DEEP),
    ],
)
def test_g02_g16_a_name_that_is_refused(name: bytes, reason: Reason) -> None:
    with pytest.raises(Refused) as refused:
        names.check(name, DEPTH)
    assert refused.value.reason is reason
    assert refused.value.member == name[:256]


@pytest.mark.parametrize(
    "name",
    [b"a", b"a/b", b"...", b"..a", b"a\\b", b"a\\...\\b", b"-x", b" ", b"\n", b"\xff", b"n" * 255],
)
def test_a_name_that_is_taken(name: bytes) -> None:
    assert names.check(name, DEPTH) == name
    assert names.unescape(names.escape(name)) == name


@pytest.mark.parametrize("text", [b"%41", b"%zz", b"%", b"%2", b"%fc", b"a%00b"])
def test_a_name_is_written_in_one_way(text: bytes) -> None:
    with pytest.raises(Refused):
        parse(line(file(b"NAME")).replace(b"NAME", text), DEPTH)


GOOD = line(file(b"a", 5))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        GOOD[:-1],
        GOOD + b"\n",
        b" " + GOOD,
        GOOD.replace(b'"size":5', b'"size":05'),
        GOOD.replace(b'"size":5', b'"size":-5'),
        GOOD.replace(b'"size":5', b'"size": 5'),
        GOOD.replace(b'"size":5', b'"size":5.0'),
        GOOD.replace(b'"size":5', b'"size":' + b"9" * 30),
        GOOD.replace(b'"uid":1', b'"uid":4294967295'),
        GOOD.replace(b'"mtime_ns":0', b'"mtime_ns":-0'),
        GOOD.replace(b'"mtime_ns":0', b'"mtime_ns":' + b"9" * 20),
        GOOD.replace(b'"mode":"0644"', b'"mode":"0844"'),
        GOOD.replace(b'"mode":"0644"', b'"mode":420'),
        GOOD.replace(b'"type":"file"', b'"type":"fifo"'),
        GOOD.replace(b'"type":"file"', b'"type":"folder"'),
        GOOD.replace(b'"type":"file"', b'"type":"symlink"'),
        GOOD.replace(b"}", b',"more":1}'),
        GOOD.replace(DIGEST.encode(), DIGEST.encode()[1:]),
        GOOD.replace(DIGEST.encode(), b"A" * 64),
        line(TOP).replace(b"folder", b"file"),
        line(file(b".", 5)),
        line(symlink(b"l", b"")),
        line(symlink(b"l", b"x\0y")),
        line(symlink(b"l", b"t" * 4096)),
        line(symlink(b"l", b"x", mode=0o755)),
        line(hardlink(b"l", b"../../etc/shadow")),
        line(hardlink(b"l", b"/etc/shadow")),
        b'{"name":"' + b"n" * MAX_LINE,
    ],
)
def test_a_line_that_is_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        parse(text, DEPTH)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], None),
        ([file(b"a")], Reason.NO_ROOT),
        ([TOP, TOP], Reason.DUPLICATE),
        ([TOP, file(b"a"), file(b"a")], Reason.DUPLICATE),
        ([TOP, file(b"f"), symlink(b"f", b"/etc"), file(b"f/x")], Reason.DUPLICATE),
        ([TOP, symlink(b"f", b"/etc"), file(b"f/x")], Reason.BAD_PARENT),
        ([TOP, file(b"f"), file(b"f/x")], Reason.BAD_PARENT),
        ([TOP, file(b"a/b")], Reason.BAD_PARENT),
        ([TOP, folder(b"a"), file(b"ab/c")], Reason.BAD_PARENT),
        ([TOP, file(b"b"), file(b"a")], Reason.BAD_ENTRIES),
        ([TOP, folder(b"a"), file(b"a-"), file(b"a/b")], Reason.BAD_ENTRIES),
        ([TOP, hardlink(b"b", b"a")], Reason.BAD_LINK),
        ([TOP, hardlink(b"a", b"b"), file(b"b")], Reason.BAD_LINK),
        ([TOP, folder(b"a"), hardlink(b"b", b"a")], Reason.BAD_LINK),
        ([TOP, symlink(b"a", b"x"), hardlink(b"b", b"a")], Reason.BAD_LINK),
        ([TOP, file(b"a"), hardlink(b"b", b"a"), hardlink(b"c", b"b")], Reason.BAD_LINK),
        ([TOP, file(b"a"), hardlink(b"b", b"b")], Reason.BAD_LINK),
        ([TOP, file(b"a")._replace(uid=2), hardlink(b"b", b"a")], Reason.BAD_LINK),
    ],
)
def test_g03_g09_g13_entries_that_are_refused(found: list[Entry], reason: Reason | None) -> None:
    if reason is None:
        assert take(*found).count == 0
        return
    with pytest.raises(Refused) as refused:
        take(*found)
    assert refused.value.reason is reason


def test_entries_in_order_are_taken() -> None:
    found = (
        TOP,
        folder(b"a"),
        folder(b"a/b"),
        file(b"a/b/c", 3),
        file(b"a-", 4),
        hardlink(b"z", b"a/b/c"),
        hardlink(b"zz", b"a/b/c"),
    )
    order = take(*found)
    assert (order.count, order.size) == (7, 7)


def test_what_ends_is_told() -> None:
    order = Order(Limits())
    found = (TOP, folder(b"a"), folder(b"a/b"), file(b"a/b/c"), file(b"d"))
    assert [order.take(entry) for entry in found] == [0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(entries=2), Reason.TOO_MANY_ENTRIES),
        (Limits(size_bytes=9), Reason.TOO_LARGE),
        (Limits(depth=1), Reason.TOO_DEEP),
    ],
)
def test_g11_bounds(limits: Limits, reason: Reason) -> None:
    found = (TOP, folder(b"a"), file(b"a/b", 5), hardlink(b"c", b"a/b"), file(b"d", 5))
    assert take(*found, limits=Limits(entries=5, size_bytes=10, depth=2)).count == 5
    with pytest.raises(Refused) as refused:
        take(*found, limits=limits)
    assert refused.value.reason is reason
