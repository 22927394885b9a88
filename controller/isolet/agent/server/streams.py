"""Streams of changes and events: one JSON object a line, sent at once, as long as both sides like.

A reader that stops reading, a stream that has grown old and a server that closes all end a stream
the same way: by the end of the body and of the connection. The reader asks again from the sequence
it has come to. A stream that has come to its own end leaves the connection for the next request.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from isolet.base import errors, log
from isolet.base.fairness import Turns
from isolet.wire import faults
from isolet.wire.base import Wire
from isolet.wire.http import INTERNAL_ERROR, NDJSON, WatchFault

_log = log.get("agent.server")
_Writer = Callable[[bytes], Awaitable[None]]


class Streams:
    """All open streams of one kind of a server."""

    def __init__(self, *, most: int, max_age_seconds: float, write_seconds: float) -> None:
        self._most = most
        self._max_age = max_age_seconds
        self._write_seconds = write_seconds
        self._open: set[asyncio.Timeout] = set()

    def __len__(self) -> int:
        return len(self._open)

    def end_all(self) -> None:
        """End every stream now."""
        now = asyncio.get_running_loop().time()
        for scope in self._open:
            if not scope.expired():
                scope.reschedule(now)

    async def serve(self, request: web.Request, changes: AsyncIterator[Wire]) -> web.StreamResponse:
        """Stream these to the caller until one side ends it."""
        if len(self._open) >= self._most:
            raise errors.Unavailable(
                f"{self._most} such streams are open already", reason="TooManyStreams"
            )
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
        scope = asyncio.timeout(self._max_age)
        self._open.add(scope)
        try:
            async with scope:
                await response.prepare(request)
                await self._pump(changes, response.write)
        except (TimeoutError, ConnectionError):
            response.force_close()
        finally:
            self._open.discard(scope)
        return response

    async def _pump(self, changes: AsyncIterator[Wire], write: _Writer) -> None:
        turns = Turns()
        try:
            async for change in changes:
                await self._line(write, change.to_json())
                await turns.give()
        except ConnectionError:
            raise
        except Exception as error:
            # The head is out, so an error can only be told as the last line.
            await self._line(write, _last_words(error).to_json())
        finally:
            await _close(changes)

    async def _line(self, write: _Writer, line: bytes) -> None:
        # A reader that does not read holds a buffer here and a place in the agent: cut it off.
        async with asyncio.timeout(self._write_seconds):
            await write(line + b"\n")


def _last_words(error: Exception) -> WatchFault:
    if isinstance(error, errors.IsoletError):
        status, fault = faults.to_http(error)
        return WatchFault(status=status, fault=fault)
    _log.exception("a stream failed")
    fault = faults.Fault(reason=INTERNAL_ERROR, message="internal error; see the agent's log")
    return WatchFault(status=500, fault=fault)


async def _close(changes: Any) -> None:
    if isinstance(changes, AsyncGenerator):
        await changes.aclose()
