"""What an agent that was away for longer than a run may take makes of what it finds."""

import pytest

from isolet.plan import reasons
from tests.fakes.slots import FakeSlot
from tests.unit.agent.dispatch.test_service import DONE, PROGRESS, Node, node, read, wanted

__all__ = ["node"]

BUDGETS = wanted().budgets


async def it_works(node: Node, slot: FakeSlot) -> float:
    await read(node, PROGRESS, slot)
    return BUDGETS.execution_seconds


async def its_document_is_on_its_way(node: Node, slot: FakeSlot) -> float:
    assert not slot.stdin
    return BUDGETS.startup_seconds


async def it_has_given_its_result(node: Node, slot: FakeSlot) -> float:
    await read(node, DONE, slot)
    return BUDGETS.finalization_seconds


WHEN = (it_works, its_document_is_on_its_way, it_has_given_its_result)


async def begun(node: Node, when) -> FakeSlot:
    blocks = when is its_document_is_on_its_way
    node.slots.prepare = lambda slot: setattr(slot, "blocks", blocks)
    return await node.begin()


@pytest.mark.parametrize("when", WHEN)
async def test_a_run_that_ended_well_meanwhile_has_succeeded(node: Node, when) -> None:
    slot = await begun(node, when)
    budget = await when(node, slot)
    await node.service.close()
    if DONE not in slot.stdout:
        slot.writes(DONE)
    slot.ends(0)
    node.clock.advance(budget + 1)
    await node.restart()
    lines = await node.lines()
    assert lines[-1].ended is not None
    assert lines[-1].ended.succeeded, lines[-1].ended
    assert lines[-2].event is not None
    assert lines[-2].event.event["payload"] == {"answer": 42}


LATE = {
    it_works: reasons.DEADLINE_EXCEEDED,
    its_document_is_on_its_way: reasons.START_UNCONFIRMED,
}


@pytest.mark.parametrize("ended", [None, 137], ids=["it lives", "it was killed"])
@pytest.mark.parametrize("when", LATE)
async def test_one_that_did_not_is_late(node: Node, when, ended: int | None) -> None:
    slot = await begun(node, when)
    budget = await when(node, slot)
    await node.service.close()
    if ended is not None:
        slot.ends(ended)
    node.clock.advance(budget + 1)
    await node.restart()
    assert (await node.outcome()).reason == LATE[when]
