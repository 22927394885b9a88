"""The routes about runs: slots, documents in, events out."""

from collections.abc import Awaitable, Callable

import pydantic
from aiohttp import web

from isolet.agent.server import faults, parse
from isolet.agent.server.auth import Right
from isolet.agent.server.streams import Streams
from isolet.base import errors
from isolet.wire import http
from isolet.wire.base import Wire
from isolet.wire.dispatch import (
    MAX_DOCUMENT_BYTES,
    BeginRequest,
    DispatchAPI,
    Reservation,
    ReserveRequest,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DispatchHandlers:
    """The handlers over one API."""

    def __init__(self, api: DispatchAPI, pace: parse.BodyPace, streams: Streams) -> None:
        self._api = api
        self._pace = pace
        self._streams = streams

    def routes(self) -> tuple[tuple[str, str, Right, Handler], ...]:
        """Method, path, right and handler of each."""
        one = http.DISPATCHES + "/{uid}"
        return (
            ("POST", http.SLOTS_RESERVE, Right.DISPATCH, self.reserve),
            ("POST", http.SLOTS_RELEASE, Right.DISPATCH, self.release),
            ("PUT", one, Right.DISPATCH, self.begin),
            ("GET", one, Right.DISPATCH, self.get),
            ("GET", one + "/events", Right.DISPATCH, self.events),
            ("DELETE", one, Right.DISPATCH, self.cancel),
        )

    async def reserve(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/slots:reserve`."""
        wish = await parse.body(request, ReserveRequest, http.MAX_BODY, self._pace)
        return _json(await self._api.reserve(wish))

    async def release(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/slots:release`."""
        found = await parse.body(request, Reservation, http.MAX_BODY, self._pace)
        await self._api.release(found)
        return _json(Wire())

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """`PUT /v1/dispatches/{uid}`: a `BeginRequest`, a newline, and the document as it is."""
        uid = parse.uid(request)
        raw = await parse.read(request, http.MAX_BODY + MAX_DOCUMENT_BYTES, self._pace)
        head, newline, document = raw.partition(b"\n")
        try:
            begin = BeginRequest.model_validate_json(head)
        except pydantic.ValidationError as error:
            raise faults.invalid(error) from None
        if not newline or begin.wanted.uid != uid:
            raise errors.Invalid("must be a BeginRequest of the uid in the path, and its document")
        return _json(await self._api.begin(begin.reservation, begin.wanted, document))

    async def get(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/dispatches/{uid}`."""
        return _json(await self._api.dispatch(parse.uid(request)))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/dispatches/{uid}/events?after=N`."""
        uid, after = parse.uid(request), parse.integer(request, "after", 0, least=0)
        # Before the head is out: who asks for a run that is not here has to get a 404.
        await self._api.dispatch(uid)
        return await self._streams.serve(request, self._api.follow(uid, after))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /v1/dispatches/{uid}`."""
        return _json(await self._api.cancel(parse.uid(request)))


def _json(message: Wire) -> web.Response:
    return web.Response(body=message.to_json(), content_type=http.JSON)
