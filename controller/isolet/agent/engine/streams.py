"""Decoding of what the engine streams: multiplexed frames, log lines, events. No I/O.

A multiplexed stream is a row of frames: one byte for the stream, three zeros, a length in four
bytes, then the data.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from isolet.agent.engine import base, transport

_HEADER = 8
_STREAMS = {1: base.Stream.STDOUT, 2: base.Stream.STDERR}
_MAX_FRAME = 16 * 1024 * 1024
_MAX_EVENT = 1024 * 1024


class Frames:
    """Cuts a multiplexed stream into frames, wherever the reads happened to cut it."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[tuple[base.Stream, bytes]]:
        """The frames that are whole now. Raises Lost when it is no such stream."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        try:
            while len(buffer) - at >= _HEADER:
                stream = _STREAMS.get(buffer[at])
                size = int.from_bytes(buffer[at + 4 : at + 8], "big")
                if stream is None or size > _MAX_FRAME:
                    raise transport.Lost("the engine's stream is not multiplexed")
                start, stop = at + _HEADER, at + _HEADER + size
                if len(buffer) < stop:
                    break
                at = stop
                yield stream, buffer[start:stop]
        finally:
            self._buffer = buffer[at:]

    def end(self) -> None:
        """Raise Lost when the stream ended within a frame."""
        if self._buffer:
            raise transport.Lost("the engine's stream ended within a frame")


class StoredLines:
    """Turns the stored frames of one stream of a log into numbered, exact pieces of output.

    The log driver stores a line of up to 16 KiB as one frame with its newline. It cuts a longer
    line into full pieces and a shorter last one, which may be empty, and drops the newline; it is
    added here to the last piece. What a program printed last without a newline looks the same if
    it is longer than 16 KiB: that is what `guessed` is for.

    Frames are asked for with `details=1`, which puts one blank before the data of each: without
    it the engine leaves out an empty piece, and with it the only sign that the line has ended.
    """

    def __init__(self, stream: base.Stream, after: int) -> None:
        self._stream = stream
        self._after = after
        self._piece = 0
        self.index = 0
        self.guessed = False
        """Whether the newline of the last frame was added and nothing has followed it yet."""

    def take(self, stored: bytes) -> base.OutputFrame | None:
        """The next frame; None when it is one that the reader has already."""
        self.index += 1
        self.guessed = False
        data = stored[stored.index(b" ") + 1 :]
        if data.endswith(b"\n"):
            self._piece = 0
        elif self._piece == 0:
            self._piece = len(data)
        elif len(data) < self._piece:
            self._piece = 0
            self.guessed = len(data) > 0
            data += b"\n"
        if self.index <= self._after:
            return None
        return base.OutputFrame(stream=self._stream, index=self.index, data=data)


class StoredOutput:
    """Both streams of a stored log, each resumed after the index its reader has reached."""

    def __init__(self, after: Mapping[base.Stream, int]) -> None:
        self._frames = Frames()
        self._lines = {s: StoredLines(s, after.get(s, 0)) for s in base.Stream}
        self._after = {s: after.get(s, 0) for s in base.Stream}

    def feed(self, data: bytes) -> list[base.OutputFrame]:
        """The frames in `data` that are new to the reader. Raises Lost."""
        try:
            taken = [self._lines[stream].take(raw) for stream, raw in self._frames.feed(data)]
        except ValueError:
            raise transport.Lost("the engine's log has frames without details") from None
        return [frame for frame in taken if frame]

    def is_guess(self, frame: base.OutputFrame) -> bool:
        """Whether it is the last of its stream so far and may have got a newline too many."""
        lines = self._lines[frame.stream]
        return lines.guessed and lines.index == frame.index

    def end(self) -> None:
        """Raise Lost when the stream ended within a frame."""
        self._frames.end()

    def missing(self) -> list[base.Stream]:
        """Streams of which fewer frames are stored than the reader has already seen."""
        return [s for s, lines in self._lines.items() if lines.index < self._after[s]]


class JSONLines:
    """Cuts a stream of JSON objects, one a line, into objects."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The objects that are whole now. Raises Lost on what is no object."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > _MAX_EVENT:
            raise transport.Lost("the engine's event is too large")
        for line in lines:
            if not line.strip():
                continue
            try:
                parsed = json.loads(line)
            except ValueError:
                raise transport.Lost("the engine's event is no JSON") from None
            if isinstance(parsed, dict):
                yield parsed
