"""The first file of an archive: one line for each entry, in the one order and form there is.

A line is JSON in ASCII, such as (on one line)

    {"name":"a/b","type":"file","mode":"0644","uid":1000,"gid":1000,
     "mtime_ns":1795977388000000000,"size":5,"sha256":"2cf24d…"}

A folder has no size and digest; `symlink` and `hardlink` have a `target` in their place, for a hard
link the name of an earlier file whose attributes it repeats. Of all names of one file the first in
order is the file. Bytes of names that are not printable ASCII, and `"`, `%` and backslash, are
written as `%` and two hex digits. Sorted by path, name by name: after a folder comes what is in it.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import IO, NamedTuple

from isolet.agent.archive import names
from isolet.agent.archive.refusal import MAX_PATH_BYTES, Limits, Reason, Refused

FILE, FOLDER, SYMLINK, HARDLINK = "file", "folder", "symlink", "hardlink"
MAX_LINE = 6 * MAX_PATH_BYTES + 512
"""Two names of which each byte takes three, and the rest."""
MAX_ID = (1 << 32) - 2
_MOST_SECONDS = 1 << 36
_BILLION = 1_000_000_000

_NUMBER = rb"(0|[1-9][0-9]{0,18})"
_TEXT = rb'"([ !#-\[\]-~]*)"'
_LINE = re.compile(
    rb'\{"name":' + _TEXT + rb',"type":"(file|folder|symlink|hardlink)","mode":"([0-7]{4})"'
    rb',"uid":' + _NUMBER + rb',"gid":' + _NUMBER + rb',"mtime_ns":(0|-?[1-9][0-9]{0,19})'
    rb'(?:,"size":' + _NUMBER + rb',"sha256":"([0-9a-f]{64})"|,"target":' + _TEXT + rb")?\}\n"
)


class Entry(NamedTuple):
    """One thing in the workspace."""

    name: bytes
    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    digest: str = ""
    """Hex SHA-256 of a file's bytes."""
    target: bytes = b""

    @property
    def mtime(self) -> int:
        """In whole seconds, towards the past."""
        return self.mtime_ns // _BILLION


class Owner(NamedTuple):
    """Whose something is."""

    uid: int
    gid: int


class Figures(NamedTuple):
    """What an archive is, as a manifest tells it."""

    entries: int
    entries_bytes: int
    content_digest: str
    content_bytes: int
    size_bytes: int


def line(entry: Entry) -> bytes:
    """Its line."""
    head = b'{"name":"%s","type":"%s","mode":"%04o","uid":%d,"gid":%d,"mtime_ns":%d' % (
        names.escape(entry.name),
        entry.kind.encode(),
        entry.mode,
        entry.uid,
        entry.gid,
        entry.mtime_ns,
    )
    if entry.kind == FILE:
        return head + b',"size":%d,"sha256":"%s"}\n' % (entry.size, entry.digest.encode())
    if entry.kind == FOLDER:
        return head + b"}\n"
    return head + b',"target":"%s"}\n' % names.escape(entry.target)


def parse(text: bytes, depth: int) -> Entry:
    """The entry of a line; refuses every line that `line` would not have written."""
    found = _LINE.fullmatch(text)
    if found is None:
        raise Refused(Reason.BAD_ENTRIES, "not a line of entries", text)
    name, kind_text, mode, uid, gid, mtime_ns, size, digest, target = found.groups()
    kind = kind_text.decode()
    entry = Entry(
        names.unescape(name),
        kind,
        int(mode, 8),
        int(uid),
        int(gid),
        int(mtime_ns),
        int(size or 0),
        (digest or b"").decode(),
        names.unescape(target or b""),
    )
    if (size is not None) != (kind == FILE) or (target is not None) != (
        kind in (SYMLINK, HARDLINK)
    ):
        raise Refused(Reason.BAD_ENTRIES, f"not the fields of a {kind}", entry.name)
    check(entry, depth)
    return entry


def check(entry: Entry, depth: int) -> None:
    """Refuses an entry that is wrong by itself."""
    if entry.name != names.ROOT:
        names.check(entry.name, depth)
    elif entry.kind != FOLDER:
        raise Refused(Reason.NO_ROOT, "the workspace itself is no folder", entry.name)
    if max(entry.uid, entry.gid) > MAX_ID or abs(entry.mtime) > _MOST_SECONDS:
        raise Refused(Reason.BAD_ENTRIES, "an owner or a time is out of range", entry.name)
    if entry.kind == HARDLINK:
        names.check(entry.target, depth)
    elif entry.kind == SYMLINK:
        check_symlink(entry)


def check_symlink(entry: Entry) -> None:
    """A symbolic link may say anything, since nothing here follows one."""
    target = entry.target
    if not target or len(target) > MAX_PATH_BYTES or b"\0" in target:
        raise Refused(
            Reason.BAD_LINK, "the link's target is empty, too long or holds a NUL", target
        )
    if entry.mode != 0o777:
        raise Refused(Reason.BAD_ENTRIES, "a symbolic link has the mode 0777", entry.name)


class Order:
    """Checks that entries come in their one order, each in a folder, within bounds."""

    def __init__(self, limits: Limits, targets: Iterable[bytes] = ()) -> None:
        """`targets`: names that hard links will refer to."""
        self._limits = limits
        self._last: bytes | None = None
        self._folders: list[bytes] = []
        self._linkable: dict[bytes, Entry | None] = dict.fromkeys(targets)
        self.count = 0
        self.size = 0

    def take(self, entry: Entry) -> int:
        """Take the next one; returns how many open folders it ends."""
        self.count += 1
        if self.count > self._limits.entries:
            raise Refused(Reason.TOO_MANY_ENTRIES, f"over {self._limits.entries} entries")
        self.size += entry.size
        if self.size > self._limits.size_bytes:
            raise Refused(Reason.TOO_LARGE, f"over {self._limits.size_bytes} bytes", entry.name)
        ended = self._place(entry.name)
        if entry.kind == FOLDER:
            self._folders.append(entry.name)
        elif entry.kind == HARDLINK:
            self._check_link(entry)
        elif entry.kind == FILE and entry.name in self._linkable:
            self._linkable[entry.name] = entry
        return ended

    def _place(self, name: bytes) -> int:
        key = names.key(name)
        if self._last is None:
            if name != names.ROOT:
                raise Refused(Reason.NO_ROOT, "the first entry is not the workspace itself", name)
            self._last = key
            return 0
        if key <= self._last:
            reason = Reason.DUPLICATE if key == self._last else Reason.BAD_ENTRIES
            raise Refused(reason, "the entry does not come after the one before it", name)
        self._last = key
        inside, ended = names.parent(name), 0
        while self._folders and self._folders[-1] != inside:
            self._folders.pop()
            ended += 1
        if not self._folders:
            raise Refused(Reason.BAD_PARENT, "the entry lies in no folder", name)
        return ended

    def _check_link(self, entry: Entry) -> None:
        first = self._linkable.get(entry.target)
        if first is None:
            raise Refused(Reason.BAD_LINK, "the hard link names no earlier file", entry.name)
        if entry != first._replace(
            name=entry.name, kind=HARDLINK, size=0, digest="", target=entry.target
        ):
            raise Refused(Reason.BAD_LINK, "the hard link differs from its file", entry.name)


def link_targets(file: IO[bytes], limits: Limits) -> set[bytes]:
    """Names that hard links refer to, from a first reading; the second need not keep every name."""
    found: set[bytes] = set()
    lines = 0
    while text := file.readline(MAX_LINE + 1):
        lines += 1
        if lines > limits.entries:
            raise Refused(Reason.TOO_MANY_ENTRIES, f"over {limits.entries} entries")
        if b',"type":"hardlink",' in text:
            found.add(parse(text, limits.depth).target)
    return found


class Writer:
    """Writes lines and takes their digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.count = 0
        self.size = 0

    def add(self, entry: Entry) -> None:
        """Write one more."""
        text = line(entry)
        self._hash.update(text)
        self._file.write(text)
        self.count += 1
        self.size += len(text)

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of what was written."""
        return f"sha256:{self._hash.hexdigest()}"
