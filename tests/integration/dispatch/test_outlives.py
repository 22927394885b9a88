"""A run lives by its own budgets, though its slot, unused, would have been over long before."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from isolet.agent import watchdog
from isolet.agent.service import pool_records
from isolet.base import errors
from isolet.base.clock import SystemClock
from isolet.plan import pool as plan
from isolet.wire.dispatch import Budgets
from tests.integration.dispatch.desk import TRIAL, Desk, pool, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATE, IDLE, STARTUP = 4, 10, 4


@contextlib.contextmanager
def watched(desk: Desk) -> Iterator[None]:
    """A watchdog beside the agent, as a process of its own."""
    command = (sys.executable, "-m", "isolet.agent.watchdog")
    places = ("--deadlines", f"{desk.node.run}/deadlines.json", "--engine", desk.witness.socket)
    process = subprocess.Popen((*command, *places), stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None
        assert watchdog.is_alive(desk.node.run / "watchdog.jsonl")
    finally:
        process.terminate()
        process.wait(60)


async def test_a_run_outlives_its_slots_idle_time_and_what_is_added_to_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agent and watchdog are there the whole time; a slot beside it that nobody uses goes."""
    monkeypatch.setattr(pool_records, "LATE_SECONDS", LATE)
    # The agent forgets to retire slots: what ends the one beside it is its deadline.
    monkeypatch.setattr(plan, "_is_old", lambda wanted, slot, now: False)
    await desk.serve()
    runner = TRIAL.model_copy(update={"budgets": Budgets(startup_seconds=STARTUP)})
    short = pool(runner=runner, minimum=2, maximum=2).model_copy(
        update={"idle_timeout_seconds": IDLE}
    )
    life = pool_records.unused_life(short)
    assert life == STARTUP + IDLE + LATE
    clock = SystemClock()
    with watched(desk):
        await desk.put(short)

        async def begun() -> str | None:
            with contextlib.suppress(errors.Unavailable):
                return await desk.begin({"say": 1}, {"sleep": life + 2}, {"say": 2})
            return None

        uid = await until(begun)
        began = clock.boottime()
        record = await desk.node.store.get(uid)
        beside = await until(lambda: others(desk, record.container_id))
        assert (await desk.ended(uid)).succeeded
        assert clock.boottime() - began > life + watchdog.GRACE_SECONDS
        assert len(await desk.lines(uid)) == 4
        # Those that nobody used had exactly this life, and are gone.
        await until(lambda: are_gone(desk, beside))
    monkeypatch.undo()
    await desk.serve(pool())


async def others(desk: Desk, container: str) -> set[str]:
    return set(await desk.slots()) - {container, ""}


async def are_gone(desk: Desk, slots: set[str]) -> bool:
    return not slots & set(desk.witness.containers(desk.node.installation))
