"""How far the engine's word of a container's end can be taken, when it was restarted meanwhile.

What ends while no engine runs has lost its last words, and some ends an engine makes up as it comes
up (`isolet.plan.engine_ends`). Of an end that it has seen it tells an event, `die`; of those that
it finds when it comes up, made up or true, it tells none.
"""

from dataclasses import dataclass

from isolet.agent.engine.base import Container, Status
from isolet.agent.service.context import Context
from isolet.agent.service.events import EventLog
from isolet.base import errors
from isolet.plan.engine_ends import MADE_UP, is_doubtful
from isolet.plan.sandbox_model import Moment, SandboxRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """What can be taken of what the engine says of a container."""

    code: int | None = None
    """The exit code. None: it is alive, or nobody knows how it ended."""
    output_lost: bool = False
    """It ended while no engine ran, which lost its last words."""
    unknown: bool = False
    """It has ended, and the engine has forgotten how."""


class Ends:
    """Judges the ends of containers against the engine's restarts. Use it in one event loop."""

    def __init__(self, context: Context, events: EventLog) -> None:
        self._context = context
        self._events = events
        self._judged: dict[str, tuple[str, End]] = {}

    async def judge(self, record: SandboxRecord, container: Container) -> End:
        """The end of a record's container, as just inspected.

        Waits a moment for the engine's events where they decide.

        Raises:
            Unavailable: they decide and have not been read yet, or the engine has gone: look again.
        """
        if container.status not in (Status.EXITED, Status.DEAD):
            return End()
        container_id, end = self._judged.get(record.uid, ("", End()))
        if container_id != container.id:
            end = await self._judge(record, container)
            self._judged[record.uid] = (container.id, end)
        return end

    def forget(self, uid: str) -> None:
        """The record is gone."""
        self._judged.pop(uid, None)

    async def _judge(self, record: SandboxRecord, container: Container) -> End:
        now, code = self._context.moment(), container.exit_code
        if record.boot_id is not None and record.boot_id != now.boot_id:
            unknown = code in MADE_UP
            return End(code=None if unknown else code, output_lost=True, unknown=unknown)
        up_since = await self._context.engine.up_since()
        if up_since is None and self._events.eras:
            # It can be seen, so it is gone: what it said just now may have been made up.
            raise errors.Unavailable("the engine went away after it told of an end")
        began = record.started_boottime or record.dispatched_boottime
        if up_since is None or (began is not None and began >= up_since):
            return End(code=code)
        ended = _boottime(container, now)
        lost = ended is not None and ended < up_since
        if not is_doubtful(code, ended, self._events.eras, up_since, now.boottime):
            return End(code=code, output_lost=lost)
        if record.stop is not None:
            told = self._events.told_end(container.id)
        else:
            told = await self._events.end(container.id, up_since)
        if told is None:
            return End(output_lost=True, unknown=True)
        # The engine that has seen the end may be another than the one that tells a code now.
        return End(code=told, output_lost=lost)


def _boottime(container: Container, now: Moment) -> float | None:
    """When it ended, as far as the wall clock has not been set since."""
    at = container.finished_at
    return None if at is None else now.boottime - (now.wall - at).total_seconds()
