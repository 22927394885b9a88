import asyncio
from dataclasses import replace

import pytest

from fakes.agent import FakeAgent
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.operator.links import BeginAgain, Link, LinkTimes, NodeEndpoint
from isolet.plan.model import Absent, Known, Unknown
from isolet.wire.agent_api import Change
from isolet.wire.execution import ExecutionObserved, Step

TIMES = LinkTimes(account_every=0.05, backoff=0.001, backoff_cap=0.002)
IMPATIENT = replace(TIMES, request=0.2, snapshot=0.2, silence=0.2)
"""For those who wait until one of them is over."""


def a_record(uid, sequence, step=Step.RECORDED):
    return ExecutionObserved(
        uid=uid, namespace="ns", name=uid, sequence=sequence, spec_digest="d", step=step
    )


class Follower:
    def __init__(self, times=TIMES):
        self.agent = FakeAgent(bookmark=0.02)
        self.changed = []
        self.accounted = 0
        self.link = Link(
            name="node-a",
            endpoint=NodeEndpoint("unix:///x", "node-a"),
            agent=self.agent,
            clock=FixedClock(),
            changed=lambda record: self.changed.append((record.uid, record.step)),
            accounted=self._account,
            times=times,
        )

    def _account(self, name):
        self.accounted += 1

    async def until(self, holds):
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.002)


@pytest.fixture
async def follower(request):
    follower = Follower(getattr(request, "param", TIMES))
    task = asyncio.create_task(follower.link.run())
    yield follower
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_before_the_snapshot_nothing_is_known(follower):
    assert isinstance(follower.link.record("u"), Unknown)
    await follower.until(lambda: follower.link.synced)
    assert follower.link.record("u") == Absent()
    assert follower.link.report.name == "node-a"
    assert follower.accounted >= 1


async def test_changes_arrive_and_ring(follower):
    follower.agent.auto = False
    follower.agent.records["u"] = a_record("u", 1)
    follower.agent.sequence = 1
    await follower.until(lambda: "u" in follower.link.records)
    await follower.agent.run("u")
    await follower.until(lambda: ("u", Step.RUNNING) in follower.changed)
    assert follower.link.record("u").value.step is Step.RUNNING


async def test_while_the_agent_is_away_what_was_known_stays_and_absence_stays_absence(follower):
    await follower.until(lambda: follower.link.synced)
    follower.link.learn(a_record("u", 7))
    await follower.agent.lose()
    await follower.until(lambda: follower.link.problem)
    assert follower.link.synced
    assert isinstance(follower.link.record("u"), Known)
    assert follower.link.record("other") == Absent()
    seen = follower.accounted
    follower.agent.records["u"] = a_record("u", 8, Step.ENDED)
    follower.agent.sequence = 8
    await follower.agent.return_()
    await follower.until(lambda: not follower.link.problem)
    await follower.until(lambda: follower.link.record("u").value.step is Step.ENDED)
    assert follower.accounted > seen, "contact came back"


async def test_a_record_that_is_gone_from_the_snapshot_rings_and_goes(follower):
    follower.agent.records["u"] = a_record("u", 1)
    follower.agent.sequence = 5
    await follower.until(lambda: "u" in follower.link.records)
    await follower.agent.lose()
    await follower.until(lambda: follower.link.problem)
    follower.agent.records.clear()
    follower.agent.sequence = 6
    follower.changed.clear()
    await follower.agent.return_()
    await follower.until(lambda: follower.changed)
    assert follower.link.record("u") == Absent()


async def test_another_epoch_makes_everything_unknown_until_its_snapshot(follower):
    follower.agent.records["u"] = a_record("u", 1)
    follower.agent.sequence = 1
    await follower.until(lambda: "u" in follower.link.records)
    follower.changed.clear()
    await follower.agent.replace()
    await follower.until(lambda: follower.link.epoch == "epoch-1'" and follower.link.synced)
    assert follower.link.record("u") == Absent()
    assert ("u", Step.RECORDED) in follower.changed
    assert follower.link.report.boot_id == "boot-1'"


def test_a_change_of_another_epoch_is_not_taken():
    follower = Follower()
    follower.link.epoch = "old"
    with pytest.raises(BeginAgain):
        follower.link._take(Change(epoch="new", sequence=1, execution=a_record("u", 1)))
    assert follower.link.records == {}


def test_of_answer_and_change_the_newer_holds():
    follower = Follower()
    follower.link.learn(a_record("u", 5, Step.RUNNING))
    follower.link.learn(a_record("u", 4))
    assert follower.link.records["u"].step is Step.RUNNING
    assert follower.changed == [("u", Step.RUNNING)]


async def test_an_answer_newer_than_the_snapshot_survives_it():
    follower = Follower()
    follower.link.epoch = "epoch-1"
    follower.link.learn(a_record("u", 9))
    follower.link._install(await follower.agent.snapshot())
    assert "u" in follower.link.records


@pytest.mark.parametrize("follower", [IMPATIENT], indirect=True)
async def test_silence_is_taken_for_death(follower):
    await follower.until(lambda: follower.link.synced)
    follower.agent.bookmark = 60
    follower.agent.hang = True
    await follower.until(lambda: follower.link.problem == "no answer in time")
    follower.agent.hang = False
    await follower.until(lambda: not follower.link.problem)


async def test_an_idle_node_is_not_accounted_again_and_again(follower):
    async def asked_again():
        before = len(follower.agent.calls)
        await follower.until(lambda: len(follower.agent.calls) > before + 3)

    await follower.until(lambda: follower.link.synced)
    await asked_again()
    seen = follower.accounted
    await asked_again()
    assert follower.accounted == seen, "it is the same as before"


async def test_the_stream_is_closed_with_the_link():
    follower = Follower()
    task = asyncio.create_task(follower.link.run())
    await follower.until(lambda: follower.agent.connections == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await follower.until(lambda: follower.agent.connections == 0)


async def test_calls_wait_for_a_turn_and_not_for_ever():
    follower = Follower()
    follower.link = Link(
        name="node-a",
        endpoint=NodeEndpoint("unix:///x", "node-a"),
        agent=follower.agent,
        clock=FixedClock(),
        changed=lambda _: None,
        accounted=lambda _: None,
        times=LinkTimes(turn=0.02),
        calls=2,
    )
    async with follower.link.turn(), follower.link.turn():
        with pytest.raises(errors.Unavailable) as caught:
            async with follower.link.turn():
                pass
        assert caught.value.reason == "NodeBusy"
    async with follower.link.turn():
        pass
