"""What is forgotten of uids that are gone, and when."""

import asyncio
import contextlib
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from isolet.agent.service.tombstones import LIFE, purge_loop
from tests.contract.store.records import NOON
from tests.fakes.store import MemoryStore


class SmallSteps(MemoryStore):
    """Forgets three at a time, and says when there is nothing left to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = asyncio.Event()

    async def purge_tombstones(self, *, before, limit=3):
        gone = await super().purge_tombstones(before=before, limit=3)
        if not gone:
            self.idle.set()
        return gone


async def test_all_that_have_served_their_time_go_at_once_however_many() -> None:
    store = SmallSteps()
    for number in range(20):
        await store.bury(f"old-{number}", at=NOON)
    await store.bury("young", at=NOON + timedelta(hours=2))
    now = NOON + LIFE + timedelta(hours=1)
    context = SimpleNamespace(store=store, clock=SimpleNamespace(now=lambda: now))
    task = asyncio.create_task(purge_loop(cast(Any, context)))
    async with asyncio.timeout(60):
        await store.idle.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    _, left, _ = await store.changed_since(0)
    assert [tombstone.uid for tombstone in left] == ["young"]
