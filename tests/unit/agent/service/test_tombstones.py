"""What is forgotten of uids that are gone, and when."""

import asyncio
import contextlib
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolet.agent.service.tombstones import LIFE, purge_loop, served
from isolet.plan.sandbox_model import Moment
from tests.contract.store.records import NOON, moment
from tests.fakes.store import MemoryStore

HOUR = timedelta(hours=1)
UP = 30 * 3600.0
"""Seconds since the boot at which most of these are buried."""
YEAR = timedelta(days=365)


def at(wall: timedelta, boottime: timedelta, boot_id: str = "this") -> Moment:
    """So long after the burial, on each clock."""
    return Moment(wall=NOON + wall, boottime=UP + boottime.total_seconds(), boot_id=boot_id)


def up(hours: float, wall: timedelta) -> Moment:
    """So many hours after another boot."""
    return Moment(wall=NOON + wall, boottime=hours * 3600, boot_id="next")


BURIED = at(timedelta(), timedelta())


@pytest.mark.parametrize(
    ("now", "gone"),
    [
        # In the same boot.
        (at(timedelta(), timedelta()), False),
        (at(LIFE, LIFE), False),
        (at(LIFE + HOUR, LIFE + HOUR), True),
        (at(HOUR + 24 * HOUR, HOUR), False),  # The clock was set a day ahead,
        (at(YEAR, HOUR), False),  # or a year.
        (at(YEAR, LIFE - HOUR), False),
        (at(YEAR, LIFE + HOUR), True),
        (at(-HOUR, LIFE + HOUR), False),  # It was set back; then it goes later.
        (at(LIFE + HOUR, LIFE + 3 * HOUR), True),
        # In the next one: it has been up for less than it takes, or for more.
        (up(0, HOUR), False),
        (up(0, YEAR), False),
        (up(24, YEAR), False),
        (up(25, YEAR), False),
        (up(26, YEAR), True),
        (up(26, LIFE + HOUR), True),
        (up(26, HOUR), False),
        (up(40, YEAR), True),  # Later than it was buried in its own boot: two clocks.
    ],
)
def test_which_have_served_their_time(now: Moment, gone: bool) -> None:
    assert served(now).covers(BURIED) is gone


@given(
    reboots=st.lists(st.floats(0, 60), max_size=4),
    buried=st.floats(0, 60),
    passed=st.floats(0, 200),
    step=st.floats(-10_000, 10_000),
)
def test_no_step_of_the_clock_takes_one_away_early(
    reboots: list[float], buried: float, passed: float, step: float
) -> None:
    """All in hours: from its boot to the burial, from there to now, and to each reboot between."""
    number, clock, left = 0, buried, passed
    for hours in reboots:
        if left < hours:
            break
        number, clock, left = number + 1, 0.0, left - hours
    now = clock + left
    born = Moment(wall=NOON, boottime=buried * 3600, boot_id="0")
    wall = NOON + timedelta(hours=passed + step)
    gone = served(Moment(wall=wall, boottime=now * 3600, boot_id=str(number))).covers(born)
    assert not gone or passed >= 24
    # Whatever was, it goes once both have gone on for long enough.
    late = Moment(wall=NOON + YEAR * 9, boottime=(now + 26) * 3600, boot_id=str(number))
    assert served(late).covers(born)


class SmallSteps(MemoryStore):
    """Forgets three at a time, and says when there is nothing left to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = asyncio.Event()

    async def purge_tombstones(self, served, *, limit=3):
        gone = await super().purge_tombstones(served, limit=3)
        if not gone:
            self.idle.set()
        return gone


async def test_all_that_have_served_their_time_go_at_once_however_many() -> None:
    store = SmallSteps()
    for number in range(20):
        await store.bury(f"old-{number}", at=moment())
    await store.bury("young", at=moment(NOON + timedelta(hours=2)))
    now = moment(NOON + LIFE + timedelta(hours=1))
    context = SimpleNamespace(store=store, moment=lambda: now)
    task = asyncio.create_task(purge_loop(cast(Any, context)))
    async with asyncio.timeout(60):
        await store.idle.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    _, left, _ = await store.changed_since(0)
    assert [tombstone.uid for tombstone in left] == ["young"]
