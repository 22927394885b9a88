"""Output of which the end is kept: a bounded ring of files that still knows how much there was.

Each stream is at most two files, named by the position of their first byte, `stdout.0`,
`stdout.1048576` and so on. One that has reached the bound is followed by a new one, and the one
before it goes. The end of the last file is thus the number of bytes that were ever written: the
position survives a restart without a second thing to keep in step.
"""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from isolet.agent.engine.base import Stream


class TailFiles:
    """The kept ends of the streams of one Process."""

    def __init__(self, folder: Path, *, limit: int, exact_up_to: int) -> None:
        self.folder = folder
        self._limit = limit
        self._exact_up_to = exact_up_to
        """Of this much the engine's log is sure to hold all (see `config.log_bytes`)."""

    def size(self, stream: Stream) -> int:
        """Bytes that were ever written."""
        parts = self._parts(stream)
        return parts[-1][0] + parts[-1][1].stat().st_size if parts else 0

    def was_cut(self, stream: Stream) -> bool:
        """Whether only the end is kept."""
        return self.size(stream) > self._limit

    def sink(self, stream: Stream) -> "TailSink":
        """For what comes. Where the log may have been rotated nothing of it is passed over.

        Some bytes may then stand here twice, but the end is right.
        """
        rotated = sum(self.size(each) for each in Stream) > self._exact_up_to
        return TailSink(self, stream, skip=0 if rotated else self.size(stream), doubled=rotated)

    def append(self, stream: Stream, position: int, data: bytes) -> BinaryIO:
        """Write at the end; returns the open file, which `position` + data may have completed."""
        parts = self._parts(stream)
        begin = parts[-1][0] if parts else 0
        if parts and position - begin >= self._limit:
            begin = position
            for _, old in parts[:-1]:
                old.unlink(missing_ok=True)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"{stream.value}.{begin}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
        file.write(data)
        return file

    def limit(self) -> int:
        """Bytes kept of each stream."""
        return self._limit

    def read(self, stream: Stream, offset: int, limit: int) -> tuple[int, bytes, int]:
        """(offset, bytes, total); the offset is later than asked where the beginning is gone."""
        total = self.size(stream)
        first = max(0, total - self._limit)
        start = total + offset if offset < 0 else offset
        start = min(max(first, start), total)
        data = bytearray()
        for begin, path in self._parts(stream):
            at = start + len(data)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                if begin <= at < begin + os.fstat(file.fileno()).st_size:
                    file.seek(at - begin)
                    data += file.read(limit - len(data))
        return start, bytes(data), total

    def sync(self) -> None:
        """Have what is stored on disk."""
        for stream in Stream:
            for _, path in self._parts(stream):
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def delete(self) -> None:
        """Remove the files and the folder."""
        for stream in Stream:
            for _, path in self._parts(stream):
                path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rmdir()

    def _parts(self, stream: Stream) -> list[tuple[int, Path]]:
        """(first position, file), in order."""
        names = self.folder.glob(f"{stream.value}.*")
        return sorted((int(path.suffix[1:]), path) for path in names if path.suffix[1:].isdigit())


class TailSink:
    """One stream on its way into its ring."""

    def __init__(self, files: TailFiles, stream: Stream, *, skip: int, doubled: bool) -> None:
        self.stored = files.size(stream)
        self._skip = skip
        self._doubled = doubled
        self._files = files
        self._stream = stream
        self._file: BinaryIO | None = None
        self._left = 0
        """Room in the open file."""

    def take(self, data: bytes, room: int | None) -> bool:
        """Store what is new; there is always room."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        view = memoryview(data)[skipped:]
        while view:
            if self._file is None or self._left <= 0:
                self.close()
                piece = view[: self._files.limit()]
                self._file = self._files.append(self._stream, self.stored, bytes(piece))
                held = os.fstat(self._file.fileno()).st_size
                self._left = self._files.limit() - held
            else:
                piece = view[: self._left]
                self._file.write(piece)
                self._left -= len(piece)
            self.stored += len(piece)
            view = view[len(piece) :]
        return True

    @property
    def fell_short(self) -> bool:
        """Whether what is stored is not exactly the log's: some was lost, or stands here twice."""
        return self._skip > 0 or self._doubled

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
