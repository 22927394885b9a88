"""What every store promises."""

import asyncio
from dataclasses import fields, replace
from datetime import datetime, timedelta

import pytest

from isolet.agent.store.base import Served, Store, Tombstone
from isolet.base import errors
from isolet.plan.sandbox_model import Kind, Moment, SandboxRecord, Stop
from isolet.wire.base import Fence
from isolet.wire.execution import Outcome, OutputFacts, State, Step

from .records import BOOT, NOON, a_full_record, a_record, before, moment


@pytest.mark.parametrize("record", [a_record(), a_full_record()], ids=["plain", "full"])
async def test_what_is_added_is_what_is_read(store: Store, record) -> None:
    added = await store.add(record)
    assert added == record.with_(revision=1, sequence=1)
    assert await store.get(record.uid) == added
    assert await store.list() == (added,)


def test_the_full_record_has_no_default_left() -> None:
    plain, full = a_record(), a_full_record()
    told_by_the_store = {"revision", "sequence"}
    same_for_all = {"namespace", "class_name", "spec_digest", "active_deadline_seconds"}
    same = {f.name for f in fields(plain) if getattr(plain, f.name) == getattr(full, f.name)}
    assert same == told_by_the_store | same_for_all | {"created_at", "updated_at"}


async def test_what_is_not_there(store: Store) -> None:
    assert await store.get("u1") is None
    assert await store.tombstone("u1") is None
    assert await store.list() == ()
    assert await store.changed_since(0) == ((), (), 0)
    assert await store.present() == ((), 0)
    assert await store.purge_tombstones(before(NOON)) == 0


async def test_a_uid_has_one_record(store: Store) -> None:
    added = await store.add(a_record())
    with pytest.raises(errors.Conflict):
        await store.add(a_record(name="another"))
    assert await store.list() == (added,)


async def test_a_uid_that_has_ended_does_not_come_back(store: Store) -> None:
    await store.add(a_record())
    await store.bury("u1", at=moment())
    with pytest.raises(errors.Conflict) as caught:
        await store.add(a_record())
    assert caught.value.reason == "AlreadyEnded"
    assert await store.get("u1") is None


async def test_the_list_is_in_order_of_creation(store: Store) -> None:
    later = NOON + timedelta(microseconds=1)
    for uid, at in (("b", later), ("c", NOON), ("a", later), ("d", NOON - timedelta(days=999))):
        await store.add(a_record(uid, created_at=at))
    assert [record.uid for record in await store.list()] == ["d", "c", "a", "b"]


async def test_update_compares_and_sets(store: Store) -> None:
    first = await store.add(a_record())
    second = await store.update(first.with_(step=Step.DISPATCHED, container_id="c1"))
    assert second == first.with_(step=Step.DISPATCHED, container_id="c1", revision=2, sequence=2)
    assert await store.get("u1") == second


async def test_a_lost_update_is_refused(store: Store) -> None:
    """L05: a cancel that is written between a read and a write survives."""
    read = await store.add(a_record())
    cancelled = await store.update(read.with_(state=State.TERMINATED))
    with pytest.raises(errors.Conflict) as caught:
        await store.update(read.with_(step=Step.RUNNING))
    assert caught.value.reason == "StaleRevision"
    assert await store.get("u1") == cancelled


async def test_an_update_of_nothing(store: Store) -> None:
    with pytest.raises(errors.NotFound):
        await store.update(a_record(revision=1))
    record = await store.add(a_record())
    await store.bury("u1", at=moment())
    with pytest.raises(errors.NotFound):
        await store.update(record)


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "x"},
        {"name": "x"},
        {"spec_digest": "x"},
        {"created_at": NOON + timedelta(microseconds=1)},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_never_changes(store: Store, change) -> None:
    record = await store.add(a_record())
    with pytest.raises(errors.Conflict):
        await store.update(record.with_(**change))
    assert await store.get("u1") == record


async def test_output_tails_are_not_kept(store: Store) -> None:
    output = OutputFacts(stdout_bytes=6, stdout_tail=b"SECRET", stderr_tail=b"SECRET")
    kept = OutputFacts(stdout_bytes=6)
    added = await store.add(a_record(output=output))
    assert added.output == kept
    updated = await store.update(added.with_(output=output))
    assert updated.output == kept
    assert await store.get("u1") == updated


async def test_burying(store: Store) -> None:
    record = await store.add(a_record())
    assert await store.bury("u1", at=moment()) == 2
    assert await store.get("u1") is None
    assert await store.tombstone("u1") == Tombstone(
        uid="u1",
        namespace=record.namespace,
        name=record.name,
        spec_digest=record.spec_digest,
        buried_at=NOON,
    )


async def test_a_fence_is_for_what_is_not_here(store: Store) -> None:
    kept = await store.add(a_record())
    with pytest.raises(errors.Conflict) as caught:
        await store.fence("u1", at=moment())
    assert caught.value.reason == "AlreadyExists"
    assert await store.list() == (kept,)
    await store.fence("u2", at=moment(), kind=Kind.PROCESS)
    assert (await store.tombstone("u2")).kind is Kind.PROCESS
    later = NOON + timedelta(hours=1)
    await store.fence("u2", at=moment(later))
    assert (await store.tombstone("u2")).buried_at == later
    with pytest.raises(errors.Conflict):
        await store.add(a_record("u2"))


async def test_a_fence_and_a_slot_given_at_once_never_both_hold(store: Store) -> None:
    for number in range(8):
        slot = f"slot-{number}"
        await store.add(a_record(slot, kind=Kind.SLOT, step=Step.RUNNING, container_id="c1"))
        uid = f"u{number}"
        tries = [store.assign(slot, a_record(uid)), store.fence(uid, at=moment())]
        both = await asyncio.gather(
            *(tries if number % 2 else reversed(tries)), return_exceptions=True
        )
        assert sum(isinstance(one, errors.Conflict) for one in both) == 1
        known = await store.get(uid) is not None
        assert known is (await store.tombstone(uid) is None)


async def test_burying_what_was_never_here(store: Store) -> None:
    assert await store.bury("u1", at=moment()) == 1
    with pytest.raises(errors.Conflict):
        await store.add(a_record())
    assert (await store.tombstone("u1")).namespace == ""


async def test_burying_again_only_makes_it_younger(store: Store) -> None:
    await store.add(a_record())
    await store.bury("u1", at=moment())
    for at, want in ((NOON + timedelta(hours=1),) * 2, (NOON, NOON + timedelta(hours=1))):
        assert await store.bury("u1", at=moment(at)) == 2
        tombstone = await store.tombstone("u1")
        assert (tombstone.name, tombstone.buried_at) == ("name-u1", want)


async def test_tombstones_are_purged_before_a_time_in_batches(store: Store) -> None:
    for minute in range(5):
        await store.bury(f"u{minute}", at=moment(NOON + timedelta(minutes=minute)))
    third = before(NOON + timedelta(minutes=3))
    assert await store.purge_tombstones(third, limit=2) == 2
    assert await store.tombstone("u1") is None
    assert await store.tombstone("u2") is not None
    assert await store.purge_tombstones(third, limit=2) == 1
    assert await store.purge_tombstones(third, limit=2) == 0
    assert await store.tombstone("u3") is not None, "the given time itself is kept"
    await store.add(a_record("u0"))


HOUR = timedelta(hours=1)
LONG_AGO, LATELY = 1000.0, 90_000.0
SERVED = Served(before=NOON, boot_id=BOOT, boottime_before=50_000.0)


@pytest.mark.parametrize(
    ("wall", "boottime", "boot_id", "served", "gone"),
    [
        (NOON - HOUR, LONG_AGO, BOOT, SERVED, True),
        (NOON + HOUR, LONG_AGO, BOOT, SERVED, False),
        (NOON - HOUR, LATELY, BOOT, SERVED, False),
        (NOON - HOUR, SERVED.boottime_before, BOOT, SERVED, False),
        (NOON - HOUR, LATELY, "earlier", SERVED, True),
        (NOON + HOUR, LATELY, "earlier", SERVED, False),
        (NOON - HOUR, LONG_AGO, "earlier", replace(SERVED, boottime_before=0.0), False),
        (NOON - HOUR, LONG_AGO, "earlier", replace(SERVED, boottime_before=-1.0), False),
    ],
)
async def test_a_tombstone_goes_once_both_clocks_say_so(
    store: Store, wall: datetime, boottime: float, boot_id: str, served: Served, gone: bool
) -> None:
    at = Moment(wall=wall, boottime=boottime, boot_id=boot_id)
    assert served.covers(at) is gone
    await store.bury("u1", at=at)
    assert await store.purge_tombstones(served) == int(gone)
    assert (await store.tombstone("u1") is None) is gone


@pytest.mark.parametrize(
    ("first", "second", "gone"),
    [
        ((LONG_AGO, BOOT), (LATELY, BOOT), False),
        ((LATELY, BOOT), (LONG_AGO, BOOT), False),
        ((LONG_AGO, BOOT), (LONG_AGO, BOOT), True),
        ((LATELY, "earlier"), (LONG_AGO, BOOT), True),
        ((LONG_AGO, "earlier"), (LATELY, BOOT), False),
    ],
)
async def test_burying_again_counts_from_the_later_one_on_both_clocks(
    store: Store, first: tuple[float, str], second: tuple[float, str], gone: bool
) -> None:
    for boottime, boot_id in (first, second):
        at = Moment(wall=NOON - HOUR, boottime=boottime, boot_id=boot_id)
        await store.bury("u1", at=at)
    assert await store.purge_tombstones(SERVED) == int(gone)


async def test_what_changed_since(store: Store) -> None:
    a = await store.add(a_record("a"))
    b = await store.add(a_record("b"))
    await store.add(a_record("c"))
    await store.bury("c", at=moment())
    a = await store.update(a)
    tombstone = await store.tombstone("c")
    assert await store.changed_since(0) == ((b, a), (tombstone,), 5)
    assert await store.changed_since(2) == ((a,), (tombstone,), 5)
    assert await store.changed_since(4) == ((a,), (), 5)
    assert await store.changed_since(5) == ((), (), 5)
    assert await store.changed_since(99) == ((), (), 5)
    assert await store.present() == ((b, a), 5)


async def test_what_was_refused_has_no_number(store: Store) -> None:
    record = await store.add(a_record())
    for failing in (store.add(a_record()), store.update(record.with_(revision=9))):
        with pytest.raises(errors.IsoletError):
            await failing
    assert (await store.changed_since(0))[2] == 1


F = Fence
FENCES = {
    "the same again": [(F(lease_uid="a", transitions=1), True)] * 3,
    "fewer transitions": [
        (F(lease_uid="a", transitions=5), True),
        (F(lease_uid="a", transitions=4), False),
        (F(lease_uid="a", transitions=5), True),
        (F(lease_uid="a", transitions=6), True),
        (F(lease_uid="a", transitions=5), False),
    ],
    "a Lease made anew starts small, the old one is refused for ever": [
        (F(lease_uid="a", transitions=50), True),
        (F(lease_uid="b", transitions=0), True),
        (F(lease_uid="a", transitions=51), False),
        (F(lease_uid="b", transitions=1), True),
        (F(lease_uid="c", transitions=0), True),
        (F(lease_uid="a", transitions=99), False),
        (F(lease_uid="b", transitions=99), False),
        (F(lease_uid="c", transitions=0), True),
    ],
    "shards do not know each other": [
        (F(shard="0", lease_uid="a", transitions=9), True),
        (F(shard="1", lease_uid="a", transitions=1), True),
        (F(shard="1", lease_uid="b", transitions=1), True),
        (F(shard="0", lease_uid="a", transitions=9), True),
        (F(shard="1", lease_uid="a", transitions=9), False),
    ],
}


@pytest.mark.parametrize("name", FENCES)
async def test_fences(store: Store, name: str) -> None:
    for number, (fence, obeyed) in enumerate(FENCES[name]):
        if obeyed:
            await store.check_fence(fence)
        else:
            with pytest.raises(errors.Fenced):
                await store.check_fence(fence)
        assert (await store.changed_since(0))[2] == 0, f"step {number}"


async def test_l01_every_change_exactly_once(store: Store) -> None:
    """Four callers, 200 assignments and cancels each, on the same few records."""
    for number in range(4):
        await store.add(a_record(f"u{number}"))

    refusals: set[str] = set()

    async def caller() -> None:
        for turn in range(200):
            uid = f"u{turn % 4}"
            while True:
                record = await store.get(uid)
                try:
                    await store.update(record.with_(generation=record.generation + 1))
                    break
                except errors.Conflict as error:
                    refusals.add(error.reason)

    await asyncio.gather(*(caller() for _ in range(4)))
    assert refusals <= {"StaleRevision"}
    records = await store.list()
    assert [record.generation for record in records] == [201] * 4
    assert [record.revision for record in records] == [201] * 4
    assert (await store.changed_since(0))[2] == 4 + 800
    assert len({record.sequence for record in records}) == 4


async def test_writers_of_one_revision_have_one_winner(store: Store) -> None:
    record = await store.add(a_record())
    results = await asyncio.gather(
        *(store.update(record.with_(generation=n)) for n in range(50)), return_exceptions=True
    )
    won = [result for result in results if not isinstance(result, Exception)]
    assert len(won) == 1
    assert await store.get("u1") == won[0]


async def test_a_caller_that_gives_up_breaks_nobody(store: Store) -> None:
    tasks = [asyncio.create_task(store.add(a_record(f"u{n}"))) for n in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    listed = {record.uid: record for record in await store.list()}
    for number, result in enumerate(results):
        if not isinstance(result, BaseException):
            assert listed[f"u{number}"] == result
    assert all(not isinstance(result, Exception) for result in results[1::2])


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    await store.close()
    for call in (
        store.get("u1"),
        store.add(a_record()),
        store.changed_since(0),
        store.check_fence(Fence(lease_uid="a", transitions=1)),
    ):
        with pytest.raises(errors.Unavailable):
            await call


async def test_a_tombstone_says_what_it_is_of_and_may_be_forgotten(store: Store) -> None:
    await store.add(a_full_record("p"))
    await store.add(a_record("e"))
    for uid in ("p", "e"):
        await store.bury(uid, at=moment())
    await store.bury("never", at=moment(), kind=Kind.PROCESS)
    kinds = {u: (await store.tombstone(u)).kind for u in ("p", "e", "never")}
    assert kinds == {"p": Kind.PROCESS, "e": Kind.EXECUTION, "never": Kind.PROCESS}
    _, buried, _ = await store.changed_since(0)
    assert {tombstone.uid: tombstone.kind for tombstone in buried} == kinds
    assert await store.forget(["p", "e", "none"], Kind.PROCESS) == 1
    assert await store.tombstone("p") is None
    assert await store.tombstone("e") is not None
    await store.add(a_full_record("p"))


async def a_slot(store: Store, **changes: object) -> SandboxRecord:
    base: dict[str, object] = {"kind": Kind.SLOT, "step": Step.RUNNING, "container_id": "c1"}
    return await store.add(a_record("slot-1", **{**base, **changes}))


async def test_a_new_record_takes_the_place_of_a_slot(store: Store) -> None:
    slot = await a_slot(store)
    given = await store.assign(slot.uid, a_record())
    assert given == a_record().with_(revision=1, sequence=2)
    assert await store.list() == (given,)
    assert await store.changed_since(0) == ((given,), (), 2)


async def test_a_record_that_waited_takes_the_place_of_a_slot(store: Store) -> None:
    waiting = await store.add(a_record(awaits_slot=True))
    slot = await a_slot(store)
    given = await store.assign(slot.uid, waiting.with_(step=Step.DISPATCHED))
    assert given == waiting.with_(step=Step.DISPATCHED, revision=2, sequence=3)
    assert await store.list() == (given,)


SPOILT_SLOTS = {
    "gone": None,
    "no slot": {"kind": Kind.EXECUTION},
    "not running yet": {"step": Step.DISPATCHED},
    "being removed": {"removing": True},
    "to be ended": {"stop": Stop(reason="Terminated", message="as asked")},
    "ended": {"outcome": Outcome(succeeded=False, reason="OOMKilled", message="")},
}


@pytest.mark.parametrize("changes", SPOILT_SLOTS.values(), ids=SPOILT_SLOTS)
async def test_only_a_slot_that_waits_is_given(store: Store, changes) -> None:
    before = () if changes is None else (await a_slot(store, **changes),)
    with pytest.raises(errors.Conflict) as caught:
        await store.assign("slot-1", a_record())
    assert caught.value.reason == "SlotTaken"
    assert await store.list() == before


async def test_a_uid_that_was_here_costs_no_slot(store: Store) -> None:
    slot = await a_slot(store)
    known = await store.add(a_record("known"))
    await store.bury("cancelled", at=moment())
    for uid, why in (("known", "AlreadyExists"), ("cancelled", "AlreadyEnded")):
        with pytest.raises(errors.Conflict) as caught:
            await store.assign(slot.uid, a_record(uid))
        assert caught.value.reason == why
    changed = await store.update(known.with_(removing=True))
    with pytest.raises(errors.Conflict) as caught:
        await store.assign(slot.uid, known.with_(step=Step.DISPATCHED))
    assert caught.value.reason == "StaleRevision"
    assert set(await store.list()) == {slot, changed}


async def test_of_many_at_once_one_gets_the_slot(store: Store) -> None:
    slot = await a_slot(store)
    tries = [store.assign(slot.uid, a_record(f"u{number}")) for number in range(32)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    won = [result for result in results if isinstance(result, SandboxRecord)]
    assert len(won) == 1
    assert {r.reason for r in results if isinstance(r, errors.Conflict)} == {"SlotTaken"}
    assert await store.list() == tuple(won)


async def test_the_wish_for_pools_is_kept(store: Store) -> None:
    assert await store.pools() == ""
    for wish in ("{}", '{"pools": []}'):
        await store.keep_pools(wish)
        assert await store.pools() == wish
