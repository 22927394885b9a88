from datetime import UTC, datetime

import pytest

from fakes.cluster import FakeCluster
from isolet.base import errors
from isolet.operator.kube import CONFIG_MAPS
from isolet.operator.tombstones import Tombstones, name_of, read
from isolet.plan.model import Cause, Tombstone

STONE = Tombstone(
    uid="u",
    namespace="ns",
    name="a",
    node="n",
    cause=Cause.FORCED,
    detail="the rack burnt",
    written_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
def cluster():
    return FakeCluster()


async def test_what_is_written_is_read_by_the_next_leader(cluster):
    await Tombstones(cluster, "isolet").write(STONE)
    next_ = Tombstones(cluster, "isolet")
    assert (next_.complete, next_.all()) == (False, ())
    await next_.load()
    assert (next_.complete, next_.all()) == (True, (STONE,))


async def test_one_that_is_there_is_kept(cluster):
    first = Tombstones(cluster, "isolet")
    await first.write(STONE)
    await first.write(STONE)
    second = Tombstones(cluster, "isolet")
    await second.write(STONE)
    assert len(cluster.writes) == 1


async def test_one_that_is_written_while_they_are_read_is_kept(cluster):
    stones = Tombstones(cluster, "isolet")
    listing = cluster.list

    async def slow(*args):
        page = await listing(*args)
        await stones.write(STONE)
        return page

    cluster.list = slow
    await stones.load()
    assert (stones.complete, stones.all()) == (True, (STONE,))


async def test_dropping_twice_is_no_error(cluster):
    stones = Tombstones(cluster, "isolet")
    await stones.write(STONE)
    await stones.drop("u", "n")
    await stones.drop("u", "n")
    assert stones.all() == ()


async def test_a_list_that_breaks_off_is_not_complete(cluster):
    stones = Tombstones(cluster, "isolet")
    cluster.fail(errors.Unavailable("busy"))
    with pytest.raises(errors.Unavailable):
        await stones.load()
    assert not stones.complete


async def test_what_is_no_tombstone_is_passed_over(cluster):
    cluster.seed(CONFIG_MAPS, {"metadata": {"name": "x", "namespace": "isolet"}, "data": {}})
    stones = Tombstones(cluster, "isolet")
    await stones.load()
    assert (stones.complete, stones.all()) == (True, ())
    assert read({"metadata": {"name": "x"}, "data": {"tombstone.json": "{}"}}) is None


def test_names_tell_objects_and_nodes_apart():
    assert len({name_of("u", "n"), name_of("u", "m"), name_of("v", "n")}) == 3
