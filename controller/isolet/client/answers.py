"""What an agent's answer means: a message, an error of ours, or nothing that can be trusted.

A status counts only with a fault in the body. Whatever else answers on that port (another server, a
proxy, an older agent that lacks the path) must never pass for "there is no such Execution".
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TypeVar

import aiohttp
import pydantic

from isolet.base import errors
from isolet.wire import faults, http
from isolet.wire.agent_api import Change, OutputChunk
from isolet.wire.base import Wire
from isolet.wire.process import Artifact, ArtifactChunk

_M = TypeVar("_M", bound=Wire)
_SLOW_PARSE = 64 << 10
_WRONG_REQUEST = frozenset({400, 405, 413, 431})


async def read(response: aiohttp.ClientResponse, bound: int, *, effect: bool) -> bytes:
    """The body of a good answer.

    Raises:
        IsoletError: the agent answered with an error, or with more than `bound` bytes.
    """
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > bound:
            raise _useless(f"an answer of more than {bound} bytes", effect=effect)
    if response.status == 200:
        return bytes(data)
    raise error(response.status, bytes(data), effect=effect)


async def message(raw: bytes, parse: Callable[[bytes], _M], *, effect: bool) -> _M:
    """What `parse` makes of the body; raises Unavailable or Unconfirmed when it is nothing."""
    try:
        if len(raw) > _SLOW_PARSE:
            return await asyncio.to_thread(parse, raw)
        return parse(raw)
    except ValueError as problem:
        raise _useless("an answer of another form", effect=effect) from problem


def error(status: int, raw: bytes, *, effect: bool) -> errors.IsoletError:
    """The error that an answer stands for."""
    try:
        fault = faults.Fault.model_validate_json(raw)
    except pydantic.ValidationError:
        return _useless(f"status {status} without a fault", effect=effect)
    return _of_fault(status, fault, effect=effect)


def _of_fault(status: int, fault: faults.Fault, *, effect: bool) -> errors.IsoletError:
    if fault.reason == http.INTERNAL_ERROR:
        kind = errors.Unconfirmed if effect else errors.Unavailable
        return kind(fault.message, reason=fault.reason)
    if fault.reason == http.NO_SUCH_PATH:
        return errors.Unavailable(fault.message, reason=fault.reason, retry_after=30.0)
    if status in _WRONG_REQUEST:
        return errors.Invalid(fault.message, reason=fault.reason)
    return faults.from_http(status, fault)


async def changes(
    response: aiohttp.ClientResponse, *, silence: float
) -> AsyncGenerator[Change, None]:
    """The changes of a watch stream.

    Raises:
        IsoletError: the agent ended the stream with an error, or sent what is no change.
        TimeoutError: nothing came for `silence` seconds.
    """
    async for line in lines(response, silence=silence, most=http.MAX_LINE):
        yield _change(line)


async def lines(
    response: aiohttp.ClientResponse, *, silence: float, most: int
) -> AsyncGenerator[bytes, None]:
    """The lines of a stream that are not empty, each of at most `most` bytes.

    Raises:
        Unavailable: a line is longer.
        TimeoutError: nothing came for `silence` seconds.
    """
    rest = bytearray()
    while chunk := await _next(response, silence):
        *whole, last = chunk.split(b"\n")
        for part in whole:
            line, rest = bytes(rest) + part, bytearray()
            if line:
                yield line
        rest += last
        if len(rest) > most:
            raise _useless("an endless line", effect=False)


async def _next(response: aiohttp.ClientResponse, silence: float) -> bytes:
    # aiohttp's own read timeout does not fire once a chunk's frame was broken: it waits for ever.
    async with asyncio.timeout(silence):
        try:
            return await response.content.readany()
        except RuntimeError as error:  # So aiohttp says that we have closed it ourselves.
            raise aiohttp.ClientConnectionError(str(error)) from error


def _change(line: bytes) -> Change:
    try:
        return Change.model_validate_json(line)
    except pydantic.ValidationError as problem:
        raise last_words(line) or _useless("a line that is no change", effect=False) from problem


def last_words(line: bytes) -> errors.IsoletError | None:
    """The error with which an agent ended a stream; None if this line is none."""
    try:
        ended = http.WatchFault.model_validate_json(line)
    except pydantic.ValidationError:
        return None
    return _of_fault(ended.status, ended.fault, effect=False)


def _useless(what: str, *, effect: bool) -> errors.Unavailable:
    """For an answer that tells nothing: what was asked for may have happened."""
    kind = errors.Unconfirmed if effect else errors.Unavailable
    return kind(f"the agent sent {what}", reason="BadAnswer")


def output(headers: Mapping[str, str], data: bytes) -> OutputChunk:
    """A piece of output: its bytes are the body, the rest is in headers."""
    try:
        return OutputChunk(
            offset=int(headers[http.HEADER_OUTPUT_OFFSET]),
            total_bytes=int(headers[http.HEADER_OUTPUT_TOTAL]),
            complete=headers[http.HEADER_OUTPUT_COMPLETE] == "true",
            data=data,
        )
    except (KeyError, ValueError) as problem:
        raise _useless("output without its headers", effect=False) from problem


def artifact(headers: Mapping[str, str], path: str, data: bytes) -> ArtifactChunk:
    """A piece of an artifact: its bytes are the body, the rest is in headers."""
    try:
        found = Artifact(
            path=path,
            size=int(headers[http.HEADER_ARTIFACT_SIZE]),
            digest=headers[http.HEADER_ARTIFACT_DIGEST],
        )
        offset = int(headers[http.HEADER_OUTPUT_OFFSET])
    except (KeyError, ValueError) as problem:
        raise _useless("an artifact without its headers", effect=False) from problem
    return ArtifactChunk(artifact=found, offset=offset, data=data)


def versions(headers: Mapping[str, str]) -> frozenset[int]:
    """The wire versions that the agent says it speaks."""
    text = headers.get(http.HEADER_WIRE_VERSIONS, "")
    return frozenset(int(part) for part in text.split(",") if part.strip().isdecimal())
