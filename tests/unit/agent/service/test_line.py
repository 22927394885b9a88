"""Who waits for a warm slot: in order, and nobody is passed."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from isolet.agent.service import pool_records
from isolet.agent.service.calm import Calm
from isolet.agent.service.line import Line
from isolet.agent.service.pools import Pools
from isolet.plan.sandbox_model import SandboxRecord, Seen, Stop
from isolet.wire.execution import Step
from isolet.wire.pool import PoolsWanted, PoolWanted, WhenEmpty
from tests.contract.store.records import NOON, a_record
from tests.unit.agent.service.specs import POOL, SPEC


def waiting(number: int, **changes: Any) -> SandboxRecord:
    """The record of one that came so many seconds after noon."""
    at = NOON + timedelta(seconds=number)
    return a_record(f"w{number}", created_at=at, class_name="warm", awaits_slot=True, **changes)


def test_places_are_by_age_whoever_joins_first() -> None:
    line = Line()
    assert all(line.join(waiting(n), "p") for n in (3, 1, 2))
    assert not line.join(waiting(1), "p")
    assert line.join(waiting(4), "q")
    assert (line.length("p"), line.length("q"), line.length("r")) == (3, 1, 0)
    assert line.first("p", 2) == ["w1", "w2"]
    assert [line.ahead(waiting(n), "p") for n in (1, 2, 3, 9)] == [0, 1, 2, 3]
    assert line.leave("w1") == "p"
    assert line.leave("w1") is None
    assert line.first("p", 2) == ["w2", "w3"]
    assert line.join(waiting(2), "q")
    assert (line.length("p"), line.first("q", 9)) == (1, ["w2", "w4"])


class World:
    """A pool whose slots come when the test says so."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.now = 100.0
        context: Any = SimpleNamespace(
            clock=SimpleNamespace(boottime=lambda: self.now), calm=Calm()
        )
        inputs: Any = SimpleNamespace(spec=lambda _: SPEC)
        node: Any = None
        self.pools = Pools(context, inputs, node, self.woken.append, lambda: None)
        self.wanted: PoolWanted = POOL.model_copy(update={"when_empty": WhenEmpty.WAIT})
        self.pools._want(PoolsWanted(pools=(self.wanted,)))

    def slot(self, uid: str) -> None:
        """One becomes ready."""
        new = pool_records.new(self.wanted, uid, "here", NOON)
        slot = new.with_(step=Step.RUNNING, container_id=uid, started_boottime=self.now)
        stream: Any = None
        self.pools._enter(slot, stream)

    def looks(self, *numbers: int) -> list[Seen]:
        """What they see, each in turn."""
        return [self.pools.outlook(waiting(number)) for number in numbers]

    def takes(self, number: int) -> bool:
        """Whether this one is given a slot now."""
        record = waiting(number)
        lease = self.pools.reserve(self.wanted, record, asked=False)
        if lease is None:
            return False
        self.pools.given(lease, record.uid)
        return True


@pytest.fixture
def world() -> World:
    return World()


def test_a_slot_goes_to_whoever_has_waited_longest(world: World) -> None:
    assert world.looks(3, 1, 2) == [Seen.UNKNOWN] * 3
    world.slot("s1")
    assert world.woken == ["w1"]
    assert world.looks(2, 3, 1) == [Seen.UNKNOWN, Seen.UNKNOWN, Seen.PRESENT]
    assert not world.takes(9), "one that has just come passes nobody"
    assert not world.takes(2)
    assert world.takes(1)
    world.slot("s2")
    world.slot("s3")
    assert world.looks(2, 3) == [Seen.PRESENT, Seen.PRESENT]
    assert not world.takes(9)
    world.slot("s4")
    assert world.takes(9), "there is one more than are waiting"
    assert world.takes(3)
    assert world.takes(2)


def test_one_that_goes_away_stands_in_nobodys_way(world: World) -> None:
    assert world.looks(1, 2) == [Seen.UNKNOWN] * 2
    world.slot("s1")
    stopped = waiting(1, stop=Stop(reason="Cancelled", message="cancelled"))
    world.woken.clear()
    assert world.pools.outlook(stopped) is Seen.ABSENT
    assert world.woken == ["w2"]
    assert world.looks(2) == [Seen.PRESENT]
    world.looks(1)
    world.woken.clear()
    world.pools.ended("w1")
    assert world.woken == ["w2"]


def test_a_slot_that_was_given_to_nobody_is_the_next_ones(world: World) -> None:
    world.slot("s1")
    lease = world.pools.reserve(world.wanted)
    assert lease is not None
    assert world.looks(1) == [Seen.UNKNOWN]
    world.woken.clear()
    world.pools.release(lease, gone=False)
    assert world.woken == ["w1"]
    assert world.looks(1) == [Seen.PRESENT]
