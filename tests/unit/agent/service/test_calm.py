"""What can wait does so while somebody is being given a slot, and not for ever."""

import asyncio
from typing import Any

import pytest

from isolet.agent.service import calm, worker
from isolet.agent.service.calm import Calm
from isolet.plan.sandbox_model import Kind, SlotPart, Stop
from isolet.wire.execution import Outcome, State
from tests.contract.store.records import a_record


class Clock:
    """It moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(calm.time, "monotonic", made.monotonic)
    monkeypatch.setattr(calm.asyncio, "sleep", made.sleep)
    return made


def run(work) -> None:
    """Drive a coroutine that waits for nothing but the clock above."""
    with pytest.raises(StopIteration):
        work.send(None)


def test_nobody_waits_where_nothing_was_given(clock: Clock) -> None:
    quiet = Calm()
    run(quiet.wait())
    run(quiet.lull())
    assert clock.slept == []


@pytest.mark.parametrize(
    ("wait", "seconds"), [("wait", calm.QUIET_SECONDS), ("lull", calm.LULL_SECONDS)]
)
def test_what_was_given_is_left_alone_for_a_moment(clock: Clock, wait: str, seconds: float) -> None:
    quiet = Calm()
    quiet.stir()
    clock.now += seconds / 4
    run(getattr(quiet, wait)())
    assert clock.now == pytest.approx(1000.0 + seconds)
    run(getattr(quiet, wait)())
    assert len(clock.slept) == 1


def test_nothing_waits_for_ever(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Calm()
    quiet.stir()

    async def stirred(seconds: float) -> None:
        for _ in range(4):
            await clock.sleep(seconds / 4)
            quiet.stir()

    monkeypatch.setattr(calm.asyncio, "sleep", stirred)
    run(quiet.wait())
    longest = calm.LONGEST_SECONDS
    assert clock.now == pytest.approx(1000.0 + longest)
    # Where there is no calm, nothing is put off a second time.
    run(quiet.wait())
    run(quiet.lull())
    assert clock.now == pytest.approx(1000.0 + longest)
    # After a moment of it, it begins anew.
    clock.now += 2 * calm.QUIET_SECONDS
    quiet.stir()
    monkeypatch.setattr(calm.asyncio, "sleep", clock.sleep)
    run(quiet.wait())
    assert clock.now == pytest.approx(1000.0 + longest + 3 * calm.QUIET_SECONDS)


GIVEN = {"slot": SlotPart(uid="slot-1", digest="d")}


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, False),
        ({"kind": Kind.SLOT}, True),
        ({"outcome": Outcome(succeeded=True, reason="Succeeded", message="")}, True),
        (GIVEN, True),
        (GIVEN | {"removing": True}, False),
        (GIVEN | {"state": State.TERMINATED}, False),
        (GIVEN | {"stop": Stop(reason="Cancelled", message="")}, False),
    ],
)
def test_which_looks_can_wait(changes: dict[str, Any], waits: bool) -> None:
    assert worker._can_wait(a_record("u1").with_(**changes)) is waits


async def test_on_a_loop() -> None:
    quiet = Calm()
    quiet.stir()
    began = asyncio.get_running_loop().time()
    await quiet.wait()
    assert asyncio.get_running_loop().time() - began >= calm.QUIET_SECONDS * 0.9
