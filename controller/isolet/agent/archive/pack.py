"""Writes the archive of a folder that somebody else has filled.

It is walked beneath open folders and through no link, so nothing outside of it is ever read,
however names change meanwhile. All it held is in the archive, or the reason why there is none:

- a fifo, a socket, a device or another file system in it: `SpecialFile`;
- a name or a depth that the form has no room for: `BadName`, `TooDeep`;
- what its reader may not read: `Unreadable`;
- what changed while it was read: `Changed`.

Not kept: extended attributes, access control lists, holes (they are zeros), access times.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from typing import IO, NamedTuple

from isolet.agent.archive import copying, headers, names
from isolet.agent.archive.entries import (
    FILE,
    FOLDER,
    HARDLINK,
    SYMLINK,
    Entry,
    Figures,
    Writer,
    check,
)
from isolet.agent.archive.refusal import Limits, Reason, Refused

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = _READ | os.O_DIRECTORY


class Sink:
    """Writes both files."""

    def __init__(
        self, entries: IO[bytes], content: IO[bytes], limits: Limits, laid_aside: int = 0
    ) -> None:
        """`laid_aside`: bytes that were written elsewhere before."""
        self.limits = limits
        self._laid_aside = laid_aside
        self.content = content
        self._trail = copying.Trail(content)
        self._entries = Writer(entries)
        self._size = 0
        self._content_size = 0

    def reserve(self, name: bytes, size: int) -> None:
        """Refuse one more entry of this size where it is over a bound."""
        if self._entries.count >= self.limits.entries:
            raise Refused(Reason.TOO_MANY_ENTRIES, f"over {self.limits.entries} entries")
        self._size += size
        if self._size > self.limits.size_bytes:
            raise Refused(Reason.TOO_LARGE, f"over {self.limits.size_bytes} bytes", name)

    def write(self, data: bytes | memoryview) -> None:
        """More of the content. Refuses what the node has no room for."""
        self._content_size += len(data)
        written = self._laid_aside + self._content_size + self._entries.size
        if written > self.limits.written_bytes:
            raise Refused(Reason.NO_SPACE, f"over {self.limits.written_bytes} bytes to write")
        self.content.write(data)
        self._trail.at(self._content_size)

    def add(self, entry: Entry) -> None:
        """The line of an entry whose content was written."""
        self._entries.add(entry)

    def end(self) -> Figures:
        """All was added."""
        self.write(headers.END)
        self.content.flush()
        self._trail.at(self._content_size, end=True)
        return Figures(
            self._entries.count,
            self._entries.size,
            self._entries.digest,
            self._content_size,
            self._size,
        )


class _Open(NamedTuple):
    """A folder that is being read."""

    descriptor: int
    entry: Entry
    rest: Iterator[tuple[bytes, int]]


class _Walk:
    """One walk through a folder."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._stack: list[_Open] = []
        self._links: dict[tuple[int, int], Entry] = {}
        self._device = -1

    def run(self, root: int) -> None:
        self._device = os.fstat(root).st_dev
        try:
            self._enter(os.dup(root), names.ROOT)
            while self._stack:
                self._step(self._stack[-1])
        finally:
            for folder in self._stack:
                os.close(folder.descriptor)

    def _step(self, folder: _Open) -> None:
        found = next(folder.rest, None)
        if found is None:
            self._leave(self._stack.pop())
            return
        base, kind = found
        name = base if folder.entry.name == names.ROOT else folder.entry.name + b"/" + base
        names.check(name, self._sink.limits.depth)
        try:
            self._take(folder.descriptor, base, name, kind)
        except OSError as error:
            raise _refusal(error, name) from error

    def _take(self, folder: int, base: bytes, name: bytes, kind: int) -> None:
        if kind == stat.S_IFREG:
            descriptor = os.open(base, _READ, dir_fd=folder)
            try:
                self._file(descriptor, name)
            finally:
                os.close(descriptor)
        elif kind == stat.S_IFDIR:
            self._enter(os.open(base, _FOLDER, dir_fd=folder), name)
        elif kind == stat.S_IFLNK:
            self._symlink(folder, base, name)
        else:
            raise Refused(Reason.SPECIAL_FILE, "is no file, folder or link", name)

    def _enter(self, descriptor: int, name: bytes) -> None:
        try:
            at = os.fstat(descriptor)
            if at.st_dev != self._device:
                raise Refused(Reason.SPECIAL_FILE, "is another file system", name)
            self._sink.reserve(name, 0)
            entry = _entry(name, FOLDER, at)
            check(entry, self._sink.limits.depth)
            rest = iter(_list(descriptor, self._sink.limits.entries))
        except BaseException:
            os.close(descriptor)
            raise
        self._stack.append(_Open(descriptor, entry, rest))
        self._sink.write(headers.opening(entry))
        self._sink.add(entry)

    def _leave(self, folder: _Open) -> None:
        at = os.fstat(folder.descriptor)
        os.close(folder.descriptor)
        if at.st_mtime_ns != folder.entry.mtime_ns:
            raise Refused(Reason.CHANGED, "changed while it was read", folder.entry.name)
        self._sink.write(headers.closing(folder.entry))

    def _symlink(self, folder: int, base: bytes, name: bytes) -> None:
        at = os.stat(base, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(base, dir_fd=folder)
        entry = _entry(name, SYMLINK, at)._replace(mode=0o777, target=target)
        check(entry, self._sink.limits.depth)
        self._sink.reserve(name, 0)
        self._sink.write(headers.member(entry))
        self._sink.add(entry)

    def _file(self, descriptor: int, name: bytes) -> None:
        at = os.fstat(descriptor)
        if not stat.S_ISREG(at.st_mode):
            raise Refused(Reason.CHANGED, "changed while it was read", name)
        entry = _entry(name, FILE, at)
        if at.st_nlink > 1:
            first = self._links.setdefault((at.st_dev, at.st_ino), entry)
            if first is not entry:
                self._link(first, entry)
                return
        check(entry, self._sink.limits.depth)
        self._sink.reserve(name, at.st_size)
        self._sink.write(headers.member(entry))
        digest = (
            self._small(descriptor, entry)
            if entry.size <= copying.SMALL
            else self._large(descriptor, entry)
        )
        self._sink.write(bytes(headers.padding(entry.size)))
        self._sink.add(entry._replace(digest=digest))

    def _link(self, first: Entry, entry: Entry) -> None:
        linked = entry._replace(kind=HARDLINK, size=0, target=first.name)
        if linked != first._replace(name=entry.name, kind=HARDLINK, size=0, target=first.name):
            raise Refused(Reason.CHANGED, "changed while it was read", entry.name)
        self._sink.reserve(entry.name, 0)
        self._sink.write(headers.member(linked))
        self._sink.add(linked)

    def _small(self, descriptor: int, entry: Entry) -> str:
        # One byte more than there should be tells that it grew.
        data = os.read(descriptor, entry.size + 1)
        if len(data) != entry.size:
            raise Refused(Reason.CHANGED, "changed while it was read", entry.name)
        self._sink.write(data)
        return hashlib.sha256(data).hexdigest()

    def _large(self, descriptor: int, entry: Entry) -> str:
        def fill(buffer: memoryview) -> int:
            return os.readv(descriptor, [buffer])

        try:
            digest = copying.copy(fill, self._sink.write, entry.size)
        except EOFError:
            raise Refused(Reason.CHANGED, "changed while it was read", entry.name) from None
        at = os.fstat(descriptor)
        if (at.st_size, at.st_mtime_ns) != (entry.size, entry.mtime_ns):
            raise Refused(Reason.CHANGED, "changed while it was read", entry.name)
        return digest


def pack(root: int, entries: IO[bytes], content: IO[bytes], limits: Limits) -> Figures:
    """Write the archive of an open folder.

    Args:
        root: descriptor of the folder.
        entries: where the lines go.
        content: where the archive goes.
        limits: what it may hold.

    Raises:
        Refused: there is no archive of this folder; what was written is of no use.
        OSError: what is written cannot be.
    """
    sink = Sink(entries, content, limits)
    _Walk(sink).run(root)
    return sink.end()


def _entry(name: bytes, kind: str, at: os.stat_result) -> Entry:
    size = at.st_size if kind == FILE else 0
    mode = stat.S_IMODE(at.st_mode)
    return Entry(name, kind, mode, at.st_uid, at.st_gid, at.st_mtime_ns, size)


def _list(descriptor: int, most: int) -> list[tuple[bytes, int]]:
    """Names and types of what is in a folder, in order."""
    found = []
    with os.scandir(descriptor) as listed:
        for each in listed:
            found.append((os.fsencode(each.name), _kind(each)))
            if len(found) > most:
                raise Refused(Reason.TOO_MANY_ENTRIES, f"over {most} entries")
    found.sort()
    return found


def _kind(each: "os.DirEntry[str]") -> int:
    if each.is_symlink():
        return stat.S_IFLNK
    if each.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if each.is_file(follow_symlinks=False) else 0


def _refusal(error: OSError, name: bytes) -> Exception:
    """What a failure at a name means; a failure to write has none and passes."""
    if error.filename is None:
        return error
    if isinstance(error, PermissionError):
        return Refused(Reason.UNREADABLE, "may not be read", name)
    return Refused(Reason.CHANGED, f"changed while it was read: {error.strerror}", name)
