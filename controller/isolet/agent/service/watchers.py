"""Changes for those who watch: a sequence number is the cursor, the store is the history."""

import asyncio
from collections.abc import AsyncIterator, Callable

from isolet.agent.service.calm import Calm
from isolet.agent.store.base import Store, Tombstone
from isolet.plan.sandbox_model import Kind, SandboxRecord
from isolet.wire.agent_api import Change
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.execution import ExecutionObserved
from isolet.wire.process import ProcessObserved

Observed = ExecutionObserved | ProcessObserved | CheckpointObserved

BOOKMARK_SECONDS = 5.0
"""How often a quiet stream says that it lives."""


class Watchers:
    """Wakes every watch stream when something has changed."""

    def __init__(
        self,
        store: Store,
        observed: Callable[[SandboxRecord], Observed],
        buried: Callable[[Tombstone, int], Observed],
        calm: Calm,
    ) -> None:
        self._store = store
        self._observed = observed
        self._buried = buried
        self._calm = calm
        self._streams: set[asyncio.Event] = set()
        self._node_changes = 0

    def changed(self) -> None:
        """A record has changed."""
        for stream in self._streams:
            stream.set()

    def node_changed(self) -> None:
        """The node's own account has changed."""
        self._node_changes += 1
        self.changed()

    async def stream(self, after: int) -> AsyncIterator[Change]:
        """Everything changed after `after`, then live; a bookmark whenever it is quiet."""
        wake = asyncio.Event()
        self._streams.add(wake)
        told = self._node_changes
        try:
            while True:
                wake.clear()
                records, tombstones, newest = await self._store.changed_since(after)
                for record in filter(_is_told, records):
                    yield self._change(record.sequence, self._observed(record))
                for tombstone in filter(_is_told, tombstones):
                    yield self._change(newest, self._buried(tombstone, newest))
                after = newest
                told, news = self._node_changes, self._node_changes != told
                yield Change(epoch=self._store.epoch, sequence=newest, node_changed=news)
                await _wait(wake)
                # Who watches begins to work as well, on the processor that a sandbox needs.
                await self._calm.wait()
        finally:
            self._streams.discard(wake)

    async def end_of(self, uid: str) -> None:
        """Wait until an Execution has its outcome, or is not known any more."""
        wake = asyncio.Event()
        self._streams.add(wake)
        try:
            while True:
                wake.clear()
                record = await self._store.get(uid)
                if record is None or record.outcome is not None:
                    return
                await _wait(wake)
        finally:
            self._streams.discard(wake)

    def _change(self, sequence: int, seen: Observed) -> Change:
        epoch = self._store.epoch
        if isinstance(seen, ProcessObserved):
            return Change(epoch=epoch, sequence=sequence, process=seen)
        if isinstance(seen, CheckpointObserved):
            return Change(epoch=epoch, sequence=sequence, checkpoint=seen)
        return Change(epoch=epoch, sequence=sequence, execution=seen)


def _is_told(item: SandboxRecord | Tombstone) -> bool:
    """An unused slot is nobody's work; the node's account counts it."""
    return item.kind is not Kind.SLOT


async def _wait(wake: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(BOOKMARK_SECONDS):
            await wake.wait()
    except TimeoutError:
        return
