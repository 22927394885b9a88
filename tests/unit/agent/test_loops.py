import asyncio

import pytest

from isolet.agent.service import loops


async def test_a_loop_that_breaks_off_begins_again(monkeypatch):
    monkeypatch.setattr(loops, "PAUSE_SECONDS", 0.0)
    rounds = []
    third = asyncio.Event()

    async def loop():
        rounds.append(1)
        if len(rounds) < 3:
            raise FileNotFoundError("nobody thought of it")
        third.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(loops.kept(loop))
    await asyncio.wait_for(third.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(rounds) == 3
