"""Whose turn it is in a session: commands together, or one Checkpoint alone.

A Checkpoint takes its place in the queue when it is first looked at, and gets its turn once no
command runs any more; commands that come after it wait until it has ended. What is known here lives
with the agent: a command that an older agent has left running is one of the processes that a
Checkpoint makes stand still.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from isolet.base import errors
from isolet.plan import reasons

MOST_WAIT_SECONDS = 30.0
"""How long a command waits for a Checkpoint before it is refused."""


class Turns:
    """The turns of all sessions. `wake` is called with a Checkpoint whose turn may have come."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._commands: Counter[str] = Counter()
        self._queues: dict[str, list[str]] = {}
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def command(self, uid: str, seconds: float = MOST_WAIT_SECONDS) -> AsyncIterator[None]:
        """Something that runs in session `uid`.

        Raises:
            Conflict: a Checkpoint is being taken, for longer than is waited (`Checkpointing`).
        """
        try:
            async with asyncio.timeout(min(seconds, MOST_WAIT_SECONDS)), self._freed:
                await self._freed.wait_for(lambda: not self.is_claimed(uid))
        except TimeoutError:
            raise _checkpointing(uid) from None
        with self.begun(uid):
            yield

    def begun(self, uid: str) -> "_Begun":
        """Something that begins in session `uid` now or not at all.

        Raises:
            Conflict: a Checkpoint is being taken or waits for its turn (`Checkpointing`).
        """
        if self.is_claimed(uid):
            raise _checkpointing(uid)
        return _Begun(self._commands, uid, self._ended)

    def _ended(self, uid: str) -> None:
        if not self._commands[uid]:
            del self._commands[uid]
            for waiting in self._queues.get(uid, ())[:1]:
                self._wake(waiting)

    def claim(self, uid: str, checkpoint: str) -> bool:
        """Whether it is this Checkpoint's turn; if not, it keeps its place in the queue."""
        queue = self._queues.setdefault(uid, [])
        if checkpoint not in queue:
            queue.append(checkpoint)
        return queue[0] == checkpoint and not self._commands[uid]

    def is_claimed(self, uid: str) -> bool:
        """Whether a Checkpoint is being taken of it or waits for that."""
        return bool(self._queues.get(uid))

    async def release(self, uid: str, checkpoint: str) -> None:
        """The Checkpoint has ended, or gives up its place."""
        queue = self._queues.get(uid, [])
        if checkpoint not in queue:
            return
        queue.remove(checkpoint)
        if queue:
            self._wake(queue[0])
            return
        del self._queues[uid]
        async with self._freed:
            self._freed.notify_all()


class _Begun:
    """Counts one command for as long as it runs."""

    def __init__(self, commands: Counter[str], uid: str, ended: Callable[[str], None]) -> None:
        self._commands, self._uid, self._ended = commands, uid, ended

    def __enter__(self) -> None:
        self._commands[self._uid] += 1

    def __exit__(self, *_: object) -> None:
        self._commands[self._uid] -= 1
        self._ended(self._uid)


def _checkpointing(uid: str) -> errors.Conflict:
    return errors.Conflict(
        f"a Checkpoint of {uid} is being taken; try again", reason=reasons.CHECKPOINTING
    )
