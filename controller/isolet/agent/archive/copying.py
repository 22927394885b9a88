"""Moves a file's bytes and takes their digest while they pass, each byte once."""

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable
from typing import IO

from isolet.agent.archive.refusal import Reason, Refused

SMALL = 256 << 10
"""Files of up to so many bytes are read and hashed in one piece."""
BUFFER = 1 << 20
"""Larger ones move in pieces of so many bytes."""
_PIECES = 3
_FILE_BUFFER = 128 << 10
"""What is gathered of small reads and writes; pieces pass by it, or each byte would move twice."""
_STRETCH = 8 << 20

Fill = Callable[[memoryview], int]
"""Reads into a buffer; says how many bytes, 0 at the end."""
Drain = Callable[[memoryview], object]


def reader(descriptor: int) -> IO[bytes]:
    """A buffered file that owns the descriptor."""
    return open(descriptor, "rb", buffering=_FILE_BUFFER)


def writer(descriptor: int) -> IO[bytes]:
    """A buffered file that owns the descriptor."""
    return open(descriptor, "wb", buffering=_FILE_BUFFER)


class Trail:
    """Keeps no more than a stretch of what goes through a file once in the node's memory.

    What is behind is written to disk meanwhile, and not all at the end, and the node's memory keeps
    what was of more use to it. Measured, it takes less CPU too (docs/measured.md).
    """

    def __init__(self, file: IO[bytes] | int) -> None:
        """`file`: a file or its descriptor; what is none has no pages."""
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = file if isinstance(file, int) else file.fileno()
        self._from = self._to = 0

    def at(self, place: int, *, end: bool = False) -> None:
        """The file was read or written up to here; `end`: and no further."""
        if self._descriptor is None or not (end or place - self._to >= _STRETCH):
            return
        # The stretch before once more: its writing was begun then and is done by now.
        with contextlib.suppress(OSError):  # it is advice
            os.posix_fadvise(
                self._descriptor, self._from, place - self._from, os.POSIX_FADV_DONTNEED
            )
        self._from, self._to = self._to, place


class _Digest:
    """A digest that another thread takes, so that one core hashes while the other copies."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self.free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(_PIECES):
            self.free.put(memoryview(bytearray(BUFFER)))
        self._thread: threading.Thread | None = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the user may have no more threads; it goes without
            self._thread = None

    def update(self, buffer: memoryview, used: int) -> None:
        """Take the first bytes of a buffer and give it back; nobody may change it before."""
        if self._thread is not None:
            self._full.put(buffer[:used])
            return
        self._hash.update(buffer[:used])
        self.free.put(buffer)

    def _run(self) -> None:
        while (piece := self._full.get()) is not None:
            self._hash.update(piece)
            self.free.put(memoryview(piece.obj))

    def hex(self) -> str:
        """The digest, once all of it is taken."""
        if self._thread is not None:
            self._full.put(None)
            self._thread.join()
            self._thread = None
        return self._hash.hexdigest()


def copy(fill: Fill, drain: Drain, size: int) -> str:
    """Move exactly `size` bytes; returns their digest.

    Raises:
        EOFError: there were fewer.
    """
    digest = _Digest()
    try:
        left = size
        while left:
            buffer = digest.free.get()
            used = fill(buffer[: min(left, BUFFER)])
            if not used:
                raise EOFError
            digest.update(buffer, used)
            drain(buffer[:used])
            left -= used
    finally:
        found = digest.hex()
    return found


def exactly(file: IO[bytes], size: int, member: bytes) -> bytes:
    """So many bytes, or Refused."""
    data = file.read(size)
    if len(data) != size:
        raise Refused(Reason.TRUNCATED, "the archive ends too early", member)
    return data
