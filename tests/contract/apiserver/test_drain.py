"""SIGTERM: readiness goes at once, what was admitted is served to its end, then it goes."""

import asyncio
import json
import logging
import os
import signal

import aiohttp
import pytest
from aiohttp import web

from isolet.apiserver import run as entry
from isolet.apiserver.admission import Contract
from isolet.apiserver.auth import Door, TokenFile
from isolet.apiserver.server import FrontServer
from isolet.apiserver.settings import Bounds, Settings
from isolet.base import errors
from isolet.base.tls import TLSFiles
from tests.contract.apiserver.conftest import BODY, CALLBACK, TOKEN
from tests.fakes.dispatcher import FakeDispatcher
from tests.ports import free_port

HEADERS = {"X-Execution-Manager-Token": TOKEN}


async def test_admitted_work_is_drained_and_nothing_new_is_taken(tmp_path, monkeypatch) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    port, dispatcher = free_port(), FakeDispatcher()
    settings = Settings(
        namespace="runs", class_name="fast", port=port, contract=Contract(callback_url=CALLBACK)
    )

    class Outside:
        async def __aenter__(self):
            return dispatcher, Door(TokenFile(token), None)

        async def __aexit__(self, *_):
            await dispatcher.close()

    monkeypatch.setattr(entry, "_outside", lambda _: Outside())
    serving = asyncio.create_task(entry._until_signal(settings))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        await answering(http)
        body = json.dumps(BODY).encode()
        async with http.post("/execute/stream", data=body, headers=HEADERS) as stream:
            assert stream.status == 200
            os.kill(os.getpid(), signal.SIGTERM)
            while (await status(http, "/ready"))[0] == 200:
                await asyncio.sleep(0.01)
            assert (await status(http, "/health"))[0] == 200
            async with http.post("/execute", data=body, headers=HEADERS) as refused:
                assert refused.status == 503
                assert refused.headers["X-Execution-Admitted"] == "false"
            assert not serving.done()
            dispatcher.runs["run"].completes()
            assert json.loads(await stream.content.readline())["event_type"] == "completed"
        async with asyncio.timeout(60):
            await serving
    assert dispatcher.closed
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_run_that_does_not_end_in_time_does_not_hold_it_for_ever(
    tmp_path, caplog, monkeypatch
) -> None:
    dispatcher = FakeDispatcher()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    settings = Settings(
        namespace="runs",
        class_name="fast",
        port=free_port(),
        contract=Contract(callback_url=CALLBACK),
    )
    stop = asyncio.Event()
    door = Door(TokenFile(token), None)
    serving = asyncio.create_task(entry.serve(settings, dispatcher, door, stop))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{settings.port}") as http:
        await answering(http)
        body = json.dumps(BODY).encode()
        async with http.post("/execute/stream", data=body, headers=HEADERS) as stream:
            assert stream.status == 200
            monkeypatch.setattr(entry.dispatch_budget, "drain", lambda _: 0.01)
            with caplog.at_level(logging.ERROR):
                stop.set()
                async with asyncio.timeout(60):
                    await serving
    assert "did not end in time" in caplog.text
    dispatcher.runs["run"].completes()


async def test_a_certificate_that_cannot_be_used_is_told_with_its_file(tmp_path) -> None:
    files, bounds = TLSFiles.in_folder(tmp_path), Bounds()

    async def listens() -> str:
        with pytest.raises(errors.Invalid) as found:
            await FrontServer(web.Application(), bounds).listen("127.0.0.1", 0, files)
        return found.value.message

    assert await listens() == f"{files.certificate}: No such file or directory"
    files.certificate.write_text("hello")
    assert await listens() == f"{files.key}: No such file or directory"
    files.key.write_text("hello")
    assert (await listens()).startswith(f"{files.certificate} with {files.key}: ")


async def status(http: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with http.get(path) as answer:
        return answer.status, await answer.text()


async def answering(http: aiohttp.ClientSession) -> None:
    while True:
        try:
            await status(http, "/health")
            return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.01)
