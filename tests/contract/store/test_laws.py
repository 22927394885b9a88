"""Any sequence of calls: both stores answer alike, SQLite also after it was closed and opened."""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from isolet.agent.store.sqlite import SQLiteStore
from isolet.base import errors
from isolet.wire.base import Fence
from isolet.wire.execution import Step
from tests.fakes.store import MemoryStore

from .records import NOON, a_record, before, moment

UIDS = st.sampled_from(["a", "b", "c"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), UIDS, st.integers(0, 3)),
        st.tuples(st.just("update"), UIDS, st.integers(-1, 1), st.sampled_from(list(Step))),
        st.tuples(st.just("bury"), UIDS, st.integers(0, 9)),
        st.tuples(st.just("purge"), st.integers(0, 9), st.integers(0, 3)),
        st.tuples(st.just("fence"), st.sampled_from("01"), UIDS, st.integers(0, 3)),
        st.tuples(st.just("since"), st.integers(0, 20)),
        st.tuples(st.just("reopen")),
    ),
    max_size=30,
)


async def _do(store, operation):
    """The call's answer, or the class and reason of its error."""
    try:
        match operation:
            case ("add", uid, day):
                return await store.add(a_record(uid, created_at=NOON + timedelta(days=day)))
            case ("update", uid, off, step):
                record = await store.get(uid) or a_record(uid)
                changed = record.with_(revision=record.revision + off, step=step)
                return await store.update(changed)
            case ("bury", uid, minute):
                return await store.bury(uid, at=moment(NOON + timedelta(minutes=minute)))
            case ("purge", minute, limit):
                served = before(NOON + timedelta(minutes=minute))
                return await store.purge_tombstones(served, limit=limit)
            case ("fence", shard, lease, count):
                return await store.check_fence(
                    Fence(shard=shard, lease_uid=lease, transitions=count)
                )
            case ("since", sequence):
                return await store.changed_since(sequence)
    except errors.IsoletError as error:
        return type(error), error.reason


async def _compare(operations) -> None:
    memory = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        sqlite = await SQLiteStore.open(Path(folder) / "s")
        try:
            for operation in operations:
                if operation == ("reopen",):
                    await sqlite.close()
                    sqlite = await SQLiteStore.open(Path(folder) / "s")
                else:
                    assert await _do(sqlite, operation) == await _do(memory, operation), operation
                assert await sqlite.list() == await memory.list()
                assert await sqlite.changed_since(0) == await memory.changed_since(0)
        finally:
            await sqlite.close()


@settings(max_examples=60)
@given(OPERATIONS)
def test_sqlite_is_the_model(operations) -> None:
    asyncio.run(_compare(operations))
