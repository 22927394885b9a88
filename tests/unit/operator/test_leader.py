import asyncio
import copy

import pytest

from fakes.cluster import FakeCluster
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.operator.guard import GuardedCluster
from isolet.operator.kube import CONFIG_MAPS, LEASES
from isolet.operator.leader import Elector, Leadership, LeaseTimes

TIMES = LeaseTimes()


class Rival:
    """One operator process: an elector, its own clock and its own view of leadership."""

    def __init__(self, cluster, identity, clock=None):
        self.cluster = cluster
        self.clock = clock or FixedClock()
        self.leadership = Leadership(self.clock, TIMES)
        self.elector = Elector(
            cluster, self.leadership, self.clock, TIMES, namespace="isolet", identity=identity
        )

    async def tick(self):
        self.leadership.beat()
        return await self.elector.tick()


@pytest.fixture
def cluster():
    return FakeCluster()


def lease(cluster):
    return cluster.objects["Lease", "isolet", "isolet-operator"]


async def test_the_first_comer_leads_with_a_fence(cluster):
    a = Rival(cluster, "a")
    assert await a.tick()
    assert a.leadership.valid()
    fence = a.leadership.check()
    assert (fence.lease_uid, fence.transitions) == (lease(cluster)["metadata"]["uid"], 1)


async def test_a_held_lease_is_taken_only_after_a_whole_duration_of_silence_as_seen_here(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b", FixedClock(boot=99.0))
    await a.tick()
    assert not await b.tick()
    b.clock.advance(14.9)
    assert not await b.tick()
    a.clock.advance(5)
    await a.tick()  # renewed
    b.clock.advance(14.9)
    assert not await b.tick(), "it changed since: the silence begins anew"
    b.clock.advance(15.0)
    assert await b.tick()
    assert b.leadership.check().transitions == 2


async def test_times_written_in_the_lease_and_steps_of_the_clock_mean_nothing(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    await a.tick()
    lease(cluster)["spec"]["renewTime"] = "1970-01-01T00:00:00.000000Z"
    b.clock.step(1e7)
    assert not await b.tick()
    a.clock.step(-1e7)
    assert a.leadership.valid()


async def test_validity_ends_before_another_can_take_it(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    a.clock.advance(9.9)
    assert a.leadership.valid()
    a.clock.advance(0.2)
    assert not a.leadership.valid()
    assert a.leadership.remaining() == pytest.approx(4.9)
    with pytest.raises(errors.Fenced):
        a.leadership.check()


async def test_validity_counts_from_the_sending_of_the_request(cluster):
    a = Rival(cluster, "a")
    cluster.delay = asyncio.Event()
    tick = asyncio.create_task(a.tick())
    await asyncio.sleep(0)
    a.clock.advance(4)
    cluster.delay.set()
    await tick
    assert a.leadership.remaining() == pytest.approx(11)


async def test_a_partition_ends_the_leader(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    cluster.fail(*[errors.Unavailable("no route")] * 10)
    a.clock.advance(5)
    assert await a.tick(), "not yet"
    a.clock.advance(5)
    with pytest.raises(errors.Fenced):
        await a.tick()
    assert not a.leadership.valid()


async def test_a_stolen_lease_ends_the_leader_at_once(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    stolen = lease(cluster)
    stolen["spec"].update(holderIdentity="thief", leaseTransitions=2)
    cluster.seed(LEASES, stolen)
    with pytest.raises(errors.Fenced):
        await a.tick()


async def test_a_deleted_lease_ends_the_leader(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    cluster.vanish(LEASES, "isolet", "isolet-operator")
    with pytest.raises(errors.Fenced):
        await a.tick()


async def test_a_renewal_whose_answer_was_lost_is_not_a_theft(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    stored = lease(cluster)
    cluster.seed(LEASES, stored)  # our own PUT arrived, the answer did not
    a.clock.advance(2)
    assert await a.tick()
    assert a.leadership.remaining() == pytest.approx(13), "not renewed by what was not confirmed"
    a.clock.advance(2)
    assert await a.tick()
    assert a.leadership.remaining() == pytest.approx(15)


async def test_an_acquisition_whose_answer_was_lost_is_taken_up_with_a_new_fence(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    again = Rival(cluster, "a")
    assert await again.tick()
    assert again.leadership.check().transitions == 2


async def test_a_hung_main_loop_loses_the_lease(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    a.clock.advance(8.5)
    writes = len(cluster.writes)
    assert await a.elector.tick(), "no heartbeat: not renewed, not lost yet"
    assert len(cluster.writes) == writes
    a.clock.advance(2)
    with pytest.raises(errors.Fenced):
        await a.elector.tick()


async def test_release_lets_another_in_at_once_with_a_higher_fence(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    await a.tick()
    assert not await b.tick()
    await a.elector.release()
    assert not a.leadership.valid()
    assert await b.tick()
    assert b.leadership.check().transitions == 2


async def test_release_by_a_loser_writes_nothing(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    await a.tick()
    await b.tick()
    writes = list(cluster.writes)
    await b.elector.release()
    assert cluster.writes == writes


async def test_of_two_at_once_one_wins(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    assert sorted(await asyncio.gather(a.tick(), b.tick())) == [False, True]


async def test_a_nonsensical_duration_does_not_lock_everyone_out(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    await a.tick()
    lease(cluster)["spec"]["leaseDurationSeconds"] = 2**31 - 1
    await b.tick()
    b.clock.advance(151)
    assert await b.tick()


async def test_a_frozen_leader_finds_that_it_may_not_write(cluster):
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    await a.tick()
    await b.tick()
    guarded = GuardedCluster(cluster, a.leadership)
    a.clock.advance(20)  # frozen and woken
    b.clock.advance(20)
    assert await b.tick()
    body = {"metadata": {"name": "x"}}
    for write in (
        guarded.create(CONFIG_MAPS, "isolet", body),
        guarded.patch(CONFIG_MAPS, "isolet", "x", body),
        guarded.replace(CONFIG_MAPS, "isolet", "x", body),
        guarded.delete(CONFIG_MAPS, "isolet", "x", None),
    ):
        with pytest.raises(errors.Fenced):
            await write
    with pytest.raises(errors.Fenced):
        await a.tick()


async def test_a_write_waits_no_longer_than_the_lease_lasts(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    a.clock.advance(9.999)
    times = LeaseTimes(duration=10.0, renew=9.9999)
    short = Leadership(a.clock, times)
    short.hold(a.leadership.check(), a.clock.boottime() - 9.99)
    cluster.delay = asyncio.Event()
    with pytest.raises(errors.Unconfirmed):
        await GuardedCluster(cluster, short).create(
            CONFIG_MAPS, "isolet", {"metadata": {"name": "x"}}
        )


async def test_nobody_goes_on_with_what_it_knew_before_etcd_went_back(cluster):
    """As young as the lists may be by then, the lease is as old as the backup."""
    a, b = Rival(cluster, "a"), Rival(cluster, "b")
    await a.tick()
    backup = copy.deepcopy(lease(cluster))
    a.clock.advance(2)
    await a.tick()
    assert not await b.tick()
    cluster.version += 1000
    cluster.objects["Lease", "isolet", "isolet-operator"] = backup
    for rival in (a, b):
        with pytest.raises(errors.Fenced, match="went back in time"):
            await rival.tick()
        assert not rival.leadership.held
    c = Rival(cluster, "c")
    assert not await c.tick()
    c.clock.advance(15)
    assert await c.tick()


async def test_a_renewal_whose_answer_was_lost_is_no_step_back(cluster):
    a = Rival(cluster, "a")
    await a.tick()
    replace = cluster.replace

    async def lost(*args):
        cluster.replace = replace
        await replace(*args)
        raise errors.Unconfirmed("the answer was lost")

    cluster.replace = lost
    for _ in range(3):
        a.clock.advance(2)
        assert await a.tick()
    assert a.leadership.valid()
