"""Makes the archive of a Checkpoint from a tar stream of the sandbox, in our own order and form.

The stream comes in any order, so files are first laid aside while they are hashed, and the archive
is written once the end has come. Memory holds an entry for each member, never a file.
"""

import hashlib
import os
from typing import IO, NamedTuple

from isolet.agent.archive import copying, headers, names
from isolet.agent.archive.entries import (
    FILE,
    FOLDER,
    HARDLINK,
    SYMLINK,
    Entry,
    Figures,
    Owner,
    check,
)
from isolet.agent.archive.foreign import Member, Reader
from isolet.agent.archive.pack import Sink
from isolet.agent.archive.refusal import Limits, Reason, Refused


class _Kept(NamedTuple):
    """An entry and where its bytes lie aside."""

    entry: Entry
    offset: int


class _Intake:
    """Takes members in the order in which they come."""

    def __init__(
        self, stream: IO[bytes], aside: IO[bytes], limits: Limits, owner: Owner | None
    ) -> None:
        self._reader = Reader(stream)
        self._aside = aside
        self._limits = limits
        self._owner = owner
        self.size = 0
        self.kept: dict[bytes, _Kept] = {}

    def run(self) -> None:
        while (member := self._reader.next()) is not None:
            entry, offset = self._entry(member), self.size
            self._check(entry)
            if entry.kind == FILE:
                entry = entry._replace(digest=self._lay_aside(member))
            self.kept[entry.name] = _Kept(entry, offset)
        if names.ROOT not in self.kept:
            raise Refused(Reason.NO_ROOT, "the archive does not hold the workspace itself")

    def _entry(self, member: Member) -> Entry:
        depth = self._limits.depth
        name = _plain(member.name, depth, folder=member.kind == FOLDER)
        target = member.target
        if member.kind == HARDLINK:
            target = _plain(target, depth, folder=False)
        mode = 0o777 if member.kind == SYMLINK else member.mode
        uid, gid = self._owner or (member.uid, member.gid)
        return Entry(
            name,
            member.kind,
            mode,
            uid,
            gid,
            member.mtime_ns,
            member.size,
            "",
            target,
        )

    def _check(self, entry: Entry) -> None:
        check(entry, self._limits.depth)
        name = entry.name
        if name in self.kept:
            raise Refused(Reason.DUPLICATE, "is there twice", name)
        if len(self.kept) >= self._limits.entries:
            raise Refused(Reason.TOO_MANY_ENTRIES, f"over {self._limits.entries} entries")
        if self.size + entry.size > self._limits.written_bytes:
            raise Refused(Reason.NO_SPACE, f"over {self._limits.written_bytes} bytes to write")
        if self.size + entry.size > self._limits.size_bytes:
            raise Refused(Reason.TOO_LARGE, f"over {self._limits.size_bytes} bytes", name)
        if name != names.ROOT:
            above = self.kept.get(names.parent(name))
            if above is None or above.entry.kind != FOLDER:
                raise Refused(Reason.BAD_PARENT, "lies in no folder of the archive", name)
        if entry.kind == HARDLINK:
            first = self.kept.get(entry.target)
            if first is None or first.entry.kind != FILE:
                raise Refused(Reason.BAD_LINK, "the hard link names no earlier file", name)

    def _lay_aside(self, member: Member) -> str:
        self.size += member.size
        if member.size <= copying.SMALL:
            data = self._reader.data(member.size, member.name)
            self._aside.write(data)
            digest = hashlib.sha256(data).hexdigest()
        else:
            digest = copying.copy(self._fill(member.name), self._aside.write, member.size)
        self._reader.skip_padding(member)
        return digest

    def _fill(self, name: bytes) -> copying.Fill:
        def fill(buffer: memoryview) -> int:
            data = self._reader.data(len(buffer), name)
            buffer[:] = data
            return len(data)

        return fill


def normalise(
    stream: IO[bytes],
    entries: IO[bytes],
    content: IO[bytes],
    aside: IO[bytes],
    limits: Limits,
    owner: Owner | None = None,
) -> Figures:
    """Write the archive of a foreign tar stream.

    Args:
        stream: the tar stream; it is read to its end, or to what is wrong with it.
        entries: where the lines go.
        content: where the archive goes.
        aside: an empty file, open for reading and writing; of no use afterwards.
        limits: what it may hold.
        owner: whose all of it is; the ids in the stream are the tenant's word, and busybox writes
            no id above 2^24 as it is. None: whose the stream says.

    Raises:
        Refused: there is no archive of this; what was written is of no use.
        OSError: what is written cannot be.
    """
    intake = _Intake(stream, aside, limits, owner)
    intake.run()
    aside.flush()
    sink = Sink(entries, content, limits, intake.size)
    folders: list[Entry] = []
    for kept in _in_order(intake.kept):
        _leave(sink, folders, kept.entry)
        _write(sink, kept, aside)
        if kept.entry.kind == FOLDER:
            folders.append(kept.entry)
    while folders:
        sink.write(headers.closing(folders.pop()))
    return sink.end()


def _leave(sink: Sink, folders: list[Entry], entry: Entry) -> None:
    """End the folders that this entry does not lie in."""
    while folders and folders[-1].name != names.parent(entry.name):
        sink.write(headers.closing(folders.pop()))


def _write(sink: Sink, kept: _Kept, aside: IO[bytes]) -> None:
    entry = kept.entry
    sink.reserve(entry.name, entry.size)
    sink.write(headers.opening(entry) if entry.kind == FOLDER else headers.member(entry))
    offset, left = kept.offset, entry.size
    while left:
        data = os.pread(aside.fileno(), min(left, copying.BUFFER), offset)
        if not data:
            raise Refused(Reason.FAILED, "what was laid aside is gone", entry.name)
        sink.write(data)
        offset += len(data)
        left -= len(data)
    sink.write(bytes(headers.padding(entry.size)))
    sink.add(entry)


def _in_order(found: dict[bytes, _Kept]) -> list[_Kept]:
    """All of them in the order of the archive, the first name of each file being the file."""
    first: dict[bytes, _Kept] = {}
    kept = sorted(found.values(), key=lambda each: names.key(each.entry.name))
    linked = {each.entry.target for each in kept if each.entry.kind == HARDLINK}
    result = []
    for each in kept:
        entry = each.entry
        origin = entry.target if entry.kind == HARDLINK else entry.name
        if entry.kind == HARDLINK or origin in linked:
            each = _named(found[origin], entry.name, first.get(origin))
            first.setdefault(origin, each)
        result.append(each)
    return result


def _named(origin: _Kept, name: bytes, first: _Kept | None) -> _Kept:
    """A name of a file that has several."""
    if first is None:
        return origin._replace(entry=origin.entry._replace(name=name))
    link = origin.entry._replace(
        name=name, kind=HARDLINK, size=0, digest="", target=first.entry.name
    )
    return _Kept(link, 0)


def _plain(name: bytes, depth: int, *, folder: bool) -> bytes:
    """A name as tar writes it, below `./` or not, a folder's with a slash at its end or not."""
    if name.startswith(b"./"):
        name = name[2:]
    if folder:
        name = name.removesuffix(b"/")
        if name in (b"", names.ROOT):
            return names.ROOT
    return names.check(name, depth)
