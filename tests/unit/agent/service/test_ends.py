"""What an engine that was restarted says of ends: over its stream of events."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent.engine.base import Container, EngineEvent, Status
from isolet.agent.service import events as events_module
from isolet.agent.service.ends import End, Ends
from isolet.agent.service.events import EventLog
from isolet.base import errors
from isolet.plan.sandbox_model import Moment, SandboxRecord, Stop
from unit.plan.worlds import Step, a_record

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = 1000.0
"""NOON, on the boot-time clock."""


class World:
    """An engine that is restarted, and the stream of its events."""

    def __init__(self) -> None:
        self.up_at: float | None = 900.0
        self.told: asyncio.Queue[EngineEvent | None] = asyncio.Queue()
        self.connects = 0
        moment = Moment(wall=NOON, boottime=NOW, boot_id="boot")
        context: Any = SimpleNamespace(
            moment=lambda: moment,
            engine=self,
            installation="here",
            clock=SimpleNamespace(boottime=lambda: 904.0),
        )
        self.log = EventLog(context, on_event=lambda _: None, on_connect=self.connected)
        self.ends = Ends(context, self.log)

    def connected(self) -> None:
        self.connects += 1

    async def info(self) -> None:
        """It answers."""

    async def up_since(self) -> float | None:
        return self.up_at

    async def events(self, **_: object) -> AsyncIterator[EngineEvent]:
        while (event := await self.told.get()) is not None:
            yield event
        raise errors.Unavailable("the engine went away")

    async def judge(self, record: SandboxRecord, seen: Container) -> End | None:
        """None: it is to be looked at again."""
        try:
            return await self.ends.judge(record, seen)
        except errors.Unavailable:
            return None

    async def judge_in_the_end(self, record: SandboxRecord, seen: Container) -> End:
        async with asyncio.timeout(60):
            while (end := await self.judge(record, seen)) is None:
                await asyncio.sleep(0.001)
        return end


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(events_module, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(events_module, "RECONNECT_SECONDS", 0.0)
    return World()


def container(code: int, ended: float | None, status: Status = Status.EXITED) -> Container:
    at = None if ended is None else NOON + timedelta(seconds=ended - NOW)
    return cast(Container, SimpleNamespace(id="c1", status=status, exit_code=code, finished_at=at))


def record(began: float = 850.0, **changes: object) -> SandboxRecord:
    base = {"boot_id": "boot", "started_boottime": began, "dispatched_boottime": began - 1}
    return a_record(Step.RUNNING, **{**base, **changes})


def died(code: int) -> EngineEvent:
    return EngineEvent(
        action="die", container_id="c1", container_name="one", labels={}, at=NOON, exit_code=code
    )


UNKNOWN = End(output_lost=True, unknown=True)
STOP = Stop(reason="Cancelled", message="cancelled")

# Record, container, what the stream tells.
JUDGED = {
    "still running": (record(), container(0, None, Status.RUNNING), [], End()),
    "made up": (record(), container(0, 900.2), [], UNKNOWN),
    "made up, at no time": (record(), container(0, None), [], UNKNOWN),
    "true, and the engine saw it": (record(), container(0, 903.5), [died(0)], End(code=0)),
    "the engine before it saw another end": (record(), container(0, 900.2), [died(3)], End(code=3)),
    "while none ran": (record(), container(0, 899.0), [], End(code=0, output_lost=True)),
    "of this engine's own": (record(901.0), container(0, 902.0), [], End(code=0)),
    "dispatched to this engine": (
        record(started_boottime=None, dispatched_boottime=901.0),
        container(255, 902.0),
        [],
        End(code=255),
    ),
    "of another boot, made up or not": (record(boot_id="old"), container(0, 900.2), [], UNKNOWN),
    "of another boot": (
        record(boot_id="old"),
        container(3, 900.2),
        [],
        End(code=3, output_lost=True),
    ),
}


@pytest.mark.parametrize("name", JUDGED)
async def test_an_end_is_taken_as_far_as_the_engine_can_know_it(world: World, name: str) -> None:
    seen, of, told, expected = JUDGED[name]
    for event in told:
        world.told.put_nowait(event)
    following = asyncio.create_task(world.log.run(NOON))
    assert await world.judge_in_the_end(seen, of) == expected
    following.cancel()


async def test_what_was_told_by_an_engine_that_has_gone_is_remembered(world: World) -> None:
    world.up_at = 500.0
    following = asyncio.create_task(world.log.run(NOON))
    world.told.put_nowait(died(3))
    world.told.put_nowait(None)
    async with asyncio.timeout(60):
        while world.connects < 2:
            await asyncio.sleep(0.001)
    world.up_at = 900.0
    assert await world.judge_in_the_end(record(400.0), container(0, 900.2)) == End(code=3)
    following.cancel()


async def test_events_that_were_not_read_prove_nothing(world: World) -> None:
    assert await world.judge(record(), container(0, 900.2)) is None
    following = asyncio.create_task(world.log.run(NOON))
    assert await world.judge_in_the_end(record(), container(0, 900.2)) == UNKNOWN
    following.cancel()


async def test_the_stream_of_an_engine_that_was_replaced_unseen_is_opened_anew(
    world: World,
) -> None:
    world.up_at = 500.0
    following = asyncio.create_task(world.log.run(NOON))
    async with asyncio.timeout(60):
        while not world.connects:
            await asyncio.sleep(0.001)
    world.up_at = 900.0
    assert await world.judge_in_the_end(record(), container(0, 900.2)) == UNKNOWN
    assert world.connects == 2
    assert list(world.log.eras) == [500.0, 900.0]
    following.cancel()


async def test_whoever_is_being_ended_is_not_waited_for(world: World) -> None:
    # There is no stream that would ever say anything.
    assert await world.judge(record(stop=STOP), container(0, 900.2)) == UNKNOWN


async def test_an_end_is_judged_once(world: World) -> None:
    following = asyncio.create_task(world.log.run(NOON))
    assert await world.judge_in_the_end(record(), container(0, 900.2)) == UNKNOWN
    following.cancel()
    world.up_at = 950.0
    assert await world.judge(record(), container(0, 900.2)) == UNKNOWN
    world.ends.forget(record().uid)
    assert await world.judge(record(), container(0, 960.0)) is None


async def test_nothing_is_doubted_of_an_engine_that_nobody_can_see(world: World) -> None:
    world.up_at = None
    assert await world.judge(record(), container(0, 900.2)) == End(code=0)


async def test_an_engine_that_goes_again_is_not_one_that_nobody_can_see(world: World) -> None:
    """It made an end up as it came, and was killed before anybody asked since when it was up."""
    following = asyncio.create_task(world.log.run(NOON))
    async with asyncio.timeout(60):
        while not world.log.eras:
            await asyncio.sleep(0.001)
    world.up_at = None
    assert await world.judge(record(), container(0, 900.2)) is None
    world.up_at = 900.0
    assert await world.judge_in_the_end(record(), container(0, 900.2)) == UNKNOWN
    following.cancel()
