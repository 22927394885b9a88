"""A command in a session, as one call: it ends with its session, and may take its session along."""

import asyncio
from collections.abc import Awaitable, Callable

from isolet.agent.service.context import Context
from isolet.agent.service.sessions import BY_SIGNAL, Overran, Sessions, first_end
from isolet.agent.service.turns import Turns
from isolet.agent.service.watchers import Watchers
from isolet.base import errors
from isolet.plan import reasons
from isolet.plan.sandbox_model import SandboxRecord, Stop
from isolet.wire.execution import ExecRequest, ExecResult


class Commands:
    """Runs commands in sessions that are known to be running."""

    def __init__(
        self,
        context: Context,
        watchers: Watchers,
        turns: Turns,
        touch: Callable[[str], Awaitable[None]],
        end: Callable[[str, Stop], Awaitable[None]],
    ) -> None:
        """`touch` notes that a session is in use; `end` has its sandbox ended."""
        self._context = context
        self._watchers = watchers
        self._turns = turns
        self._sessions = Sessions(context)
        self._touch = touch
        self._end = end

    async def run(
        self, record: SandboxRecord, request: ExecRequest, *, leave: Callable[[], bool]
    ) -> ExecResult:
        """Run one command; `leave` says whether an abort leaves the session alone.

        Raises:
            Refused: a bound was passed, or the session was ended meanwhile.
            Conflict: a Checkpoint is being taken, for longer than is waited (`Checkpointing`).
            Unconfirmed: nobody can say how the command ended.
        """
        async with self._turns.command(record.uid, request.timeout_seconds):
            return await self._in_turn(record, request, leave=leave)

    async def _in_turn(
        self, record: SandboxRecord, request: ExecRequest, *, leave: Callable[[], bool]
    ) -> ExecResult:
        uid = record.uid
        await self._touch(uid)
        try:
            return await self._until_either_ends(record, request)
        except Overran as error:
            await self._end(uid, Stop(reason=error.reason, message=error.message))
            raise
        except asyncio.CancelledError:
            if not leave():  # An agent that is being replaced leaves sessions alone.
                message = "a command in it was aborted"
                await self._end(uid, Stop(reason=reasons.CANCELLED, message=message))
            raise
        finally:
            await self._touch(uid)

    async def _until_either_ends(self, record: SandboxRecord, request: ExecRequest) -> ExecResult:
        command = self._sessions.exec(record, request)
        result = await first_end(command, self._watchers.end_of(record.uid))
        if result is None or result.exit_code in BY_SIGNAL:
            await self._blame_the_session(record.uid)
        if result is None:
            raise errors.Unconfirmed("nobody can say how the command ended")
        return result

    async def _blame_the_session(self, uid: str) -> None:
        """A command that was killed along with its session did not fail by itself: say so."""
        record = await self._context.store.get(uid)
        why = record and (record.stop or record.outcome)
        if record is not None and why is None and not record.removing:
            return
        raise errors.Refused(
            "the session was ended while the command ran",
            reason=why.reason if why else reasons.CANCELLED,
        )
