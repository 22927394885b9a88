import asyncio
import io
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from isolet.apiserver import app
from isolet.apiserver.admission import Contract
from isolet.apiserver.auth import Door, TokenFile
from isolet.apiserver.metrics import DoorMetrics
from isolet.apiserver.runs import RunBook
from isolet.apiserver.server import FrontServer
from isolet.apiserver.settings import Bounds
from tests.fakes.dispatcher import FakeDispatcher

TOKEN = "t" * 32
CALLBACK = "http://callback:8080"
BODY: dict[str, Any] = {
    "job_id": "job",
    "run_id": "run",
    "app_id": "app",
    "board_id": "board",
    "node_id": "node",
    "user_id": "user",
    "credentials": {},
    "executor_jwt": "signed-token",
    "callback_url": CALLBACK,
    "artifact": {"path": "artifact"},
}


class Front:
    """A front door on a real socket, over a dispatcher in memory."""

    def __init__(self, tmp_path, capacity: int = 1, **bounds: Any) -> None:
        self.path = tmp_path / "token"
        self.path.write_text(TOKEN + "\n")
        self.dispatcher = FakeDispatcher()
        self.metrics = DoorMetrics()
        self.bounds = replace(Bounds(capacity=capacity), **bounds)
        self.book = RunBook(self.dispatcher, capacity, self.metrics)
        self.reviewer = None
        self.port = 0
        self.server: FrontServer
        self.http: aiohttp.ClientSession

    async def start(self) -> "Front":
        parts = app.Parts(
            dispatcher=self.dispatcher,
            book=self.book,
            door=Door(TokenFile(self.path), self.reviewer),
            contract=Contract(callback_url=CALLBACK),
            metrics=self.metrics,
            bounds=self.bounds,
        )
        self.server = FrontServer(app.build(parts), self.bounds)
        self.port = await self.server.listen("127.0.0.1", 0, None)
        self.http = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        return self

    async def close(self) -> None:
        await self.http.close()
        for run in self.dispatcher.runs.values():
            run.completes()
        await self.server.close()

    def post(self, path: str = "/execute", body: Any = BODY, headers: Any = None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        data = io.BytesIO(data) if len(data) > 1 << 20 else data
        given = {"X-Execution-Manager-Token": TOKEN} if headers is None else headers
        return self.http.post(path, data=data, headers=given)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def begun(self, run_id: str = "run"):
        while run_id not in self.dispatcher.runs:
            await asyncio.sleep(0.001)
        return self.dispatcher.runs[run_id]

    async def free(self) -> None:
        assert await self.book.drained(60)

    async def raw(self, data: bytes, *, half_close: bool = False) -> tuple[Any, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if half_close:
            writer.write_eof()
        return reader, writer


@pytest.fixture
async def front(tmp_path):
    made = await Front(tmp_path).start()
    yield made
    await made.close()


@pytest.fixture
async def wide(tmp_path):
    """One with room for many."""
    made = await Front(tmp_path, capacity=64).start()
    yield made
    await made.close()
