"""Waiting for an agent's records to change, for the libraries: one stream for all who wait."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from isolet.base import errors
from isolet.wire.agent_api import AgentAPI
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.execution import ExecutionObserved
from isolet.wire.process import ProcessObserved

LOOK_SECONDS = 1.0
"""How soon to ask again where no news came: a stream of changes may be refused or break off."""

Told = ExecutionObserved | ProcessObserved | CheckpointObserved
News = asyncio.Queue[Told | None]
"""What was told of one uid; None: something may have been missed."""

_T = TypeVar("_T", ExecutionObserved, ProcessObserved, CheckpointObserved)


class Changes:
    """The agent's changes; the stream is open only while somebody waits."""

    def __init__(self, agent: AgentAPI) -> None:
        self._agent = agent
        self._waiting: dict[str, list[News]] = {}
        self._task: asyncio.Task[None] | None = None

    async def until(
        self,
        uid: str,
        get: Callable[[str], Awaitable[_T]],
        kind: type[_T],
        reached: Callable[[_T], bool],
    ) -> _T:
        """What is told of `uid`, once it is as it is waited for. `get` asks the agent for it."""
        with self._of(uid) as news:
            seen = await get(uid)
            while not reached(seen):
                told = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        told = await news.get()
                if not isinstance(told, kind):
                    seen = await get(uid)
                elif told.sequence >= seen.sequence:
                    # A tombstone has the number of the change that it was told in.
                    seen = told
            return seen

    @contextlib.contextmanager
    def _of(self, uid: str) -> Iterator[News]:
        """News of one record from now on."""
        news: News = asyncio.Queue()
        self._waiting.setdefault(uid, []).append(news)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        try:
            yield news
        finally:
            self._waiting[uid].remove(news)
            if not self._waiting[uid]:
                del self._waiting[uid]
            if not self._waiting:
                self._task.cancel()
                self._task = None

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(errors.IsoletError):
                after = (await self._agent.node()).sequence
                for news in [news for each in self._waiting.values() for news in each]:
                    news.put_nowait(None)
                async with contextlib.aclosing(self._agent.watch(after)) as changes:  # type: ignore[type-var]
                    async for change in changes:
                        self._tell(change.execution or change.process or change.checkpoint)
            await asyncio.sleep(LOOK_SECONDS)

    def _tell(self, seen: Told | None) -> None:
        for news in self._waiting.get(seen.uid, ()) if seen is not None else ():
            news.put_nowait(seen)
