"""The engine's event stream: hints that wake workers, and the few facts only events hold.

Losing an event costs time, never truth: workers look at the engine itself. What is kept here is
which containers were seen to start, to die and to meet their memory limit, and which were never
started: the engine keeps its last events in order and drops the oldest first, so a stream that
holds a container's create holds everything that came after it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from isolet.agent.engine.base import EngineEvent
from isolet.agent.service.context import Context
from isolet.base import errors, log

RECONNECT_SECONDS = 1.0
REMEMBERED = 4096
"""Container ids kept of each kind."""

SETTLE_SECONDS = 5.0
"""How long to wait for the word of a container's end or removal, which may be on its way."""

_ERAS = 64
_UNREAD = "the engine's events have not been read yet"

_log = log.get("agent.events")


class _Recent:
    """Containers and the exit code, if there is one, that was told of each; forgets the oldest."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, int | None] = OrderedDict()

    def put(self, container_id: str, code: int | None) -> None:
        self._items[container_id] = code
        while len(self._items) > REMEMBERED:
            self._items.popitem(last=False)

    def code(self, container_id: str) -> int | None:
        return self._items.get(container_id)

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._items


@dataclass(frozen=True, slots=True)
class _Connected:
    """A stream of one process of the engine."""

    up_since: float | None
    opened: float
    """By the event loop's clock."""
    scope: asyncio.Timeout
    """Ends it."""


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
        self._created = _Recent()
        """Of this connection alone: what came before it may have been missed."""
        self._started = _Recent()
        self._died = _Recent()
        self._destroyed = _Recent()
        self._oom = _Recent()
        self._heard = asyncio.Condition()
        self._eras: OrderedDict[float, float] = OrderedDict()
        self._connected: _Connected | None = None

    @property
    def eras(self) -> Mapping[float, float]:
        """When each process of the engine was started, and when it was first seen to answer.

        Boot-time seconds, the oldest first.
        """
        return self._eras

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

    def told_end(self, container_id: str) -> int | None:
        """The exit code of its `die`, if one was seen."""
        return self._died.code(container_id)

    async def end(self, container_id: str, up_since: float) -> int | None:
        """The exit code of its `die`; None if the engine that was started then tells of none.

        Waits until all has been read that this engine had to tell when its stream was opened.

        Raises:
            Unavailable: its stream is not open, or not any more: look again.
        """
        if container_id not in self._died:
            await self._read_up(container_id, up_since)
        return self._died.code(container_id)

    async def _read_up(self, container_id: str, up_since: float) -> None:
        """Wait for a `die` until this engine's stream has told all that came before it."""
        stream = self._connected
        if stream is None:
            raise errors.Unavailable(_UNREAD)
        if stream.up_since != up_since:
            # The engine was replaced between the look at it and the opening of its stream.
            stream.scope.reschedule(asyncio.get_running_loop().time())
            raise errors.Unavailable(_UNREAD)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(stream.opened + SETTLE_SECONDS), self._heard:
                await self._heard.wait_for(
                    lambda: container_id in self._died or self._connected is not stream
                )
        if container_id not in self._died and self._connected is not stream:
            raise errors.Unavailable(_UNREAD)

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
                async with asyncio.timeout(None) as scope:
                    await self._follow(since, scope)
            except errors.IsoletError as error:
                _log.info("event stream broke off", extra={"reason": error.reason})
            except TimeoutError:
                _log.info("event stream of an earlier engine left")
            self._created = _Recent()
            async with self._heard:
                self._heard.notify_all()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self, since: datetime, scope: asyncio.Timeout) -> None:
        await self._engine.info()  # It answers.
        up_since = await self._engine.up_since()
        if up_since is None:
            _log.warning("the engine's process cannot be seen: an end that it makes up is believed")
        else:
            self._eras.setdefault(up_since, self._boottime())
            while len(self._eras) > _ERAS:
                self._eras.popitem(last=False)
        self._connected = _Connected(up_since, asyncio.get_running_loop().time(), scope)
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
            kinds[event.action].put(event.container_id, event.exit_code)
        if event.action in ("die", "destroy"):
            async with self._heard:
                self._heard.notify_all()
        self._on_event(event)
