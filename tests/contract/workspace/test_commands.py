import asyncio
import os

import pytest

from isolet.agent.workspace import commands
from isolet.base import errors


def children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


@pytest.mark.parametrize("turns", range(12))
async def test_a_run_that_is_given_up_comes_back_and_leaves_nothing(turns: int) -> None:
    """Cancelled after so many turns of the loop, so also while it starts."""
    before = children()
    running = asyncio.create_task(commands.run(["/bin/sleep", "60"], timeout=60))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert children() == before


async def test_what_takes_too_long_is_ended() -> None:
    before = children()
    with pytest.raises(errors.Unavailable, match="took longer"):
        await commands.run(["/bin/sleep", "60"], timeout=0.1)
    assert children() == before


async def test_what_is_not_there_is_said() -> None:
    with pytest.raises(errors.Unavailable, match="cannot be run here"):
        await commands.run(["/nowhere/program"], timeout=5)
