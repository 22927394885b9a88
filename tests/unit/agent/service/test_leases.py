"""A slot that somebody is about to be given: its input stays open until it was written to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent.service import pool_records
from isolet.agent.service.calm import Calm
from isolet.agent.service.pools import Lease, Pools
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.execution import Step
from isolet.wire.node import Amounts
from isolet.wire.pool import PoolsWanted
from tests.contract.store.records import NOON, a_record
from tests.fakes.store import MemoryStore
from tests.unit.agent.service.specs import POOL

PLENTY = Amounts(cpu_millis=1 << 20, memory_bytes=1 << 40, disk_bytes=1 << 40, executions=99)


class Stream:
    """An input that is open until whoever holds it lets go."""

    open = True

    async def ended(self) -> None:
        await asyncio.Event().wait()


class World:
    """A node with one slot, which waits."""

    def __init__(self) -> None:
        self.store, self.stream, self.boottime = MemoryStore(), Stream(), 100.0
        clock = SimpleNamespace(boottime=lambda: self.boottime, now=lambda: NOON)
        policy = SimpleNamespace(capacity_amounts=lambda: PLENTY)
        engine = SimpleNamespace(attach=self.attach)
        context = SimpleNamespace(
            store=self.store, clock=clock, policy=policy, engine=engine, calm=Calm()
        )
        qualified = SimpleNamespace(is_serving=True)
        node = SimpleNamespace(qualification=qualified, names_of=lambda _: ())
        self.pools = Pools(
            cast(Any, context), cast(Any, None), cast(Any, node), lambda _: None, lambda: None
        )
        self.pools._allowed = lambda: []  # type: ignore[method-assign]
        self.pools._want(PoolsWanted(pools=(POOL,)))

    @asynccontextmanager
    async def attach(self, _container: str) -> AsyncIterator[Stream]:
        try:
            yield self.stream
        finally:
            self.stream.open = False

    async def leased(self) -> tuple[SandboxRecord, Lease]:
        """The slot, kept for somebody."""
        new = pool_records.new(POOL, "slot-1", "here", NOON)
        slot = await self.store.add(new.with_(step=Step.RUNNING, started_boottime=90.0))
        self.pools._attending[slot.uid] = asyncio.create_task(self.pools._attend(slot, "c1"))
        await asyncio.sleep(0)
        lease = self.pools.reserve(POOL)
        assert lease is not None
        return slot, lease

    async def is_open(self) -> bool:
        """Whether the slot could still be written to."""
        for _ in range(3):
            await asyncio.sleep(0)
        return self.stream.open


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.pools.close()


async def test_a_slot_that_was_just_recorded_as_given_can_still_be_written_to(
    world: World,
) -> None:
    slot, lease = await world.leased()
    await world.store.assign(slot.uid, a_record("u1"))
    await world.pools._tend()  # the pool is looked at between the record and the line
    world.pools.gone(slot.uid)  # and its worker finds that the record is gone
    assert await world.is_open()
    world.pools.given(lease, "u1")
    assert not await world.is_open()


async def test_a_slot_that_is_kept_for_somebody_is_not_retired(world: World) -> None:
    slot, lease = await world.leased()
    await world.pools._retire(slot.uid, "unused for too long")
    assert await world.is_open()
    assert await world.store.get(slot.uid) == slot
    world.pools.release(lease, gone=False)
    await world.pools._retire(slot.uid, "unused for too long")
    assert not await world.is_open()


async def test_a_lease_that_came_to_nothing_holds_no_slot_whose_record_is_gone(
    world: World,
) -> None:
    slot, lease = await world.leased()
    await world.store.assign(slot.uid, a_record("u1"))
    world.pools.release(lease, gone=False)
    await world.pools._tend()
    assert not await world.is_open()
