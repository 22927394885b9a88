"""When a word first came out of any container: read from the engine, by code that is not Isolet's.

Every container of the engine is attached to as soon as the engine says that it was made. What a run
is to say is a word that nobody else says, so it does not matter which container it comes from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from urllib.parse import quote

from isolet.agent.engine.api import API
from isolet.agent.engine.transport import Lost
from isolet.base import errors
from isolet_cluster.errors import ClusterError

_WORD = re.compile(rb"first-[0-9a-f]{12}")
_LENGTH = len("first-") + 12
SECONDS = 60.0


def new_word() -> str:
    """A word that nobody has said yet."""
    return f"first-{uuid.uuid4().hex[:12]}"


class Outputs:
    """The stdout of every container that is there or comes."""

    def __init__(self, api: API) -> None:
        self._api = api
        self._first: dict[str, asyncio.Future[float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, api: API) -> AsyncIterator[Outputs]:
        """Listen, until the end of the block."""
        outputs = cls(api)
        listener = asyncio.create_task(outputs._listen())
        try:
            await asyncio.wait_for(outputs._listening.wait(), SECONDS)
            yield outputs
        finally:
            for task in (listener, *outputs._tasks):
                task.cancel()
            await asyncio.gather(listener, *outputs._tasks, return_exceptions=True)

    async def first(self, word: str) -> float:
        """The monotonic time at which a word first came; waits for it."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._of(word)
        except TimeoutError:
            raise ClusterError(f"no container has said {word} in {SECONDS:.0f} s") from None
        finally:
            self._first.pop(word, None)

    def _of(self, word: str) -> asyncio.Future[float]:
        loop = asyncio.get_running_loop()
        return self._first.setdefault(word, loop.create_future())

    async def _listen(self) -> None:
        kinds = json.dumps({"type": ["container"], "event": ["create"]})
        async with self._api.stream("/events", {"filters": kinds}) as body:
            there = await self._api.get("/containers/json", {"all": "1"})
            for each in there.read(list):
                self._begin(str(each["Id"]))
            self._listening.set()
            rest = b""
            async for data in body:
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(None, lines):
                    self._begin(str(json.loads(line)["id"]))

    def _begin(self, container: str) -> None:
        task = asyncio.create_task(self._attend(container))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, container: str) -> None:
        # With what was said already: a container may have ended before it is attached to.
        query = {"stream": "1", "stdout": "1", "logs": "1"}
        path = f"/containers/{quote(container)}/attach"
        with contextlib.suppress(errors.IsoletError, Lost, OSError):
            async with self._api.hijack(path, query=query) as (connection, data):
                held = b""
                while True:
                    now, held = time.monotonic(), held + data
                    for found in _WORD.findall(held):
                        future = self._of(found.decode())
                        if not future.done():
                            future.set_result(now)
                    held = held[1 - _LENGTH :]
                    data = await connection.receive()
                    if not data:
                        return
