"""The routes about Checkpoints."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from isolet.agent.server import parse
from isolet.agent.server.auth import Right
from isolet.agent.server.parts import Parts
from isolet.base import errors
from isolet.wire import http
from isolet.wire.agent_api import CheckpointAPI
from isolet.wire.base import Wire
from isolet.wire.checkpoint import CheckpointWanted

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CheckpointHandlers:
    """The handlers over one API."""

    def __init__(self, api: CheckpointAPI, pace: parse.BodyPace, parts: Parts) -> None:
        self._api = api
        self._pace = pace
        self._parts = parts

    def routes(self) -> tuple[tuple[str, str, Right, Handler], ...]:
        """Method, path, right and handler of each."""
        one = http.CHECKPOINTS + "/{uid}"
        return (
            ("PUT", one, Right.WANT, self.put),
            ("DELETE", one, Right.WANT, self.remove),
            ("GET", one, Right.READ, self.get),
            ("POST", one + "/grant", Right.WANT, self.grant),
            ("GET", one + "/parts/{part}", Right.COPY, self._parts.read),
        )

    async def put(self, request: web.Request) -> web.StreamResponse:
        """`PUT /v1/checkpoints/{uid}`."""
        uid, fence = parse.uid(request), parse.fence(request)
        wanted = await parse.body(request, CheckpointWanted, http.MAX_BODY, self._pace)
        if wanted.uid != uid:
            raise errors.Invalid("uid: is not the one in the path")
        return _json(await self._api.put_checkpoint(wanted, fence))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /v1/checkpoints/{uid}`."""
        seen = await self._api.remove_checkpoint(parse.uid(request), parse.fence(request))
        return _json(seen)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/checkpoints/{uid}`."""
        return _json(await self._api.get_checkpoint(parse.uid(request)))

    async def grant(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/checkpoints/{uid}/grant`."""
        uid, fence = parse.uid(request), parse.fence(request)
        wish = await parse.body(request, http.GrantRequest, http.MAX_BODY, self._pace)
        return _json(await self._api.grant_checkpoint(uid, wish.reader, wish.seconds, fence))


def _json(message: Wire) -> web.Response:
    return web.Response(body=message.to_json(), content_type=http.JSON)
