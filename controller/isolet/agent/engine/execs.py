"""Hijacked sockets: an attached exec in both directions, a container's input in one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from isolet.agent.engine import base, streams, transport
from isolet.base import errors

_LOOK_SECONDS = 2.0
"""How long a stream is quiet before the engine is asked whether its exec still runs. The engine
itself ends the stream 2 s after the exec where a child of it keeps the output open."""


class Exec:
    """Implements `base.ExecStream`.

    Reading and writing do not wait for each other here, so a caller that does both at once cannot
    deadlock. One that first writes all can: then the program waits for its output to be read.
    """

    def __init__(
        self,
        exec_id: str,
        connection: transport.Connection,
        rest: bytes,
        inspect: Callable[[str], Awaitable[base.ExecFacts]],
    ) -> None:
        self.id = exec_id
        self._connection = connection
        self._rest = rest
        self._inspect = inspect
        self._frames = streams.Frames()

    async def output(self) -> AsyncIterator[tuple[base.Stream, bytes]]:
        """Output as it comes; ends when the exec's streams are closed, and its input with them.

        The end does not say that the engine is well: a dying engine closes the connection too, so
        the exit code is asked for, not assumed. Raises Unavailable when it ends within a frame.
        """
        try:
            data, self._rest = self._rest, b""
            while True:
                for frame in self._frames.feed(data):
                    yield frame
                data = await self._receive()
                if not data:
                    # Under runsc the engine goes on holding what was sent to a program that has
                    # ended; closing lets a writer that waits for it go.
                    self._connection.close()
                    self._frames.end()
                    return
        except transport.Lost as error:
            raise errors.Unavailable(f"the exec's stream broke off: {error}") from error

    async def _receive(self) -> bytes:
        """What has come; empty at the end, or once the exec was seen to have ended twice.

        The engine leaves about one stream in five open for ever when the container is killed
        (docs/measured.md, "Exec"), so its end alone is not waited for.
        """
        reading = asyncio.ensure_future(self._connection.receive())
        looks = 0
        try:
            while looks < 2:
                if (await asyncio.wait([reading], timeout=_LOOK_SECONDS))[0]:
                    return reading.result()
                looks = looks + 1 if await self._has_ended() else 0
            return b""
        finally:
            reading.cancel()

    async def _has_ended(self) -> bool:
        try:
            return not (await self._inspect(self.id)).running
        except errors.NotFound:
            return True
        except errors.Unavailable:
            return False

    async def write(self, data: bytes) -> None:
        """Send to its stdin, with back-pressure; a closed reader is not an error."""
        try:
            await self._connection.send(data)
        except transport.Lost:
            return

    async def close_stdin(self) -> None:
        """Deliver end of input."""
        self._connection.finish_sending()


class Input:
    """Implements `base.InputStream`."""

    def __init__(self, connection: transport.Connection) -> None:
        self._connection = connection

    async def write(self, data: bytes) -> None:
        """Send all of it. Raises Unconfirmed."""
        try:
            await self._connection.send(data)
        except transport.Lost as error:
            raise errors.Unconfirmed(f"the input of a container broke off: {error}") from error

    async def ended(self) -> None:
        """Wait until the engine ends the connection."""
        with contextlib.suppress(transport.Lost):
            while await self._connection.receive():
                pass
