"""The agent's endless loops, kept up: a bug in one ends one round of it and not the node."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from isolet.base import log

PAUSE_SECONDS = 1.0

_log = log.get("agent.loops")


async def kept(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop until cancelled; begin it again if it breaks off."""
    while True:
        try:
            await loop()
        except Exception:
            _log.exception("a loop broke off and begins again")
        await asyncio.sleep(PAUSE_SECONDS)
