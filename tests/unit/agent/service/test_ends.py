"""What an engine that was restarted says of ends, as a table over its start."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent.engine.base import Container, EngineEvent, Status
from isolet.agent.service import events as events_module
from isolet.agent.service.ends import End, Ends
from isolet.agent.service.events import EventLog
from isolet.plan.sandbox_model import Moment

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UP = NOON - timedelta(seconds=100)
"""When the engine was started: boot-time second 900 of NOON's 1000."""


def container(began: float, ended: float | None, status: Status = Status.EXITED) -> Container:
    """Times are seconds after the engine's start."""
    at = None if ended is None else UP + timedelta(seconds=ended)
    seen = SimpleNamespace(
        id="c1", status=status, started_at=UP + timedelta(seconds=began), finished_at=at
    )
    return cast(Container, seen)


def ends(log: EventLog, *, up_since: float | None = 900.0) -> Ends:
    async def since() -> float | None:
        return up_since

    moment = Moment(wall=NOON, boottime=1000.0, boot_id="boot")
    engine = SimpleNamespace(up_since=since)
    return Ends(cast(Any, SimpleNamespace(moment=lambda: moment, engine=engine)), log)


def the_log() -> EventLog:
    return EventLog(cast(Any, None), "here", on_event=lambda _: None, on_connect=lambda: None)


def died() -> EngineEvent:
    return EngineEvent(
        action="die", container_id="c1", container_name="one", labels={}, at=NOON, exit_code=0
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "SETTLE_SECONDS", 0.0)


WHOLE, LOST, MADE_UP = End(), End(output_lost=True), End(output_lost=True, made_up=True)

TABLE = {
    "ended while none ran: its code is kept": (container(-50, -1), False, LOST),
    "ended as the engine came up": (container(-50, 0.2), False, MADE_UP),
    "ended then, and the engine saw it": (container(-50, 0.2), True, WHOLE),
    "no time at all": (container(-50, None), False, MADE_UP),
    "ended later, its event was missed": (container(-50, 70), False, WHOLE),
    "of this engine's own, its event was missed": (container(0.5, 0.9), False, WHOLE),
    "still running": (container(-50, None, Status.RUNNING), False, WHOLE),
}


@pytest.mark.parametrize("name", TABLE)
async def test_an_end_is_taken_as_far_as_the_engine_can_know_it(name: str) -> None:
    seen, told, expected = TABLE[name]
    log = the_log()
    if told:
        await log._take(died())
    assert await ends(log).judge(seen) == expected


async def test_nothing_is_doubted_of_an_engine_whose_start_nobody_knows() -> None:
    judged = ends(the_log(), up_since=None)
    assert await judged.judge(container(-50, 0.2)) == WHOLE
    assert await judged.judge(container(-50, -1)) == WHOLE
