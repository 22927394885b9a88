"""The routes about Processes, and about files of live sessions."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from isolet.agent.server import parse
from isolet.agent.server.auth import Right
from isolet.base import errors
from isolet.wire import http
from isolet.wire.agent_api import OutputChunk, ProcessAPI
from isolet.wire.base import Wire
from isolet.wire.process import MAX_PATH, MAX_STAGED_BYTES, ProcessAmendment, ProcessWanted

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LARGE = 1 << 20


def output_answer(chunk: OutputChunk) -> web.Response:
    """A piece of output: its bytes, and where they stand in headers."""
    headers = {
        "Content-Type": http.BYTES,
        http.HEADER_OUTPUT_OFFSET: str(chunk.offset),
        http.HEADER_OUTPUT_TOTAL: str(chunk.total_bytes),
        http.HEADER_OUTPUT_COMPLETE: "true" if chunk.complete else "false",
    }
    return web.Response(body=chunk.data, headers=headers)


class ProcessHandlers:
    """The handlers over one API; `large` is shared by all that hold large bodies in memory."""

    def __init__(self, api: ProcessAPI, pace: parse.BodyPace, large: asyncio.Semaphore) -> None:
        self._api = api
        self._pace = pace
        self._large = large

    def routes(self) -> tuple[tuple[str, str, Right, Handler], ...]:
        """Method, path, right and handler of each."""
        one = http.PROCESSES + "/{uid}"
        session = http.EXECUTIONS + "/{uid}"
        return (
            ("PUT", one, Right.WANT, self.put),
            ("PATCH", one, Right.WANT, self.amend),
            ("DELETE", one, Right.WANT, self.remove),
            ("GET", one, Right.READ, self.get),
            ("POST", http.PROCESSES_FORGET, Right.WANT, self.forget),
            ("GET", one + "/output/{stream}", Right.OUTPUT, self.output),
            ("GET", one + "/artifact", Right.OUTPUT, self.artifact),
            ("PUT", session + "/file", Right.EXEC, self.put_file),
            ("GET", session + "/file", Right.EXEC, self.get_file),
            ("GET", session + "/files", Right.EXEC, self.list_files),
        )

    async def put(self, request: web.Request) -> web.StreamResponse:
        """`PUT /v1/processes/{uid}`."""
        uid, fence = parse.uid(request), parse.fence(request)
        raw = await self._body(request, http.MAX_PROCESS_BODY)
        wanted = await parse.parsed(raw, ProcessWanted.model_validate_json)
        if wanted.uid != uid:
            raise errors.Invalid("uid: is not the one in the path")
        return _json(await self._api.put_process(wanted, fence))

    async def amend(self, request: web.Request) -> web.StreamResponse:
        """`PATCH /v1/processes/{uid}`."""
        uid, fence = parse.uid(request), parse.fence(request)
        change = await parse.body(request, ProcessAmendment, http.MAX_BODY, self._pace)
        return _json(await self._api.amend_process(uid, change, fence))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /v1/processes/{uid}`."""
        seen = await self._api.remove_process(parse.uid(request), parse.fence(request))
        return _json(seen)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/processes/{uid}`."""
        return _json(await self._api.get_process(parse.uid(request)))

    async def forget(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/processes:forget`."""
        fence = parse.fence(request)
        wish = await parse.body(request, http.ForgetRequest, http.MAX_WANTED_BODY, self._pace)
        forgotten = await self._api.forget_processes(wish.uids, fence)
        return _json(http.ForgetAnswer(forgotten=forgotten))

    async def output(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/processes/{uid}/output/{stream}?offset=N&limit=N`."""
        uid, stream = parse.uid(request), parse.stream(request)
        offset = parse.integer(request, "offset", 0)
        return output_answer(await self._api.process_output(uid, stream, offset, _limit(request)))

    async def artifact(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/processes/{uid}/artifact?path=P&offset=N&limit=N`."""
        uid, path = parse.uid(request), _path(request)
        offset = parse.integer(request, "offset", 0, least=0)
        chunk = await self._api.read_artifact(uid, path, offset, _limit(request))
        headers = {
            "Content-Type": http.BYTES,
            http.HEADER_OUTPUT_OFFSET: str(chunk.offset),
            http.HEADER_ARTIFACT_SIZE: str(chunk.artifact.size),
            http.HEADER_ARTIFACT_DIGEST: chunk.artifact.digest,
        }
        return web.Response(body=chunk.data, headers=headers)

    async def put_file(self, request: web.Request) -> web.StreamResponse:
        """`PUT /v1/executions/{uid}/file?path=P&mode=M`; the mode in decimal."""
        uid, path = parse.uid(request), _path(request)
        mode = parse.integer(request, "mode", 0o644, least=0)
        content = await self._body(request, MAX_STAGED_BYTES)
        await self._api.put_file(uid, path, content, mode)
        return _json(Wire())

    async def get_file(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/executions/{uid}/file?path=P`."""
        content = await self._api.get_file(parse.uid(request), _path(request))
        return web.Response(body=content, headers={"Content-Type": http.BYTES})

    async def list_files(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/executions/{uid}/files?path=P`."""
        entries = await self._api.list_files(parse.uid(request), request.query.get("path", ""))
        return _json(http.FilesAnswer(entries=tuple(entries)))

    async def _body(self, request: web.Request, bound: int) -> bytes:
        if (request.content_length or bound) <= _LARGE:
            return await parse.read(request, bound, self._pace)
        async with self._large:
            return await parse.read(request, bound, self._pace)


def _path(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not 1 <= len(path) <= MAX_PATH:
        raise errors.Invalid(f"path: must be given, with at most {MAX_PATH} characters")
    return path


def _limit(request: web.Request) -> int:
    asked = parse.integer(request, "limit", http.MAX_OUTPUT_CHUNK, least=1)
    return min(asked, http.MAX_OUTPUT_CHUNK)


def _json(message: Wire) -> web.Response:
    return web.Response(body=message.to_json(), content_type=http.JSON)
