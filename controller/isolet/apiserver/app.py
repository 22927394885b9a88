"""The routes of the front door, and the order of its questions.

Who calls (401, 403); whether it serves and has a place (503, 429); how the request is framed (400);
what the document says (400); then a sandbox and the fence around the run (429, 409, 502); only then
the first byte of an answer that says yes. `x-execution-admitted: false` stands on an answer exactly
where it is certain that nothing was begun and that trying again is right.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from isolet.apiserver import admission, body, encoding
from isolet.apiserver.auth import Door, Unauthenticated
from isolet.apiserver.dispatcher import NO_CAPACITY, Admitted, Dispatcher
from isolet.apiserver.metrics import DoorMetrics
from isolet.apiserver.runs import CLOSED, FULL, Ending, RunBook, to_its_end
from isolet.apiserver.settings import Bounds
from isolet.base import errors, log, names
from isolet.plan import dispatch_document
from isolet.wire.dispatch import Mode

HEADER_ADMITTED = "X-Execution-Admitted"
HEADER_QUEUED = "X-Execution-Queued"

_SMALL = 64 << 10
_PARSERS = 2
"""Large documents that are read at a time: each may become many times its size in memory."""
_log = log.get("apiserver")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the application is made of."""

    dispatcher: Dispatcher
    book: RunBook
    door: Door
    contract: admission.Contract
    metrics: DoorMetrics
    bounds: Bounds


def build(parts: Parts) -> web.Application:
    """The application."""
    handlers = Handlers(parts)
    app = web.Application(middlewares=[_edge])
    app.on_response_prepare.append(_head)
    app.router.add_get("/health", handlers.health)
    app.router.add_get("/ready", handlers.ready)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_post("/execute", handlers.execute)
    app.router.add_post("/execute/stream", handlers.stream)
    app.router.add_post("/execute/sse", handlers.sse)
    app.router.add_get("/execute/{run}/events", handlers.events)
    app.router.add_delete("/execute/{run}", handlers.cancel)
    return app


class Handlers:
    """One for each route."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._parsing = asyncio.Semaphore(_PARSERS)

    async def health(self, _request: web.Request) -> web.StreamResponse:
        """Alive: the event loop answered."""
        return _json(200, {"status": "healthy"})

    async def ready(self, _request: web.Request) -> web.StreamResponse:
        """Whether dispatches are taken."""
        found = self._parts.book.ready()
        return _json(200 if found else 503, {"ready": found})

    async def metrics(self, _request: web.Request) -> web.StreamResponse:
        """Prometheus' text format."""
        return web.Response(
            body=self._parts.metrics.render(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def execute(self, request: web.Request) -> web.StreamResponse:
        """`POST /execute`: the answer is the result."""
        live = await self._admit(request, None)
        ending = await asyncio.shield(live.ending)
        outcome = ending.outcome
        if outcome is not None and outcome.succeeded and ending.result is not None:
            return _answer(200, ending.result)
        return _interrupted(ending)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """`POST /execute/stream`."""
        live = await self._admit(request, Mode.STREAM)
        return await self._follow(request, live.run, 0, encoding.ndjson)

    async def sse(self, request: web.Request) -> web.StreamResponse:
        """`POST /execute/sse`."""
        live = await self._admit(request, Mode.STREAM)
        return await self._follow(request, live.run, 0, encoding.sse)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """`GET /execute/{run}/events?after=N`, for whoever comes back.

        As Server-Sent Events for those who accept them; their `Last-Event-ID` counts like `after`.
        """
        await self._parts.door.demand(request.headers, "get")
        after = _sequence(request)
        run = await self._parts.dispatcher.find(_run(request))
        accepts = request.headers.get("Accept", "")
        encode = encoding.sse if "text/event-stream" in accepts else encoding.ndjson
        return await self._follow(request, run, after, encode)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /execute/{run}`: a run that nobody knows is refused from then on."""
        await self._parts.door.demand(request.headers, "delete")
        run = _run(request)
        found = await _whole(self._parts.dispatcher.cancel(run))
        if not found.confirmed:
            raise errors.Unavailable("the end of the run is not confirmed", reason="Unconfirmed")
        answer = {"run_id": run, "terminated": True, "containers_removed": found.removed}
        return _json(200, answer)

    # Within

    async def _admit(self, request: web.Request, mode: Mode | None) -> Any:
        parts = self._parts
        try:
            await parts.door.demand(request.headers, "create")
            place = parts.book.take()
        except errors.Unavailable as error:
            parts.metrics.ended("rejected")
            raise _NotAdmitted(error) from None
        try:
            dispatch = await self._dispatch(request, mode)
        except BaseException:
            place.give_back()
            raise
        try:
            return await parts.book.admit(place, dispatch)
        except errors.Unconfirmed:
            parts.metrics.ended("failed")
            raise
        except errors.Unavailable as error:
            parts.metrics.ended("rejected")
            raise _NotAdmitted(error) from error
        except errors.Conflict:
            parts.metrics.ended("rejected")
            raise

    async def _dispatch(self, request: web.Request, mode: Mode | None) -> admission.Dispatch:
        """What is asked for, judged as far as that needs nobody else."""
        chosen = _mode(request, mode)
        raw = await body.read(request, self._parts.bounds.body_seconds)
        if len(raw) <= _SMALL:
            fields, digest = _judged(raw, chosen)
        else:
            async with self._parsing:
                fields, digest = await asyncio.to_thread(_judged, raw, chosen)
        admission.check(fields, self._parts.contract)
        key = self._parts.dispatcher.binding_key()
        if key is not None:
            key.verify(fields)
        return admission.Dispatch(run_id=fields["run_id"], mode=chosen, document=raw, digest=digest)

    async def _follow(
        self, request: web.Request, run: Admitted, after: int, encode: encoding.Encoder
    ) -> web.StreamResponse:
        kind = "text/event-stream" if encode is encoding.sse else "application/x-ndjson"
        response = web.StreamResponse(headers={"Content-Type": kind, "X-Accel-Buffering": "no"})
        response.force_close()
        seconds = self._parts.bounds.write_seconds
        try:
            await response.prepare(request)
            ended = False
            async for found in to_its_end(run, after, self._parts.dispatcher):
                ended = found.ended is not None
                await _write(response, encoding.line(found, encode), seconds)
            if not ended:
                await _write(response, encoding.failure(None, encode), seconds)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        return response


class _NotAdmitted(Exception):
    """Certainly nothing was begun, and another try is right."""

    def __init__(self, error: errors.Unavailable) -> None:
        super().__init__(error.message)
        self.error = error


async def _write(response: web.StreamResponse, data: bytes, seconds: float) -> None:
    if data:
        async with asyncio.timeout(seconds):
            await response.write(data)


async def _whole(work: Awaitable[Any]) -> Any:
    """A change is made whole even if its caller leaves."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def _judged(raw: bytes, mode: Mode) -> tuple[dict[str, Any], str]:
    """What the document says, and its digest: all that takes long for a large one."""
    fields = dispatch_document.parse(raw)
    dispatch_document.envelope(mode, raw)
    return fields, names.digest(raw)


def _mode(request: web.Request, mode: Mode | None) -> Mode:
    values = request.headers.getall(HEADER_QUEUED, [])
    if len(values) > 1 or any(value not in ("true", "false") for value in values):
        raise errors.Invalid(f"{HEADER_QUEUED} is true or false, once", reason="InvalidDispatch")
    queued = values == ["true"]
    if mode is not None and queued:
        raise errors.Invalid("a queued dispatch is not streamed", reason="InvalidDispatch")
    return mode or (Mode.CALLBACK_QUEUED if queued else Mode.CALLBACK)


def _run(request: web.Request) -> str:
    run = request.match_info["run"]
    if not admission.is_id(run):
        raise errors.Invalid("the run id has a form that is not allowed", reason="InvalidRunId")
    return run


def _sequence(request: web.Request) -> int:
    text = request.query.get("after") or request.headers.get("Last-Event-ID") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise errors.Invalid("after: must be a sequence number", reason="InvalidSequence")
    return int(text)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _NotAdmitted as refused:
        error = refused.error
        status = 429 if error.reason in (FULL, NO_CAPACITY) else 503
        answer = _error(status, "no execution capacity", error.reason)
        answer.headers[HEADER_ADMITTED] = "false"
        answer.headers["Retry-After"] = str(max(1, round(error.retry_after)))
        return answer
    except Unauthenticated as error:
        return _error(401, error.message, error.reason)
    except (errors.Invalid, errors.NotFound, errors.Conflict, errors.Refused) as error:
        return _error(_STATUS[_base(error)], error.message, error.reason)
    except web.HTTPException as error:
        answer = _error(error.status, error.reason, "NoSuchPath")
        answer.headers.update({k: v for k, v in error.headers.items() if k == "Allow"})
        return answer
    except Exception as error:
        return _unexpected(request, error)


_STATUS = {errors.Invalid: 400, errors.NotFound: 404, errors.Conflict: 409, errors.Refused: 403}


def _base(error: errors.IsoletError) -> type[errors.IsoletError]:
    return next(kind for kind in _STATUS if isinstance(error, kind))


def _unexpected(request: web.Request, error: Exception) -> web.Response:
    """What we cannot answer for; the caller learns nothing of why."""
    run = request.match_info.get("run")
    about = {"method": request.method, "run": run if admission.is_id(run) else ""}
    if isinstance(error, errors.IsoletError):
        _log.error(
            "a request failed", extra={**about, "reason": error.reason, "why": error.message}
        )
    else:
        _log.error("a request failed", exc_info=error, extra=about)
    if request.method == "POST":
        return _error(
            502, "admission could not be confirmed; inspect the run's status", "Unconfirmed"
        )
    text = "the end of the run could not be confirmed" if request.method == "DELETE" else "not now"
    reason = error.reason if isinstance(error, errors.Unavailable) else "Unavailable"
    return _error(503, text, reason)


def _interrupted(ending: Ending) -> web.Response:
    if ending.outcome is None:
        return _error(502, encoding.UNKNOWN, encoding.UNCONFIRMED)
    return _error(502, encoding.INTERRUPTED, ending.outcome.reason)


def _error(status: int, text: str, reason: str) -> web.Response:
    return _json(status, {"error": text, "reason": reason})


def _json(status: int, value: Any) -> web.Response:
    return _answer(status, json.dumps(value, separators=(",", ":")).encode())


def _answer(status: int, data: bytes) -> web.Response:
    return web.Response(status=status, body=data, headers={"Content-Type": "application/json"})


async def _head(_request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers["Server"] = "isolet"
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["X-Content-Type-Options"] = "nosniff"


__all__ = ["CLOSED", "HEADER_ADMITTED", "HEADER_QUEUED", "Parts", "build"]
