"""Open-loop load: calls come when they are due, whatever became of those before.

The latency of a call counts from when it was to arrive, so that a server that stalls is charged for
all who had to wait meanwhile; a loop that sends the next call once the last was answered would not
see them (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

LATE = 0.05
"""Seconds; a call that was sent later than this says that the bench itself is too slow."""


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Seconds after the beginning at which `count` calls arrive, `rate` a second on average."""
    source = random.Random(seed)
    at, found = 0.0, []
    for _ in range(count):
        at += source.expovariate(rate)
        found.append(at)
    return found


async def open_loop(
    offsets: Sequence[float], one: Callable[[float], Awaitable[None]]
) -> tuple[float, int]:
    """Call `one` with each intended arrival, when that has come, and wait for all.

    Returns the seconds that all of it took, and how many calls were sent late.
    """
    began, late = time.monotonic() + 0.1, 0
    async with asyncio.TaskGroup() as group:
        for offset in offsets:
            await asyncio.sleep(max(0.0, began + offset - time.monotonic()))
            late += time.monotonic() - began - offset > LATE
            group.create_task(_call(one, began + offset))
    return time.monotonic() - began, late


async def _call(one: Callable[[float], Awaitable[None]], intended: float) -> None:
    await one(intended)
