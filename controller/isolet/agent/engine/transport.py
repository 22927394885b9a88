"""One Unix stream socket, driven by the running loop: the lowest part of the engine client.

Reading and writing are independent of each other. An asyncio transport is not used on purpose: it
drops what it has not yet delivered as soon as one write fails, and a program that ends without
reading its whole input must still have its output read (docs/decisions/0002-engine-client.md).
Nothing is read unless somebody asks for it, so the kernel's socket buffer is the flow control.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

READ_SIZE = 256 * 1024
_BACKLOG_PAUSE = 0.005


class NotSent(Exception):
    """The engine could not be reached; not one byte of the request left this process."""


class Lost(Exception):
    """The connection ended, or what came is not an answer; the request may have been obeyed."""


class Connection:
    """A connected socket. Every method may be cancelled; `close` may be called at any time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._closed = False

    @classmethod
    async def open(cls, path: str, *, patience: float) -> "Connection":
        """Connect to the socket at `path`, at most `patience` seconds. Raises NotSent."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await _connect(sock, path, patience)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send all of it, with back-pressure. Raises Lost when the other side is gone."""
        with self._use():
            try:
                await self._loop.sock_sendall(self._sock, data)
            except OSError as error:
                raise Lost(f"write: {error.strerror}") from error

    async def receive(self, limit: int = READ_SIZE) -> bytes:
        """What has come, at most `limit` bytes; empty at the end of the stream.

        A reset counts as the end: on a Unix socket it is told only after everything that was sent
        has been delivered, and says that the other side did not read all of ours.
        """
        # First, so that a reader who is cancelled has lost nothing: what is there already comes
        # without a turn for anybody else, and there may always be more.
        await asyncio.sleep(0)
        with self._use():
            try:
                return await self._loop.sock_recv(self._sock, limit)
            except ConnectionError:
                return b""
            except OSError as error:
                raise Lost(f"read: {error.strerror}") from error

    def finish_sending(self) -> None:
        """Close our half: the other side reads end of input."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the socket. A reader or writer still at work wakes up and ends."""
        if self._closed:
            return
        self._closed = True
        # The descriptor must not be given to a new socket while the loop still watches it, so with
        # a reader or writer at work the last of them closes it.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._users == 0:
            self._sock.close()

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        if self._closed:
            raise Lost("the connection is closed")
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._closed and self._users == 0:
                self._sock.close()


async def _connect(sock: socket.socket, path: str, patience: float) -> None:
    # Connecting to a Unix socket is immediate; EAGAIN means a full backlog, and unlike with TCP
    # nothing is in progress then: it has to be tried again.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            if loop.time() >= deadline:
                raise NotSent(f"{path} accepts no connection") from None
            await asyncio.sleep(_BACKLOG_PAUSE)
        except OSError as error:
            raise NotSent(f"{path}: {error.strerror}") from error
        else:
            return
