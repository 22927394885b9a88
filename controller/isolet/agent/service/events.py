"""The engine's event stream: hints that wake workers, and the few facts only events hold.

Losing an event costs time, never truth: workers look at the engine itself. What is kept here is
which containers were seen to start, to die and to meet their memory limit, and which were never
started: the engine keeps its last events in order and drops the oldest first, so a stream that
holds a container's create holds everything that came after it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from isolet.agent.engine.base import Engine, EngineEvent
from isolet.base import errors, log

RECONNECT_SECONDS = 1.0
REMEMBERED = 4096
"""Container ids kept of each kind."""

SETTLE_SECONDS = 5.0
"""How long to wait for the word of a container's end or removal, which may be on its way."""

_log = log.get("agent.events")


class _Recent:
    """A bounded set that forgets the oldest."""

    def __init__(self, limit: int) -> None:
        self._items: OrderedDict[str, None] = OrderedDict()
        self._limit = limit

    def add(self, item: str) -> None:
        self._items[item] = None
        while len(self._items) > self._limit:
            self._items.popitem(last=False)

    def __contains__(self, item: str) -> bool:
        return item in self._items


class EventLog:
    """Follows the engine's events for one installation for as long as the agent lives."""

    def __init__(
        self,
        engine: Engine,
        installation: str,
        *,
        on_event: Callable[[EngineEvent], None],
        on_connect: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._installation = installation
        self._on_event = on_event
        self._on_connect = on_connect
        self._created = _Recent(REMEMBERED)
        """Of this connection alone: what came before it may have been missed."""
        self._started = _Recent(REMEMBERED)
        self._died = _Recent(REMEMBERED)
        self._destroyed = _Recent(REMEMBERED)
        self._oom = _Recent(REMEMBERED)
        self._heard = asyncio.Condition()

    def saw_start(self, container_id: str) -> bool:
        """Whether a `start` of it was seen."""
        return container_id in self._started

    def saw_oom(self, container_id: str) -> bool:
        """Whether an `oom` of it was seen."""
        return container_id in self._oom

    async def never_started(self, container_id: str) -> bool:
        """Whether it is proved of a container that is gone that it was never started.

        Waits a moment for the word of its removal, before which a start would have been told.
        """
        if not await self._hears_of(container_id, self._destroyed):
            return False
        return container_id in self._created and container_id not in self._started

    async def has_died(self, container_id: str) -> bool:
        """Whether a `die` of it is told. Waits a moment for one that may be on its way."""
        return await self._hears_of(container_id, self._died)

    async def _hears_of(self, container_id: str, kind: _Recent) -> bool:
        try:
            async with asyncio.timeout(SETTLE_SECONDS), self._heard:
                await self._heard.wait_for(lambda: container_id in kind)
        except TimeoutError:
            return False
        return True

    async def run(self, since: datetime) -> None:
        """Follow, and reconnect when the stream ends, until cancelled."""
        while True:
            try:
                await self._follow(since)
            except errors.IsoletError as error:
                _log.info("event stream broke off", extra={"reason": error.reason})
            self._created = _Recent(REMEMBERED)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self, since: datetime) -> None:
        await self._engine.info()  # It answers.
        self._on_connect()
        async for event in self._engine.events(since=since, installation=self._installation):
            await self._take(event)

    async def _take(self, event: EngineEvent) -> None:
        kinds = {
            "create": self._created,
            "start": self._started,
            "die": self._died,
            "destroy": self._destroyed,
            "oom": self._oom,
        }
        if event.action in kinds:
            kinds[event.action].add(event.container_id)
        if event.action in ("die", "destroy"):
            async with self._heard:
                self._heard.notify_all()
        self._on_event(event)
