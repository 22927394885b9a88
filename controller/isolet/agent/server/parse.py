"""What a request says, checked: ids, numbers, the fence, bodies with bounds on size and time."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import pydantic
from aiohttp import web

from isolet.agent.server import faults
from isolet.base import errors
from isolet.wire import http
from isolet.wire.base import HEADER_FENCE, HEADER_WIRE, WIRE_VERSIONS, Fence, Wire

_M = TypeVar("_M", bound=Wire)
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
_MAX_TRANSITIONS = 2**63 - 1
_SLOW_PARSE = 64 << 10
"""A larger body is parsed in a thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyPace:
    """How long a body may take: a grace, then at least so many bytes a second."""

    grace_seconds: float = 15.0
    bytes_per_second: float = 256 << 10


def request_id(request: web.Request) -> str | None:
    """The caller's own id for this request, if it is one that can stand in a log."""
    given = request.headers.get(http.HEADER_REQUEST_ID, "")
    return given if _REQUEST_ID.match(given) else None


def wire_version(request: web.Request) -> int:
    """The version the caller speaks; one that says nothing speaks the first."""
    text = request.headers.get(HEADER_WIRE, "1")
    if not _INTEGER.match(text):
        raise faults.bad_request("InvalidWireVersion", f"{HEADER_WIRE} must be a number")
    if int(text) not in WIRE_VERSIONS:
        raise faults.unsupported_wire(text)
    return int(text)


def fence(request: web.Request) -> Fence | None:
    """The leader's fence, if the caller is one."""
    values = request.headers.getall(HEADER_FENCE, [])
    if not values:
        return None
    if len(values) == 1 and http.is_fence(values[0]):
        try:
            parsed = Fence.parse(values[0])
        except ValueError:
            parsed = None
        if parsed is not None and parsed.transitions <= _MAX_TRANSITIONS:
            return parsed
    raise faults.bad_request(
        "InvalidFence", f"{HEADER_FENCE} must be <shard>/<lease uid>/<transitions>, once"
    )


def uid(request: web.Request) -> str:
    """The uid in the path."""
    value = request.match_info["uid"]
    if not http.is_uid(value):
        raise errors.Invalid(
            "uid: must begin with a letter or digit, go on with letters, digits, '_', '.', '-', "
            "and have at most 64 characters",
            reason="InvalidUid",
        )
    return value


def stream(request: web.Request) -> Literal["stdout", "stderr"]:
    """The stream in the path."""
    match request.match_info["stream"]:
        case "stdout":
            return "stdout"
        case "stderr":
            return "stderr"
    raise errors.NotFound("a stream is stdout or stderr", reason=http.NO_SUCH_PATH)


def integer(request: web.Request, name: str, default: int, *, least: int | None = None) -> int:
    """A whole number from the query."""
    text = request.query.get(name)
    if text is None:
        return default
    if not _INTEGER.match(text) or (least is not None and int(text) < least):
        bound = "" if least is None else f" of at least {least}"
        raise errors.Invalid(f"{name}: must be a whole number{bound}")
    return int(text)


async def body(request: web.Request, model: type[_M], bound: int, pace: BodyPace) -> _M:
    """The body as `model`."""
    return await parsed(await read(request, bound, pace), model.model_validate_json)


async def parsed(raw: bytes, parse: Callable[[bytes], _M]) -> _M:
    """What `parse` makes of a body; raises Invalid when it makes nothing of it."""
    try:
        if len(raw) > _SLOW_PARSE:
            return await asyncio.to_thread(parse, raw)
        return parse(raw)
    except pydantic.ValidationError as error:
        raise faults.invalid(error) from None
    except ValueError as error:
        raise errors.Invalid(f"body: {error}") from None


async def read(request: web.Request, bound: int, pace: BodyPace) -> bytes:
    """The body's bytes, refused as soon as it is known to be too large or too slow."""
    if (request.content_length or 0) > bound:
        raise faults.too_large(bound)
    loop = asyncio.get_running_loop()
    due = loop.time() + pace.grace_seconds
    data = bytearray()
    try:
        async with asyncio.timeout_at(due) as timer:
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > bound:
                    raise faults.too_large(bound)
                timer.reschedule(due + len(data) / pace.bytes_per_second)
    except TimeoutError:
        raise faults.HTTPFault(
            408, "BodyTooSlow", "the body did not arrive in time", close=True
        ) from None
    except web.RequestPayloadError:
        raise faults.bad_request("BrokenBody", "the body ended before it was complete") from None
    return bytes(data)
