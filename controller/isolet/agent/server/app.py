"""The application: routes, and around each of them the one edge that every request passes.

The edge names the request, asks who calls and whether that one may, checks the wire version, turns
errors into answers, and counts and logs. It never logs a body, a query or a header's value.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware

from isolet.agent.server import auth, faults, parse
from isolet.agent.server.auth import Identify, Right
from isolet.agent.server.handlers import Handler, Route
from isolet.agent.server.metrics import ServerMetrics
from isolet.base import log
from isolet.wire.base import HEADER_WIRE, WIRE_VERSION
from isolet.wire.http import HEADER_REQUEST_ID

_ID = web.RequestKey("request_id", str)
_METHODS = frozenset({"GET", "HEAD", "PUT", "PATCH", "DELETE", "POST"})
_BYTES_PER_SECOND = 256 << 10
_QUIET = frozenset({"GET", "HEAD"})
_log = log.get("agent.server")


def build(
    routes: Iterable[Route], identify: Identify, metrics: ServerMetrics, *, answer_seconds: float
) -> web.Application:
    """An application of `routes` for callers that `identify` knows.

    Who does not take an answer in `answer_seconds` (and a second for each 256 KiB) is cut off.
    """
    app = web.Application(middlewares=[_edge(metrics, answer_seconds)])
    app.on_response_prepare.append(_head)
    for method, path, right, handler in routes:
        app.router.add_route(method, path, _guarded(identify, right, handler))
    return app


def _guarded(identify: Identify, right: Right, handler: Handler) -> Handler:
    """The handler for those who have the right; asked before a byte of the body is read."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        peer = identify(request)
        request[auth.CALLER] = peer
        peer.demand(right)
        if right is not Right.PROBE:
            parse.wire_version(request)
        if right is Right.EXEC or request.method in _QUIET:
            return await handler(request)
        return await _to_its_end(handler(request))

    return guarded


async def _to_its_end(work: Awaitable[web.StreamResponse]) -> web.StreamResponse:
    """A change is made whole even if its caller leaves; a command in a session is not.

    An aborted command has to end (its session goes with it), so handlers are cancelled when their
    caller leaves; a change that was cut off between two of its steps would wait for a restart.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def _edge(metrics: ServerMetrics, answer_seconds: float) -> Middleware:
    @web.middleware
    async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[_ID] = parse.request_id(request) or secrets.token_hex(8)
        began = time.perf_counter()
        answer = await _answer(request, handler)
        seconds = time.perf_counter() - began
        method = request.method if request.method in _METHODS else "other"
        # How long a stream lasted says nothing about how fast we are.
        lasted = None if answer.prepared else seconds
        metrics.answered(_route(request), method, answer.status, lasted)
        _note(request, answer.status, seconds)
        if lasted is not None:
            await _send(request, answer, answer_seconds)
        return answer

    return edge


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the caller has gone") from error
        answer = faults.response(error)
        if answer is not None:
            return answer
        _log.exception("request failed", extra={"request": request[_ID]})
        return faults.internal(request[_ID])


async def _send(request: web.Request, answer: web.StreamResponse, seconds: float) -> None:
    """Send the answer here, where it can be given up: aiohttp would wait for a reader for ever."""
    length = answer.content_length or 0
    try:
        async with asyncio.timeout(seconds + length / _BYTES_PER_SECOND):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the caller does not read") from None


async def _head(request: web.Request, answer: web.StreamResponse) -> None:
    """What every answer says, streams included."""
    answer.headers[HEADER_WIRE] = str(WIRE_VERSION)
    answer.headers[HEADER_REQUEST_ID] = request.get(_ID, "")
    answer.headers["Server"] = "isolet"
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["X-Content-Type-Options"] = "nosniff"


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "other"


def _note(request: web.Request, status: int, seconds: float) -> None:
    peer = request.get(auth.CALLER)
    write = _log.debug if request.method in _QUIET and status < 500 else _log.info
    write(
        "request",
        extra={
            "request": request[_ID],
            "method": request.method,
            "route": _route(request),
            "uid": request.match_info.get("uid", "")[:64],
            "peer": peer.name if peer is not None else "",
            "status": status,
            "ms": round(seconds * 1000, 1),
        },
    )
