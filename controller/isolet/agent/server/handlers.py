"""The routes: each reads its request, makes one call of the `AgentAPI`, and answers with it."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from isolet.agent.server import parse
from isolet.agent.server.auth import Right
from isolet.agent.server.checkpoint_handlers import CheckpointHandlers
from isolet.agent.server.dispatch_handlers import DispatchHandlers
from isolet.agent.server.metrics import ServerMetrics
from isolet.agent.server.parts import Parts
from isolet.agent.server.process_handlers import ProcessHandlers, output_answer
from isolet.agent.server.streams import Streams
from isolet.base import errors
from isolet.wire import http
from isolet.wire.agent_api import AgentAPI
from isolet.wire.base import Wire
from isolet.wire.dispatch import DispatchAPI
from isolet.wire.execution import Amendment, ExecRequest, ExecutionWanted
from isolet.wire.pool import PoolsWanted

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Right, Handler]

_LARGE = 1 << 20
REQUIRED = ("EngineReady", "RuntimeQualified")
"""Node conditions without which no work can be taken: what `/readyz` tells."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one server bears."""

    connections: int = 256
    streams: int = 32
    dispatch_streams: int = 192
    """Of events of runs, beside those."""
    large_bodies: int = 2
    """Bodies above 1 MiB that are held in memory at a time."""
    copies: int = 4
    """Files of Checkpoints that are read at a time."""
    idle_seconds: float = 30.0
    """How long a connection may take to send a request's head."""
    handshake_seconds: float = 10.0
    stream_age_seconds: float = 3600.0
    stream_write_seconds: float = 30.0
    answer_seconds: float = 30.0
    """How long a caller may take to read an answer, and a second more for each 256 KiB."""
    shutdown_seconds: float = 5.0
    pace: parse.BodyPace = field(default_factory=parse.BodyPace)


class Handlers:
    """The handlers over one API."""

    def __init__(
        self,
        api: AgentAPI,
        limits: Limits,
        metrics: ServerMetrics,
        dispatch: DispatchAPI | None = None,
    ) -> None:
        self._api = api
        self._limits = limits
        self._metrics = metrics
        self._large = asyncio.Semaphore(limits.large_bodies)
        self._processes = ProcessHandlers(api, limits.pace, self._large)
        parts = Parts(api, most=limits.copies, write_seconds=limits.stream_write_seconds)
        self._checkpoints = CheckpointHandlers(api, limits.pace, parts)
        self.streams = self._streams(limits.streams)
        self._events = self._streams(limits.dispatch_streams)
        self._dispatch = (
            None if dispatch is None else DispatchHandlers(dispatch, limits.pace, self._events)
        )
        metrics.streams.set_function(lambda: float(len(self.streams)))

    def _streams(self, most: int) -> Streams:
        return Streams(
            most=most,
            max_age_seconds=self._limits.stream_age_seconds,
            write_seconds=self._limits.stream_write_seconds,
        )

    def end_streams(self) -> None:
        """End every open stream now; who reads one asks again."""
        self.streams.end_all()
        self._events.end_all()

    def routes(self) -> tuple[Route, ...]:
        """All of `/v1`."""
        one = http.EXECUTIONS + "/{uid}"
        return (
            ("PUT", one, Right.WANT, self.put),
            ("PATCH", one, Right.WANT, self.amend),
            ("DELETE", one, Right.WANT, self.remove),
            ("GET", one, Right.READ, self.get),
            ("GET", http.EXECUTIONS, Right.READ, self.snapshot),
            ("GET", http.WATCH, Right.READ, self.watch),
            ("GET", one + "/output/{stream}", Right.OUTPUT, self.output),
            ("POST", one + "/exec", Right.EXEC, self.exec),
            ("GET", http.NODE, Right.READ, self.node),
            ("PUT", http.POOLS, Right.WANT, self.put_pools),
            ("POST", http.STRAYS_REMOVE, Right.WANT, self.remove_strays),
            *self._processes.routes(),
            *self._checkpoints.routes(),
            *(() if self._dispatch is None else self._dispatch.routes()),
        )

    def probes(self) -> tuple[Route, ...]:
        """What kubelet and Prometheus ask."""
        return (
            ("GET", http.HEALTHZ, Right.PROBE, self.healthz),
            ("GET", http.READYZ, Right.PROBE, self.readyz),
            ("GET", http.METRICS, Right.PROBE, self.metrics),
        )

    async def put(self, request: web.Request) -> web.StreamResponse:
        """`PUT /v1/executions/{uid}`."""
        uid, fence = parse.uid(request), parse.fence(request)
        wanted = await parse.body(request, ExecutionWanted, http.MAX_WANTED_BODY, self._limits.pace)
        if wanted.uid != uid:
            raise errors.Invalid("uid: is not the one in the path")
        return _json(await self._api.put(wanted, fence))

    async def amend(self, request: web.Request) -> web.StreamResponse:
        """`PATCH /v1/executions/{uid}`."""
        uid, fence = parse.uid(request), parse.fence(request)
        change = await parse.body(request, Amendment, http.MAX_BODY, self._limits.pace)
        return _json(await self._api.amend(uid, change, fence))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /v1/executions/{uid}`."""
        return _json(await self._api.remove(parse.uid(request), parse.fence(request)))

    async def get(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/executions/{uid}`."""
        return _json(await self._api.get(parse.uid(request)))

    async def snapshot(self, _request: web.Request) -> web.StreamResponse:
        """`GET /v1/executions`."""
        snapshot = await self._api.snapshot()
        return await _large(snapshot.to_json, http.JSON)

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/watch?after=N`."""
        after = parse.integer(request, "after", 0, least=0)
        return await self.streams.serve(request, self._api.watch(after))

    async def output(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/executions/{uid}/output/{stream}?offset=N&limit=N`."""
        uid, stream = parse.uid(request), parse.stream(request)
        offset = parse.integer(request, "offset", 0)
        limit = parse.integer(request, "limit", http.MAX_OUTPUT_CHUNK, least=1)
        chunk = await self._api.output(uid, stream, offset, min(limit, http.MAX_OUTPUT_CHUNK))
        return output_answer(chunk)

    async def exec(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/executions/{uid}/exec`."""
        uid = parse.uid(request)
        result = await self._api.exec(uid, await self._exec_request(request))
        if http.FRAMED in request.headers.get("Accept", ""):
            return await _large(lambda: http.frame_result(result), http.FRAMED)
        return await _large(result.to_json, http.JSON)

    async def _exec_request(self, request: web.Request) -> ExecRequest:
        if (request.content_length or http.MAX_EXEC_BODY) <= _LARGE:
            return await self._read_exec(request)
        async with self._large:
            return await self._read_exec(request)

    async def _read_exec(self, request: web.Request) -> ExecRequest:
        raw = await parse.read(request, http.MAX_EXEC_BODY, self._limits.pace)
        framed = request.content_type == http.FRAMED
        return await parse.parsed(
            raw, http.unframe_request if framed else ExecRequest.model_validate_json
        )

    async def node(self, _request: web.Request) -> web.StreamResponse:
        """`GET /v1/node`."""
        return _json(await self._api.node())

    async def put_pools(self, request: web.Request) -> web.StreamResponse:
        """`PUT /v1/pools`."""
        fence = parse.fence(request)
        wanted = await parse.body(request, PoolsWanted, http.MAX_POOLS_BODY, self._limits.pace)
        return _json(await self._api.put_pools(wanted, fence))

    async def remove_strays(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/strays:remove`."""
        fence = parse.fence(request)
        wish = await parse.body(request, http.StraysRequest, http.MAX_BODY, self._limits.pace)
        left = await self._api.remove_strays(wish.names, fence)
        return _json(http.StraysAnswer(strays=tuple(left)))

    async def healthz(self, _request: web.Request) -> web.StreamResponse:
        """Alive: the event loop answered."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.StreamResponse:
        """Ready for work, as the node's own condition says."""
        found = {c.type: c for c in (await self._api.node()).conditions}
        for kind in REQUIRED:
            condition = found.get(kind)
            if condition is None:
                raise errors.Unavailable(f"{kind} is not known yet", reason="NotQualified")
            if condition.status != "True":
                raise errors.Unavailable(condition.message, reason=condition.reason)
        return web.Response(text="ok\n")

    async def metrics(self, _request: web.Request) -> web.StreamResponse:
        """Prometheus' text format."""
        self._metrics.pools.pools = (await self._api.node()).pools
        return web.Response(body=self._metrics.render(), content_type="text/plain")


def _json(message: Wire) -> web.Response:
    return web.Response(body=message.to_json(), content_type=http.JSON)


async def _large(make: Callable[[], bytes], content_type: str) -> web.Response:
    """As `_json`, for what may be many megabytes: made in a thread, sent in pieces."""
    body = io.BytesIO(await asyncio.to_thread(make))
    return web.Response(body=body, headers={"Content-Type": content_type})
