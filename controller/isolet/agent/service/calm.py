"""When somebody is being given a slot: what can wait does, and leaves him the processor.

A warm start is over in milliseconds of work of the agent, the engine and the sandbox. What the
agent does besides takes as long: it looks at what it has just started, removes what has ended,
makes new slots, tells those who watch. On a busy node a warm start would wait for that most of all.
"""

import asyncio
import time

QUIET_SECONDS = 0.03
"""How long after the last hand-over the sandbox that got it is left alone: it begins meanwhile."""

LULL_SECONDS = 0.003
"""How long after it nothing can have come out of a sandbox yet; those who come at once come in
shorter intervals."""

LONGEST_SECONDS = 0.3
"""How long anything waits at most, however many come: counted from when they began to, so that on a
node where there is no calm nothing is put off again and again."""


class Calm:
    """Told of each hand-over, waited for by whatever can wait. Use it within one event loop."""

    def __init__(self) -> None:
        self._began = self._stirred = 0.0

    def stir(self) -> None:
        """Somebody is being given a slot."""
        now = time.monotonic()
        if now - self._stirred >= QUIET_SECONDS:
            self._began = now
        self._stirred = now

    async def lull(self) -> None:
        """Return once nobody is being given one just now: for what somebody waits for."""
        await self._wait(LULL_SECONDS)

    async def wait(self) -> None:
        """Return once what was given has begun as well, or it has been long enough."""
        await self._wait(QUIET_SECONDS)

    async def _wait(self, quiet: float) -> None:
        while True:
            until = min(self._stirred + quiet, self._began + LONGEST_SECONDS)
            left = until - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)
