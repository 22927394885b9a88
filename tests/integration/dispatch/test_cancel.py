"""A cancellation at every step of a run on a real engine: one of the two wins, nothing is left.

The steps are those of the code (`DispatchStep`, and those of the transaction). At each, a
cancellation is begun and the agent goes on.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from isolet.agent.dispatch.steps import DispatchStep
from isolet.agent.steps import AgentStep
from isolet.base import errors, steps
from isolet.plan import reasons
from isolet.wire.dispatch import CancelAnswer
from tests.integration.dispatch.desk import Desk

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLACES = (*DispatchStep, AgentStep.ASSIGN_BEFORE, AgentStep.ASSIGN_AFTER)
ENDING = {
    DispatchStep.DESTROY_BEFORE,
    DispatchStep.DESTROY_AFTER,
    DispatchStep.END_AFTER,
    DispatchStep.CONCLUDE_AFTER,
}
"""Steps of a run that has ended by itself: a cancellation comes too late to change that."""


@dataclass
class Cancels:
    """Begins a cancellation when a step is reached, once."""

    desk: Desk
    uid: str
    at: str
    answer: "asyncio.Task[CancelAnswer] | None" = None
    running: list[str] = field(default_factory=list)

    def reach(self, step: str) -> None:
        if step == self.at and self.answer is None:
            self.answer = asyncio.get_running_loop().create_task(self.cancel())

    async def cancel(self) -> CancelAnswer:
        found = await self.desk.runs.cancel(self.uid)
        # Asked of the engine itself, at the moment of the answer.
        self.running = self.desk.witness.docker("ps", "-q", "--no-trunc").split()
        return found


async def outcome_of(desk: Desk, uid: str, answer: CancelAnswer) -> str:
    assert answer.known
    assert answer.dispatch is not None
    outcome = answer.dispatch.outcome
    assert outcome is not None
    assert (await desk.ended(uid)) == outcome
    return outcome.reason


@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_a_cancellation_at_each_step_is_confirmed_and_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (slot,) = await desk.slots()
    uid = desk.uid()
    cancels = Cancels(desk, uid, place)
    monkeypatch.setattr(steps, "_trap", cancels)
    work = [{"say": 1}] if place in ENDING else [{"say": 1}, {"sleep": 600}]
    await desk.begin(*work, uid=uid)
    if place == DispatchStep.STOP_BEFORE:  # of one that is cancelled already
        await desk.runs.cancel(uid)
    async with asyncio.timeout(120):
        while cancels.answer is None:
            await asyncio.sleep(0.01)
        reason = await outcome_of(desk, uid, await cancels.answer)
    assert reason == (reasons.SUCCEEDED if place in ENDING else reasons.CANCELLED)
    assert slot not in cancels.running
    await desk.clean()
    await desk.ready()


@pytest.mark.parametrize("when", ["ahead", "before the transaction", "after the transaction"])
async def test_a_cancellation_on_either_side_of_the_transaction(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before it the run is refused and its slot goes back; after it the run is ended."""
    (slot,) = await desk.slots()
    uid = desk.uid()
    answers: list[asyncio.Task[CancelAnswer]] = []
    assign = desk.node.store.assign

    async def around(*arguments: Any) -> Any:
        if when == "before the transaction":
            answers.append(asyncio.create_task(desk.runs.cancel(uid)))
            await asyncio.wait(answers)
        found = await assign(*arguments)
        if when == "after the transaction":
            answers.append(asyncio.create_task(desk.runs.cancel(uid)))
            await asyncio.wait(answers, timeout=0.2)
        return found

    monkeypatch.setattr(desk.node.store, "assign", around)
    if when == "ahead":
        answers.append(asyncio.create_task(desk.runs.cancel(uid)))
        await asyncio.wait(answers)
    (begun,) = await asyncio.gather(
        desk.begin({"say": 1}, {"sleep": 600}, uid=uid), return_exceptions=True
    )
    answer = await answers[0]
    if when == "after the transaction":
        assert begun == uid
        assert await outcome_of(desk, uid, answer) == reasons.CANCELLED
        assert slot not in await desk.slots()
    else:
        assert isinstance(begun, errors.Conflict)
        assert answer == CancelAnswer(known=False)
        assert await desk.slots() == [slot]
        assert (await desk.ended(await desk.begin({"say": 1}))).succeeded
    await desk.clean()


@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_a_cancellation_some_turns_after_the_beginning(desk: Desk, turns: int) -> None:
    """Whatever meets whatever: both answers agree, and so does the engine."""
    await desk.ready()
    (slot,) = await desk.slots()
    uid = desk.uid()

    async def late() -> CancelAnswer:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await desk.runs.cancel(uid)

    begun, answer = await asyncio.gather(
        desk.begin({"say": 1}, {"sleep": 600}, uid=uid), late(), return_exceptions=True
    )
    assert isinstance(answer, CancelAnswer)
    if isinstance(begun, errors.Conflict):
        assert answer == CancelAnswer(known=False)
        assert await desk.slots() == [slot]
    else:
        assert begun == uid
        assert await outcome_of(desk, uid, answer) == reasons.CANCELLED
    await desk.clean()
