"""The files of Checkpoints, streamed: bounded in number, at the reader's pace, to the reader's end.

A stream that broke is seen as such by its reader: the body has no proper end. The reader asks again
from where it has come to.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import cast

from aiohttp import web

from isolet.agent.server import auth, parse
from isolet.base import errors
from isolet.wire import http
from isolet.wire.agent_api import CheckpointAPI
from isolet.wire.checkpoint import Part


class Parts:
    """All such streams of a server."""

    def __init__(self, api: CheckpointAPI, *, most: int, write_seconds: float) -> None:
        """`write_seconds`: how long a reader may take for one piece, of at most 1 MiB."""
        self._api = api
        self._most = most
        self._write_seconds = write_seconds
        self._open = 0

    async def read(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/checkpoints/{uid}/parts/{part}?offset=N`, with the grant in a header."""
        uid, offset = parse.uid(request), parse.integer(request, "offset", 0, least=0)
        part = _part(request)
        if self._open >= self._most:
            raise errors.Unavailable(
                f"{self._most} Checkpoints are read from this node already", reason="TooManyStreams"
            )
        self._open += 1
        try:
            async with aclosing(self._pieces(request, uid, part, offset)) as pieces:
                return await self._stream(request, pieces)
        finally:
            self._open -= 1

    def _pieces(
        self, request: web.Request, uid: str, part: Part, offset: int
    ) -> AsyncGenerator[bytes, None]:
        # Who is no node here is on the local socket: nobody else has the right.
        reader = request[auth.CALLER].node
        token = request.headers.get(http.HEADER_GRANT)
        found = self._api.read_checkpoint(uid, part, offset=offset, reader=reader, token=token)
        return cast(AsyncGenerator[bytes, None], found)

    async def _stream(
        self, request: web.Request, pieces: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        piece = await anext(pieces, b"")  # what is wrong shows before the answer begins
        response = web.StreamResponse(headers={"Content-Type": http.BYTES})
        try:
            await self._in_time(response.prepare(request))
            while piece:
                await self._in_time(response.write(piece))
                piece = await anext(pieces, b"")
            await self._in_time(response.write_eof())
        except BaseException:
            # The body must not look as if it had come to its end.
            if request.transport is not None:
                request.transport.abort()
            raise
        return response

    async def _in_time(self, work: Awaitable[object]) -> None:
        async with asyncio.timeout(self._write_seconds):
            await work


def _part(request: web.Request) -> Part:
    try:
        return Part(request.match_info["part"])
    except ValueError:
        raise errors.NotFound(
            "there are " + ", ".join(part.value for part in Part), reason=http.NO_SUCH_PATH
        ) from None
