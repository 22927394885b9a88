"""Reads a tar archive that somebody hostile may have made, and believes it as little as possible.

What comes from the `tar` of a sandbox's image is what its tenant wants it to be. This reader takes
what GNU tar, busybox and bsdtar write of files, folders and links, and refuses whatever two readers
could take for different things. Records before a member may change it in ways that move no byte:

- GNU's L and K give the member's name and target;
- a PAX record gives path, linkpath, mtime, uid and gid, never a size, and what is ignored;
- a global PAX record may hold a comment, and may only be the first of all.

Every number has to be one, every checksum right, and nothing may stand behind the end of a name.
After the end of the archive come zeros, and not too many.
"""

import re
from typing import IO, NamedTuple

from isolet.agent.archive import copying
from isolet.agent.archive.entries import FILE, FOLDER, HARDLINK, SYMLINK
from isolet.agent.archive.headers import BLOCK, padding
from isolet.agent.archive.refusal import MAX_PATH_BYTES, Reason, Refused

MAX_RECORD_BYTES = 64 << 10
MAX_END_BYTES = 1 << 20
"""Zeros after the end; tar fills up to its blocking factor."""

_ZEROS = bytes(BLOCK)
_KINDS = {b"0": FILE, b"\0": FILE, b"1": HARDLINK, b"2": SYMLINK, b"5": FOLDER}
_GNU, _POSIX, _OLD = b"ustar  \0", b"ustar\x0000", bytes(8)
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_PAX = re.compile(rb"([1-9][0-9]{0,7}) ([^=\n\0]+)=")
_TIME = re.compile(rb"(-?)([0-9]{1,12})(?:\.([0-9]+))?")
_IGNORED = frozenset(
    {b"atime", b"ctime", b"uname", b"gname", b"comment", b"hdrcharset", b"LIBARCHIVE.creationtime"}
)
_BILLION = 1_000_000_000


class Member(NamedTuple):
    """One member as it calls itself; only its form was checked."""

    name: bytes
    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    target: bytes


class _Before(NamedTuple):
    """What the records before a member say of it."""

    name: bytes | None = None
    target: bytes | None = None
    pax: dict[bytes, bytes] | None = None


class Reader:
    """The members of one archive; the bytes of each file have to be read before the next."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._first = True

    def next(self) -> Member | None:
        """The next member; None at the proper end."""
        before = _Before()
        while True:
            block = copying.exactly(self._file, BLOCK, before.name or b"")
            if block == _ZEROS:
                self._end(before)
                return None
            _check_sum(block)
            flag = block[156:157]
            if flag in _KINDS:
                self._first = False
                return _member(block, before)
            before = self._record(flag, block, before)
            self._first = False

    def data(self, size: int, member: bytes) -> bytes:
        """Some of a file's bytes."""
        return copying.exactly(self._file, size, member)

    def skip_padding(self, member: Member) -> None:
        """What fills the last block of a file; writers leave anything there, readers pass it."""
        copying.exactly(self._file, padding(member.size), member.name)

    def _record(self, flag: bytes, block: bytes, before: _Before) -> _Before:
        """A record that says something of the member after it."""
        name = _text(block[:100])
        if flag not in (b"L", b"K", b"x", b"g"):
            raise Refused(_unknown(flag), f"has the type {flag.decode('latin-1')!a}", name)
        size = _number(block[124:136], name)
        if size > MAX_RECORD_BYTES:
            raise Refused(Reason.TOO_LARGE, f"a record of {size} bytes about a member", name)
        data = self.data(size, name)
        copying.exactly(self._file, padding(size), name)
        if flag == b"g":
            self._check_global(data, before)
            return before
        if before.pax is not None or (flag == b"x" and before != _Before()):
            raise Refused(Reason.BAD_HEADER, "two kinds of records about one member", name)
        if flag == b"x":
            return _Before(pax=_pax(data, name))
        long = _long(data, name)
        if (before.name if flag == b"L" else before.target) is not None:
            raise Refused(Reason.BAD_HEADER, "two records about one name", name)
        return before._replace(name=long) if flag == b"L" else before._replace(target=long)

    def _check_global(self, data: bytes, before: _Before) -> None:
        if not self._first or before != _Before() or set(_pax(data, b"")) - {b"comment"}:
            raise Refused(Reason.BAD_HEADER, "a global record that is no comment at the beginning")

    def _end(self, before: _Before) -> None:
        if before != _Before():
            raise Refused(Reason.TRUNCATED, "a record about a member that does not come")
        if copying.exactly(self._file, BLOCK, b"") != _ZEROS:
            raise Refused(Reason.BAD_HEADER, "one block of zeros between members")
        left = MAX_END_BYTES
        while data := self._file.read(min(left, copying.SMALL) or 1):
            if data.count(0) != len(data) or not left:
                raise Refused(Reason.TRAILING_DATA, "the archive goes on after its end")
            left -= len(data)


def _member(block: bytes, before: _Before) -> Member:
    pax = before.pax or {}
    own_name = _own_name(block)
    name = before.name or pax.get(b"path") or own_name
    kind = _KINDS[block[156:157]]
    size = _number(block[124:136], name)
    target = before.target or pax.get(b"linkpath") or _text(block[157:257])
    if kind != FILE and size:
        raise Refused(Reason.BAD_HEADER, f"a {kind} with {size} bytes", name)
    if bool(target) != (kind in (SYMLINK, HARDLINK)):
        raise Refused(Reason.BAD_LINK, f"a {kind} with {len(target)} bytes of target", name)
    mode = _number(block[100:108], name)
    mtime = _number(block[136:148], name, signed=True) * _BILLION
    if b"mtime" in pax:
        mtime = _time(pax[b"mtime"], name)
    uid, gid = (
        _decimal(pax[key], name) if key in pax else _number(block[place : place + 8], name)
        for key, place in ((b"uid", 108), (b"gid", 116))
    )
    # Some writers put the type of the file above the mode.
    return Member(name, kind, mode & 0o7777, uid, gid, mtime, size, target)


def _own_name(block: bytes) -> bytes:
    name, magic = _text(block[:100]), block[257:265]
    if magic == _POSIX:
        if any(block[500:512]):
            raise Refused(Reason.BAD_HEADER, "something behind the header", name)
        prefix = _text(block[345:500])
        return prefix + b"/" + name if prefix else name
    if magic not in (_GNU, _OLD):
        raise Refused(Reason.BAD_HEADER, "the header of an unknown kind of tar", name)
    return name


def _check_sum(block: bytes) -> None:
    told = _number(block[148:156], _text(block[:100]))
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != told:
        raise Refused(Reason.BAD_HEADER, "the checksum of a header is wrong")


def _unknown(flag: bytes) -> Reason:
    return Reason.SPECIAL_FILE if flag in (b"3", b"4", b"6") else Reason.BAD_HEADER


def _text(field: bytes) -> bytes:
    """A field of a header up to its first NUL; nothing may hide behind it."""
    text, _, rest = field.partition(b"\0")
    if any(rest):
        raise Refused(Reason.BAD_HEADER, "bytes behind the end of a name", text)
    return text


def _number(field: bytes, name: bytes, *, signed: bool = False) -> int:
    """An octal or base-256 number."""
    if field[0] in (0x80, 0xFF):
        sign = b"\0" if field[0] == 0x80 else b"\xff"
        value = int.from_bytes(sign + field[1:], "big", signed=True)
        if signed or value >= 0:
            return value
    elif found := _OCTAL.fullmatch(field):
        return int(found[1], 8)
    raise Refused(Reason.BAD_HEADER, "a field that is no number", name)


def _long(data: bytes, member: bytes) -> bytes:
    """The name in an L or K record."""
    name = data.removesuffix(b"\0")
    if not name or b"\0" in name or len(name) > MAX_PATH_BYTES + 1:
        raise Refused(Reason.BAD_NAME, "a long name that is empty, too long or holds a NUL", member)
    return name


def _pax(data: bytes, member: bytes) -> dict[bytes, bytes]:
    """The fields of a PAX record."""
    fields: dict[bytes, bytes] = {}
    place = 0
    while place < len(data):
        found = _PAX.match(data, place)
        end = place + int(found[1]) if found else 0
        if found is None or end > len(data) or end <= found.end() or data[end - 1 : end] != b"\n":
            raise Refused(Reason.BAD_HEADER, "a PAX record that is not well formed", member)
        key, value = found[2], data[found.end() : end - 1]
        known = key in (b"path", b"linkpath", b"mtime", b"uid", b"gid") or key in _IGNORED
        if not known or key in fields or b"\0" in value or not value:
            # Not its key: it is the tenant's word, and messages are kept and shown.
            raise Refused(Reason.BAD_HEADER, "a PAX record that is not taken", member)
        fields[key] = value
        place = end
    return fields


def _time(text: bytes, member: bytes) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise Refused(Reason.BAD_HEADER, "a PAX record whose time is none", member)
    sign, seconds, fraction = found.groups()
    value = int(seconds) * _BILLION + int((fraction or b"0")[:9].ljust(9, b"0"))
    return -value if sign else value


def _decimal(text: bytes, member: bytes) -> int:
    if not re.fullmatch(rb"[0-9]{1,10}", text):
        raise Refused(Reason.BAD_HEADER, "a PAX record whose owner is no number", member)
    return int(text)
