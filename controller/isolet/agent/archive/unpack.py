"""Reads an archive back: all of it is compared with its entries, and may be written to a folder.

The content is never interpreted. Each header is made from the entry and compared, each file's bytes
are hashed and compared, and nothing may be left over; so the two files agree in every byte or it
is refused with the name of the entry at which they do not.

What is written is created, never opened: the folder is empty before, and each thing is made beneath
an open folder that was itself made here. After a failure the folder holds a part; its owner
destroys it.
"""

import hashlib
import os
from collections.abc import Callable
from typing import IO, Protocol

from isolet.agent.archive import copying, entries, headers
from isolet.agent.archive.entries import FILE, FOLDER, HARDLINK, Entry, Figures, Order, Owner
from isolet.agent.archive.refusal import Limits, Reason, Refused

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_MAY_ENTER = 0o500


class Target(Protocol):
    """Where an archive is written to. Folders are entered and left in order."""

    def enter(self, folder: Entry) -> None:
        """Make a folder; what follows is in it."""
        ...

    def leave(self, folder: Entry) -> None:
        """The folder has all that is in it."""
        ...

    def file(self, entry: Entry, data: bytes) -> None:
        """Make a file of these bytes."""
        ...

    def large_file(self, entry: Entry, pour: "Callable[[copying.Drain], None]") -> None:
        """Make a file; `pour` gives its bytes to what it is called with."""
        ...

    def link(self, entry: Entry) -> None:
        """Make a symbolic or hard link."""
        ...

    def close(self) -> None:
        """There will be no more, whether or not all has come."""
        ...


class Nowhere:
    """Checks only."""

    def enter(self, folder: Entry) -> None:
        """See `Target`."""

    def leave(self, folder: Entry) -> None:
        """See `Target`."""

    def file(self, entry: Entry, data: bytes) -> None:
        """See `Target`."""

    def large_file(self, entry: Entry, pour: "Callable[[copying.Drain], None]") -> None:
        """See `Target`."""
        pour(len)

    def link(self, entry: Entry) -> None:
        """See `Target`."""

    def close(self) -> None:
        """See `Target`."""


class Folder:
    """Writes to an empty folder.

    A caller that is not root can give files to nobody else: it passes itself as `owner`, or an
    entry of another's is an OSError.
    """

    def __init__(self, root: int, owner: Owner | None = None) -> None:
        """`owner`: whose all of it becomes; None: whose the entries say."""
        self._root = root
        self._owner = owner
        self._own = Owner(os.geteuid(), os.getegid())
        self._open: list[int] = []
        self._late: list[Entry] = []
        if os.listdir(root):
            raise Refused(Reason.NOT_EMPTY, "the folder to write to is not empty")

    def enter(self, folder: Entry) -> None:
        """See `Target`."""
        if not self._open:
            self._open.append(os.dup(self._root))
            return
        base = _base(folder)
        os.mkdir(base, 0o700, dir_fd=self._open[-1])
        self._open.append(os.open(base, _FOLDER, dir_fd=self._open[-1]))

    def leave(self, folder: Entry) -> None:
        """See `Target`."""
        descriptor = self._open.pop()
        try:
            self._give(descriptor, folder)
            if folder.mode & _OWNER_MAY_ENTER == _OWNER_MAY_ENTER:
                os.chmod(descriptor, folder.mode)
            else:  # a later hard link may have to reach what is in it
                os.chmod(descriptor, 0o700)
                self._late.append(folder)
            os.utime(descriptor, ns=(folder.mtime_ns, folder.mtime_ns))
        finally:
            os.close(descriptor)
        if not self._open:
            self._close_late()

    def _close_late(self) -> None:
        """Modes that keep even their owner out, the innermost first."""
        for folder in self._late:
            os.chmod(folder.name, folder.mode, dir_fd=self._root)

    def file(self, entry: Entry, data: bytes) -> None:
        """See `Target`."""
        descriptor = self._create(entry)
        try:
            _write_all(descriptor, memoryview(data))
            self._finish(descriptor, entry)
        finally:
            os.close(descriptor)

    def large_file(self, entry: Entry, pour: "Callable[[copying.Drain], None]") -> None:
        """See `Target`."""
        descriptor = self._create(entry)
        trail, written = copying.Trail(descriptor), 0

        def drain(piece: memoryview) -> None:
            nonlocal written
            _write_all(descriptor, piece)
            written += len(piece)
            trail.at(written)

        try:
            pour(drain)
            trail.at(written, end=True)
            self._finish(descriptor, entry)
        finally:
            os.close(descriptor)

    def link(self, entry: Entry) -> None:
        """See `Target`."""
        base, folder = _base(entry), self._open[-1]
        if entry.kind == HARDLINK:
            os.link(
                entry.target,
                base,
                src_dir_fd=self._root,
                dst_dir_fd=folder,
                follow_symlinks=False,
            )
            return
        os.symlink(entry.target, base, dir_fd=folder)
        wanted = self._owner or Owner(entry.uid, entry.gid)
        if wanted != self._own:
            os.chown(base, *wanted, dir_fd=folder, follow_symlinks=False)
        times = (entry.mtime_ns, entry.mtime_ns)
        os.utime(base, ns=times, dir_fd=folder, follow_symlinks=False)

    def close(self) -> None:
        """See `Target`."""
        while self._open:
            os.close(self._open.pop())

    def _create(self, entry: Entry) -> int:
        return os.open(_base(entry), _CREATE, 0o600, dir_fd=self._open[-1])

    def _finish(self, descriptor: int, entry: Entry) -> None:
        self._give(descriptor, entry)
        os.chmod(descriptor, entry.mode)  # after the owner, whose change clears some of it
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))

    def _give(self, descriptor: int, entry: Entry) -> None:
        wanted = self._owner or Owner(entry.uid, entry.gid)
        if wanted != self._own:
            os.chown(descriptor, *wanted)


class _Reading:
    """One reading of an archive."""

    def __init__(self, content: IO[bytes], target: Target, *, again: bool) -> None:
        self._content = content
        self._trail = None if again else copying.Trail(content)
        self._target = target
        self._folders: list[Entry] = []
        self._size = 0

    def take(self, entry: Entry, ended: int) -> None:
        self.leave(ended)
        if entry.kind == FOLDER:
            self._expect(headers.opening(entry), entry)
            self._target.enter(entry)
            self._folders.append(entry)
            return
        self._expect(headers.member(entry), entry)
        if entry.kind != FILE:
            self._target.link(entry)
        elif entry.size <= copying.SMALL:
            self._small(entry)
        else:
            self._target.large_file(entry, lambda drain: self._large(entry, drain))
            self._expect(bytes(headers.padding(entry.size)), entry)

    def leave(self, number: int) -> None:
        for _ in range(number):
            folder = self._folders.pop()
            self._expect(headers.closing(folder), folder)
            self._target.leave(folder)

    def end(self) -> int:
        self.leave(len(self._folders))
        if copying.exactly(self._content, len(headers.END), b"") != headers.END:
            raise Refused(Reason.MISMATCH, "the archive does not end where it should")
        if self._content.read(1):
            raise Refused(Reason.TRAILING_DATA, "the archive goes on after its end")
        return self._size + len(headers.END)

    def _expect(self, header: bytes, entry: Entry) -> None:
        if copying.exactly(self._content, len(header), entry.name) != header:
            raise Refused(Reason.MISMATCH, "the content is not what the entry says", entry.name)
        self._size += len(header)

    def _small(self, entry: Entry) -> None:
        data = copying.exactly(self._content, entry.size, entry.name)
        _compare(hashlib.sha256(data).hexdigest(), entry)
        self._size += entry.size
        self._expect(bytes(headers.padding(entry.size)), entry)
        self._target.file(entry, data)

    def _large(self, entry: Entry, drain: copying.Drain) -> None:
        content: IO[bytes] = self._content

        def fill(buffer: memoryview) -> int:
            used: int = content.readinto(buffer)  # type: ignore[attr-defined]
            self._size += used
            if self._trail is not None:
                self._trail.at(self._size)
            return used

        try:
            found = copying.copy(fill, drain, entry.size)
        except EOFError:
            raise Refused(Reason.TRUNCATED, "the archive ends too early", entry.name) from None
        _compare(found, entry)


def unpack(
    lines: IO[bytes], content: IO[bytes], target: Target, limits: Limits, *, again: bool = False
) -> Figures:
    """Read an archive into `target`.

    Args:
        lines: the entries, from their beginning; they are read twice.
        content: the archive.
        target: where it goes; `Nowhere` only checks.
        limits: what it may hold.
        again: the content will be read once more soon, so that it may stay in memory.

    Raises:
        Refused: entries and content are not one archive.
        OSError: the target cannot be written.
    """
    order = Order(limits, entries.link_targets(lines, limits))
    lines.seek(0)
    try:
        return _read(lines, _Reading(content, target, again=again), order, limits.depth)
    finally:
        target.close()


def _read(lines: IO[bytes], reading: _Reading, order: Order, depth: int) -> Figures:
    digest, size = hashlib.sha256(), 0
    while text := lines.readline(entries.MAX_LINE + 1):
        digest.update(text)
        size += len(text)
        entry = entries.parse(text, depth)
        reading.take(entry, order.take(entry))
    if not order.count:
        raise Refused(Reason.NO_ROOT, "there are no entries")
    content_size = reading.end()
    return Figures(order.count, size, f"sha256:{digest.hexdigest()}", content_size, order.size)


def _compare(digest: str, entry: Entry) -> None:
    if digest != entry.digest:
        raise Refused(Reason.MISMATCH, "the file's bytes have another digest", entry.name)


def _base(entry: Entry) -> bytes:
    return entry.name.rpartition(b"/")[2]


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
