"""Tar archives made block by block, for those that no library would write."""

import io
import tempfile
from typing import Any

from isolet.agent.archive.entries import Figures, Owner
from isolet.agent.archive.normalise import normalise
from isolet.agent.archive.refusal import Limits

END = bytes(1024)


def number(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def head(name: bytes, kind: bytes = b"0", **fields: Any) -> bytes:
    """One header; fields by their names in tar.h, raw bytes or numbers."""
    values: dict[str, Any] = {
        "mode": 0o644,
        "uid": 1000,
        "gid": 1000,
        "size": 0,
        "mtime": 5,
        "linkname": b"",
        "magic": b"ustar  \0",
        "uname": b"",
        "gname": b"",
        "devs": bytes(16),
        "rest": bytes(167),
    } | fields

    def raw(key: str, width: int) -> bytes:
        value = values[key]
        data: bytes = number(value, width) if isinstance(value, int) else value
        return data.ljust(width, b"\0")

    block = name.ljust(100, b"\0") + raw("mode", 8) + raw("uid", 8) + raw("gid", 8)
    block += raw("size", 12) + raw("mtime", 12) + b" " * 8 + kind + raw("linkname", 100)
    block += raw("magic", 8) + raw("uname", 32) + raw("gname", 32) + raw("devs", 16)
    block += raw("rest", 167)
    assert len(block) == 512, len(block)
    checksum = values.get("checksum", b"%06o\0 " % sum(block))
    return block[:148] + checksum + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(name: bytes, data: bytes = b"", kind: bytes = b"0", **fields: Any) -> bytes:
    return head(name, kind, size=len(data), **fields) + padded(data)


def record(kind: bytes, data: bytes) -> bytes:
    """A record about the next member."""
    return member(b"././@LongLink" if kind in b"LK" else b"pax", data, kind)


def pax(**fields: bytes) -> bytes:
    return record(b"x", b"".join(line(key.encode(), value) for key, value in fields.items()))


def line(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


TOP = head(b"./", b"5", mode=0o755)


def folder(name: bytes) -> bytes:
    return head(name, b"5", mode=0o755)


def symlink(name: bytes, target: bytes) -> bytes:
    return head(name, b"2", mode=0o777, linkname=target)


def hardlink(name: bytes, target: bytes) -> bytes:
    return head(name, b"1", linkname=target)


def archive(*blocks: bytes) -> bytes:
    """The workspace itself, the blocks, and a proper end."""
    return TOP + b"".join(blocks) + END


def normalised(
    data: bytes | io.RawIOBase, limits: Limits | None = None, owner: Owner | None = None
) -> tuple[bytes, bytes, Figures]:
    """Entries, content and figures of a foreign archive."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else io.BufferedReader(data)
    entries, content = io.BytesIO(), io.BytesIO()
    with tempfile.TemporaryFile() as aside:
        figures = normalise(stream, entries, content, aside, limits or Limits(), owner)
    return entries.getvalue(), content.getvalue(), figures
