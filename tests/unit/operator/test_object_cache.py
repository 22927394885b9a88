import asyncio

import pytest

from fakes.cluster import FakeCluster
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.operator.cache import ObjectCache
from isolet.operator.kube import CLASSES, EXECUTIONS, Key
from isolet.operator.relist import Relist, WatchAccount

KEY = Key("Execution", "ns", "a")


def an_object(version, name="a", uid="u", **more):
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


@pytest.fixture
def seen():
    return []


@pytest.fixture
def cache(seen):
    return ObjectCache(
        (EXECUTIONS, CLASSES), lambda kind, key, obj, own: seen.append((key, obj is not None))
    )


def test_the_newest_wins_whatever_comes_last(cache, seen):
    assert cache.put(EXECUTIONS, an_object(5, status=1))
    assert not cache.put(EXECUTIONS, an_object(5, status=1))
    assert not cache.put(EXECUTIONS, an_object(4))
    assert cache.get(KEY)["status"] == 1
    assert seen == [(KEY, True)]


def test_numbers_are_compared_as_numbers(cache):
    cache.put(EXECUTIONS, an_object(99))
    assert cache.put(EXECUTIONS, an_object(100))


def test_a_late_answer_does_not_raise_the_dead_but_a_namesake_may_live(cache, seen):
    cache.put(EXECUTIONS, an_object(5))
    assert cache.drop(EXECUTIONS, an_object(7))
    assert not cache.put(EXECUTIONS, an_object(6))
    assert cache.get(KEY) is None
    assert cache.put(EXECUTIONS, an_object(8, uid="another"))
    assert cache.get(KEY)["metadata"]["uid"] == "another"
    assert not cache.drop(EXECUTIONS, an_object(7)), "the deletion of its predecessor, late"
    assert seen == [(KEY, True), (KEY, False), (KEY, True)]


def test_managed_fields_are_not_kept(cache):
    obj = an_object(5)
    obj["metadata"]["managedFields"] = [{}]
    cache.put(EXECUTIONS, obj)
    assert "managedFields" not in cache.get(KEY)["metadata"]


def a_relist(cluster, cache, rung, clock=None):
    return Relist(cluster, cache, (EXECUTIONS, CLASSES), rung.append, clock or FixedClock())


async def test_the_list_finds_what_the_watch_missed(cache):
    cluster, rung = FakeCluster(), []
    relist = a_relist(cluster, cache, rung)
    assert not cache.complete(EXECUTIONS)
    kept = cluster.seed(EXECUTIONS, an_object(0, "kept"))
    lost = cluster.seed(EXECUTIONS, an_object(0, "lost"))
    for obj in (kept, lost):
        cache.put(EXECUTIONS, obj)
    cluster.vanish(EXECUTIONS, "ns", "lost")
    cluster.seed(EXECUTIONS, an_object(0, "new"))
    await relist.round()
    assert {o["metadata"]["name"] for o in cache.all(EXECUTIONS)} == {"kept", "new"}
    assert {key.name for key in rung} == {"kept", "lost", "new"}
    assert cache.complete(EXECUTIONS)
    assert relist.rounds == 1


async def test_what_was_made_while_the_list_was_under_way_stays(cache):
    cluster = FakeCluster()
    relist = a_relist(cluster, cache, [])
    cluster.delay = asyncio.Event()
    task = asyncio.create_task(relist.round())
    await asyncio.sleep(0.01)
    cache.put(EXECUTIONS, an_object(cluster.version + 1, "newer"))
    cluster.delay.set()
    await task
    assert [o["metadata"]["name"] for o in cache.all(EXECUTIONS)] == ["newer"]


async def test_pages(cache, monkeypatch):
    monkeypatch.setattr("isolet.operator.relist.PAGE", 2)
    cluster, rung = FakeCluster(), []
    for i in range(5):
        cluster.seed(EXECUTIONS, an_object(0, f"x{i}"))
    await a_relist(cluster, cache, rung).round()
    assert len(rung) == 5


async def test_a_list_that_breaks_off_drops_nothing(cache, monkeypatch):
    monkeypatch.setattr("isolet.operator.relist.PAGE", 1)
    cluster = FakeCluster()
    for name in ("a", "b"):
        cache.put(EXECUTIONS, cluster.seed(EXECUTIONS, an_object(0, name)))
    cluster.fail(None, errors.Conflict("continue token expired", reason="Expired"))
    relist = a_relist(cluster, cache, [])
    with pytest.raises(errors.Conflict):
        await relist.round()
    assert cache.count(EXECUTIONS) == 2
    assert not cache.complete(EXECUTIONS)
    assert relist.rounds == 0
    assert relist.lists == ()


async def test_a_restored_store_replaces_everything(cache, seen):
    cluster, rung = FakeCluster(), []
    relist = a_relist(cluster, cache, rung)
    old = cluster.seed(EXECUTIONS, an_object(0, "old"))
    cache.put(EXECUTIONS, an_object(9000, "old", status="from the lost future"))
    cache.put(EXECUTIONS, an_object(9001, "lost"))
    seen.clear()
    await relist.round()
    assert (Key("Execution", "ns", "lost"), False) in seen
    assert [(o["metadata"]["name"], o.get("status")) for o in cache.all(EXECUTIONS)] == [
        ("old", old.get("status"))
    ]
    assert {key.name for key in rung} == {"old", "lost"}


async def test_the_last_two_complete_lists_of_executions_are_kept_for_the_orphan_pass(cache):
    cluster, clock = FakeCluster(), FixedClock()
    relist = a_relist(cluster, cache, [], clock)
    for uid in ("u1", "u2", "u3"):
        cluster.seed(EXECUTIONS, an_object(0, uid, uid))
        await relist.round()
        clock.advance(300)
    assert [sorted(o.uids) for o in relist.lists] == [["u1", "u2"], ["u1", "u2", "u3"]]
    assert [o.started_at for o in relist.lists] == [1300, 1600]
    relist.begin_leading()
    assert relist.lists == ()


@pytest.mark.parametrize(
    ("delivered", "shown", "after", "want"),
    [
        (0, 0, 100, 0),
        (10, 10, 100, 0),
        (10, 11, 0, 0),
        (10, 11, 59, 59),
        (11, 11, 100, 0),
    ],
)
def test_a_watch_owes_what_a_list_has_shown(delivered, shown, after, want):
    account = WatchAccount()
    account.deliver(delivered)
    account.show(shown, 1000.0)
    assert account.behind(1000.0 + after) == want


def test_a_watch_that_owes_is_timed_from_the_first_thing_owed():
    account = WatchAccount()
    account.show(5, 100.0)
    account.show(7, 200.0)
    assert account.behind(300.0) == 200.0
    account.deliver(5)
    account.deliver(7)
    assert account.behind(300.0) == 0.0
