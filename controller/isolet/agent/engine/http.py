"""HTTP/1.1 as the engine speaks it: one request and one response on a connection of its own.

Small on purpose. The only server is the engine's on a local Unix socket, so what is not in its
answers (trailers, folded headers, compression) is not here either and ends in `Lost`. A new
connection for each call costs less than the pooled ones of the usual clients and tells exactly
whether a request was sent (docs/decisions/0002-engine-client.md).
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from isolet.agent.engine import transport

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024
_NO_BODY = frozenset({204, 304})


class Body(Protocol):
    """Takes bytes as they arrive and gives back those of the body."""

    done: bool

    def feed(self, data: bytes) -> bytes:
        """The body bytes among `data`. Raises Lost on nonsense."""
        ...

    def end(self) -> None:
        """The connection has ended. Raises Lost when the body is not complete."""
        ...


class Sized:
    """A body of a known length."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> bytes:
        """Count what came."""
        data = data[: self._left]
        self._left -= len(data)
        self.done = self._left == 0
        return data

    def end(self) -> None:
        """Raise Lost when bytes are missing."""
        if not self.done:
            raise transport.Lost(f"the answer ended {self._left} bytes early")


class Chunked:
    """A chunked body. The engine sends one chunk for each line of a log, so it is done in bulk."""

    def __init__(self) -> None:
        self.done = False
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        """Strip the chunk headers of all chunks that are whole; keep the rest for the next call."""
        buffer = self._buffer + data if self._buffer else data
        at, pieces = 0, []
        while not self.done:
            line_end = buffer.find(b"\r\n", at)
            if line_end < 0:
                break
            size = _chunk_size(buffer[at:line_end])
            start, stop = line_end + 2, line_end + 2 + size
            if len(buffer) < stop + 2:
                break
            if buffer[stop : stop + 2] != b"\r\n":
                raise transport.Lost("a chunk of the answer is not ended")
            pieces.append(buffer[start:stop])
            at = stop + 2
            self.done = size == 0
        self._buffer = buffer[at:]
        if len(self._buffer) > MAX_BODY:
            raise transport.Lost("a chunk of the answer is too large")
        return b"".join(pieces)

    def end(self) -> None:
        """Raise Lost unless the last chunk, of size 0, has come."""
        if not self.done:
            raise transport.Lost("the answer was cut off")


class UntilEnd:
    """A body that ends with the connection."""

    done = False

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        return data

    def end(self) -> None:
        """Cannot be told from a cut; only hijacked connections have it."""


class Exchange:
    """A request that was sent, with the head of its answer read."""

    def __init__(
        self, connection: transport.Connection, status: int, headers: Mapping[str, str], rest: bytes
    ) -> None:
        self.connection = connection
        self.status = status
        self.headers = headers
        self.rest = rest
        """What came with the head and belongs to the body, or to the stream after an upgrade."""

    async def body(self, *, of: str = "GET") -> AsyncIterator[bytes]:
        """The body as it comes. Raises Lost when it is cut off."""
        decoder = _decoder(of, self.status, self.headers)
        data = self.rest
        while True:
            if part := decoder.feed(data):
                yield part
            if decoder.done:
                return
            data = await self.connection.receive()
            if not data:
                decoder.end()
                return

    async def read(self, *, of: str = "GET") -> bytes:
        """The whole body, bounded."""
        parts, size = [], 0
        async for part in self.body(of=of):
            parts.append(part)
            size += len(part)
            if size > MAX_BODY:
                raise transport.Lost("the answer is too large")
        return b"".join(parts)


def request_bytes(
    method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """A request as it goes over the socket."""
    lines = [f"{method} {target} HTTP/1.1", "Host: engine"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    elif method == "POST":
        lines.append("Content-Length: 0")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + (body or b"")


async def exchange(connection: transport.Connection, request: bytes) -> Exchange:
    """Send `request` and read the head of the answer. Raises Lost."""
    await connection.send(request)
    buffer = b""
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        if len(buffer) > MAX_HEAD:
            raise transport.Lost("the head of the answer is too large")
        data = await connection.receive()
        if not data:
            raise transport.Lost("the engine closed the connection without an answer")
        buffer += data
    status, headers = _head(buffer[:end])
    return Exchange(connection, status, headers, buffer[end + 4 :])


def _head(raw: bytes) -> tuple[int, Mapping[str, str]]:
    first, *lines = raw.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise transport.Lost("what came is not an HTTP answer")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers


def _decoder(method: str, status: int, headers: Mapping[str, str]) -> Body:
    if method == "HEAD" or status in _NO_BODY:
        return Sized(0)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Chunked()
    length = headers.get("content-length")
    if length is None:
        return UntilEnd()
    if not (length.isascii() and length.isdigit()):
        raise transport.Lost("the answer has a length that is no number")
    return Sized(int(length))


def _chunk_size(line: bytes) -> int:
    try:
        size = int(line.split(b";", 1)[0], 16)
    except ValueError:
        raise transport.Lost("a chunk of the answer has no size") from None
    if size < 0:
        raise transport.Lost("a chunk of the answer has a negative size")
    return size
