"""The framing of a request's body: one length that is true, within bounds, in time."""

import asyncio

from aiohttp import web
from multidict import CIMultiDictProxy

from isolet.base import errors
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES

REASON = "InvalidFraming"


def length(headers: CIMultiDictProxy[str]) -> int:
    """The body's length as the request states it.

    Raises:
        Invalid: not exactly one Content-Length from 1 to 8 MiB, or an encoding beside it.
    """
    stated = headers.getall("Content-Length", [])
    plain = not any(name in headers for name in ("Transfer-Encoding", "Content-Encoding"))
    if plain and len(stated) == 1 and stated[0].isascii() and stated[0].isdecimal():
        found = int(stated[0][:20])
        if 1 <= found <= MAX_DOCUMENT_BYTES:
            return found
    raise errors.Invalid(
        f"exactly one Content-Length from 1 to {MAX_DOCUMENT_BYTES} is needed, and no encoding",
        reason=REASON,
    )


async def read(request: web.Request, seconds: float) -> bytes:
    """The body.

    Raises:
        Invalid: its framing is wrong, or it did not come whole and in time.
    """
    stated = length(request.headers)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > stated:
                    break
    except (TimeoutError, web.RequestPayloadError, ConnectionError):
        raise errors.Invalid(
            "the body did not come whole and in time", reason="IncompleteBody"
        ) from None
    if len(data) != stated:
        raise errors.Invalid("the body has another length than it says", reason="IncompleteBody")
    return bytes(data)
