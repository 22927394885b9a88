"""How far the engine's word of a container's end can be taken, when it was restarted meanwhile.

What ends while no engine runs has lost its last words. And an engine that is killed just as it
takes in an end has forgotten it when it comes up: dockerd then finds no task and makes an exit code
and a time up, 0 or 255 and the time of its own start (libcontainerd's `restoredProcess.Delete`;
moby 45788 is the same with 0). Measured on 20.10.24: 0. An end that it has seen it tells as an
event as well, one that it has made up it does not.
"""

from dataclasses import dataclass
from datetime import timedelta

from isolet.agent.engine.base import Container, Status
from isolet.agent.service.context import Context
from isolet.agent.service.events import EventLog

RESTORE = timedelta(seconds=60)
"""An engine that comes up has looked at all its containers by then, before it answers anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """What is to be kept in mind of what the engine says of a container."""

    output_lost: bool = False
    """It ended while no engine ran, which lost its last words."""
    made_up: bool = False
    """Nobody knows how it ended, though the engine gives a code."""


class Ends:
    """Judges the ends of containers against the start of the engine that tells them."""

    def __init__(self, context: Context, events: EventLog) -> None:
        self._context = context
        self._events = events

    async def judge(self, container: Container) -> End:
        """The end of a container, as just inspected; one that is alive has none.

        Waits a moment for the engine's event where that decides.
        """
        if container.status not in (Status.EXITED, Status.DEAD):
            return End()
        up_since = await self._context.engine.up_since()
        if up_since is None or container.started_at is None:
            return End()
        now = self._context.moment()
        up_at = now.wall - timedelta(seconds=now.boottime - up_since)
        if container.started_at >= up_at:
            return End()
        ended = container.finished_at
        if ended is not None and ended < up_at:
            return End(output_lost=True)
        if ended is not None and ended >= up_at + RESTORE:
            return End()
        made_up = not await self._events.has_died(container.id)
        return End(output_lost=made_up, made_up=made_up)
