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
    for name in ("Transfer-Encoding", "Content-Encoding"):
        if name in headers:
            raise _wrong(f"a {name} is not taken: send the document as it is, with its length")
    if len(stated) != 1:
        raise _wrong(f"exactly one Content-Length is needed, not {len(stated)}")
    if not (stated[0].isascii() and stated[0].isdecimal()):
        raise _wrong("the Content-Length is no number")
    found = int(stated[0][:20])
    if not 1 <= found <= MAX_DOCUMENT_BYTES:
        raise _wrong(f"a document has 1 to {MAX_DOCUMENT_BYTES} bytes, by its Content-Length")
    return found


def _wrong(text: str) -> errors.Invalid:
    return errors.Invalid(text, reason=REASON)


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
