"""A plain HTTP proxy in front of the API server that misbehaves on command.

It forwards each request with the caller's own credentials. It can cut every watch, end watches with
410, swallow events, answer with errors, or let nothing through.
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

_HOP = {"host", "connection", "transfer-encoding", "content-length", "content-encoding"}


class Proxy:
    """In front of the API server of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._config = yaml.safe_load(kubeconfig.read_text())
        self.blocked = False
        self.swallow: set[str] = set()
        """Event types that no watch gets to see, such as DELETED."""
        self.fail_next: list[tuple[str, int]] = []
        """(method, status): each answers one request of that method, without forwarding it."""
        self.lose_answer: list[str] = []
        """Methods whose next answer is lost after the server has acted."""
        self.watches = 0
        self.gone = False
        """New watches are told that their resource version is too old, once each."""
        self._streams: set[asyncio.Task[Any]] = set()
        self._verdict = "cut"

    async def start(self, folder: Path) -> Path:
        """Listen; returns a kubeconfig that leads here."""
        cluster = self._config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        context = ssl.create_default_context(cadata=_authority(cluster))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context), auto_decompress=False
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        config = json.loads(json.dumps(self._config))
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        file = folder / "through-the-proxy"
        file.write_text(yaml.safe_dump(config))
        return file

    async def stop(self) -> None:
        self.cut()
        await self._runner.cleanup()
        await self._session.close()

    def cut(self) -> None:
        """End every open watch without a word."""
        for task in self._streams:
            task.cancel()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.blocked:
            request.transport.close()
            raise web.HTTPServiceUnavailable
        for planned in self.fail_next:
            if planned[0] == request.method:
                self.fail_next.remove(planned)
                body = {"kind": "Status", "code": planned[1], "message": "planned by the test"}
                return web.json_response(body, status=planned[1])
        if request.query.get("watch") == "true":
            return await self._watch(request)
        async with self._forward(request) as answer:
            data = await answer.read()
            if request.method in self.lose_answer:
                self.lose_answer.remove(request.method)
                request.transport.close()
            return web.Response(body=data, status=answer.status, headers=_headers(answer))

    @contextlib.asynccontextmanager
    async def _forward(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        answer = await self._session.request(
            request.method,
            self._server + request.raw_path,
            headers=headers,
            data=await request.read() or None,
        )
        try:
            yield answer
        finally:
            answer.release()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if self.gone and request.query.get("resourceVersion"):
            await response.prepare(request)
            error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
            await response.write_eof()
            return response
        task = asyncio.current_task()
        self._streams.add(task)
        try:
            async with self._forward(request) as answer:
                await response.prepare(request)
                async for line in answer.content:
                    if json.loads(line)["type"] not in self.swallow:
                        await response.write(line)
        except (asyncio.CancelledError, aiohttp.ClientError, ConnectionError):
            if request.transport is not None:
                request.transport.close()
        finally:
            self._streams.discard(task)
        return response


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.lower() not in _HOP} | (
        {"Content-Encoding": answer.headers["Content-Encoding"]}
        if "Content-Encoding" in answer.headers
        else {}
    )


def _authority(cluster: dict[str, str]) -> str:

    if "certificate-authority-data" in cluster:
        return base64.b64decode(cluster["certificate-authority-data"]).decode()
    return Path(cluster["certificate-authority"]).read_text()
