"""The headers of the content: the subset of GNU tar's format that every tar of today reads alike.

Type flags 0 (file), 1 (hard link), 2 (symbolic link), 5 (folder), and L and K for names over 100
bytes; no PAX records, no sparse files, no owners' names. Numbers too large for octal, and times
before 1970, are base-256. Times are whole seconds.

A folder has two headers, one before and one after what is in it. The first lets its owner write: a
plain tar that is not root could not fill a folder of mode 0555, and changes the time of every
folder as it fills it (docs/measured.md#archives). The second has the true mode and time.
"""

from isolet.agent.archive.entries import FILE, FOLDER, HARDLINK, SYMLINK, Entry
from isolet.agent.archive.names import ROOT

BLOCK = 512
END = bytes(2 * BLOCK)
"""What follows the last member; nothing follows it."""

_NAME = 100
_FLAGS = {FILE: b"0", HARDLINK: b"1", SYMLINK: b"2", FOLDER: b"5"}
_TAIL = b"ustar  \0" + bytes(247)
_LONG = b"././@LongLink"
_OWNER_ALL = 0o700


def padding(size: int) -> int:
    """Zeros that follow so many bytes."""
    return -size % BLOCK


def opening(folder: Entry) -> bytes:
    """The header before what is in a folder."""
    return _member(folder, folder.mode | _OWNER_ALL)


def closing(folder: Entry) -> bytes:
    """The header after what is in a folder."""
    return _member(folder, folder.mode)


def member(entry: Entry) -> bytes:
    """The header of anything but a folder."""
    return _member(entry, entry.mode)


def _member(entry: Entry, mode: int) -> bytes:
    name = entry.name
    if entry.kind == FOLDER:
        name = b"./" if name == ROOT else name + b"/"
    long = b""
    if len(entry.target) > _NAME:
        long += _record(b"K", entry.target)
    if len(name) > _NAME:
        long += _record(b"L", name)
    flag = _FLAGS[entry.kind]
    block = _block(name, flag, entry.target, mode, entry.uid, entry.gid, entry.size, entry.mtime)
    return long + block


def _record(flag: bytes, name: bytes) -> bytes:
    """A header whose body is a name and a NUL."""
    size = len(name) + 1
    head = _block(_LONG, flag, b"", 0o644, 0, 0, size, 0)
    return head + name + bytes(1 + padding(size))


def _block(
    name: bytes, flag: bytes, target: bytes, mode: int, uid: int, gid: int, size: int, mtime: int
) -> bytes:
    head = (
        name[:_NAME].ljust(_NAME, b"\0")
        + b"%07o\0" % mode
        + _number(uid, 8)
        + _number(gid, 8)
        + _number(size, 12)
        + _number(mtime, 12)
    )
    tail = flag + target[:_NAME].ljust(_NAME, b"\0") + _TAIL
    checksum = sum(head) + sum(tail) + 8 * 0x20
    return b"%s%06o\0 %s" % (head, checksum, tail)


def _number(value: int, width: int) -> bytes:
    """Octal where it fits, else base-256 in two's complement with the highest bit set."""
    if 0 <= value < 1 << 3 * (width - 1):
        return b"%0*o\0" % (width - 1, value)
    data = bytearray(value.to_bytes(width, "big", signed=True))
    data[0] |= 0x80
    return bytes(data)
