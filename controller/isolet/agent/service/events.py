"""The engine's event stream: hints that wake workers, and the few facts only events hold.

Losing an event costs time, never truth: workers look at the engine itself. What is kept here is
which containers were seen to start, to die and to meet their memory limit, and which were never
started: the engine keeps its last events in order and drops the oldest first, so a stream that
holds a container's create holds everything that came after it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from isolet.agent.engine.base import EngineEvent
from isolet.agent.service.context import Context
from isolet.base import errors, log

RECONNECT_SECONDS = 1.0
REMEMBERED = 4096
"""Container ids kept of each kind."""

SETTLE_SECONDS = 5.0
"""How long to wait for the word of a container's end or removal, which may be on its way."""

_ERAS = 64

_log = log.get("agent.events")
T = TypeVar("T")


class _Recent(Generic[T]):
    """A bounded map that forgets the oldest."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._items: OrderedDict[str, T] = OrderedDict()
        self._limit = limit

    def put(self, key: str, value: T) -> None:
        self._items[key] = value
        while len(self._items) > self._limit:
            self._items.popitem(last=False)

    def get(self, key: str) -> T | None:
        return self._items.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._items


@dataclass(frozen=True, slots=True)
class Era:
    """One process of the engine, in boot-time seconds."""

    since: float
    """When it was started."""
    answered: float
    """When it was first seen to answer: it had looked at all its containers by then."""


@dataclass(frozen=True, slots=True)
class _Connected:
    """A stream of one process of the engine."""

    up_since: float | None
    at: float
    """When it was opened, by the event loop's clock."""


class EventLog:
    """Follows the engine's events for one installation for as long as the agent lives."""

    def __init__(
        self,
        context: Context,
        *,
        on_event: Callable[[EngineEvent], None],
        on_connect: Callable[[], None],
    ) -> None:
        self._engine = context.engine
        self._installation = context.installation
        self._boottime = context.clock.boottime
        self._on_event = on_event
        self._on_connect = on_connect
        self._created: _Recent[EngineEvent] = _Recent()
        """Of this connection alone: what came before it may have been missed."""
        self._started: _Recent[EngineEvent] = _Recent()
        self._died: _Recent[EngineEvent] = _Recent()
        self._destroyed: _Recent[EngineEvent] = _Recent()
        self._oom: _Recent[EngineEvent] = _Recent()
        self._heard = asyncio.Condition()
        self._eras: deque[Era] = deque(maxlen=_ERAS)
        self._connected: _Connected | None = None
        self._stream: asyncio.Timeout | None = None

    @property
    def eras(self) -> tuple[Era, ...]:
        """The engine's processes that were seen, oldest first."""
        return tuple(self._eras)

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

    def saw_end(self, container_id: str) -> EngineEvent | None:
        """Its `die`, if one was seen."""
        return self._died.get(container_id)

    async def end(self, container_id: str, up_since: float) -> EngineEvent | None:
        """Its `die`; None if the engine that was started then tells of none.

        Waits until all has been read that this engine had to tell when its stream was opened.

        Raises:
            Unavailable: its stream is not open, or not any more: look again.
        """
        connected = self._connected
        if container_id not in self._died and connected is not None:
            loop = asyncio.get_running_loop()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(connected.at + SETTLE_SECONDS), self._heard:
                    await self._heard.wait_for(
                        lambda: container_id in self._died or self._connected is not connected
                    )
            if connected.up_since != up_since and self._connected is connected:
                # The engine was replaced between the look at it and the opening of its stream.
                assert self._stream is not None
                self._stream.reschedule(loop.time())
        if container_id in self._died:
            return self._died.get(container_id)
        if connected is None or connected.up_since != up_since or self._connected is not connected:
            raise errors.Unavailable("the engine's events have not been read yet")
        return None

    async def _hears_of(self, container_id: str, kind: _Recent[EngineEvent]) -> bool:
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
                async with asyncio.timeout(None) as self._stream:
                    await self._follow(since)
            except errors.IsoletError as error:
                _log.info("event stream broke off", extra={"reason": error.reason})
            except TimeoutError:
                _log.info("event stream of an earlier engine left")
            self._created = _Recent()
            async with self._heard:
                self._heard.notify_all()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self, since: datetime) -> None:
        await self._engine.info()  # It answers.
        up_since = await self._engine.up_since()
        if up_since is None:
            _log.warning("the engine's process cannot be seen: an end that it makes up is believed")
        elif not any(era.since == up_since for era in self._eras):
            self._eras.append(Era(up_since, self._boottime()))
        self._connected = _Connected(up_since, asyncio.get_running_loop().time())
        self._on_connect()
        try:
            async for event in self._engine.events(since=since, installation=self._installation):
                await self._take(event)
        finally:
            self._connected = None

    async def _take(self, event: EngineEvent) -> None:
        kinds = {
            "create": self._created,
            "start": self._started,
            "die": self._died,
            "destroy": self._destroyed,
            "oom": self._oom,
        }
        if event.action in kinds:
            kinds[event.action].put(event.container_id, event)
        if event.action in ("die", "destroy"):
            async with self._heard:
                self._heard.notify_all()
        self._on_event(event)
