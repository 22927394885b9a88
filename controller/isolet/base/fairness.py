"""Taking turns: a coroutine that always finds more to do keeps everything else in its loop waiting.

Awaiting what is there already gives no turn to anybody, and a tenant decides how much is there.
"""

import asyncio

TURN_SECONDS = 0.01


class Turns:
    """The turns of one such coroutine. Make it where it runs."""

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        self._seconds = seconds
        self._over = asyncio.get_running_loop().time() + seconds

    async def give(self) -> None:
        """Let all others have theirs, if this one has lasted for `seconds`."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._over:
            await asyncio.sleep(0)
            self._over = loop.time() + self._seconds
