"""A dispatch, as a table: the operator tells its end, and begins none."""

from typing import Any

import pytest

from isolet.api import meta
from isolet.plan import execution
from isolet.plan.actions import Amend, DeleteObject, Emit, Plan, Remove
from isolet.plan.model import Known, Observed, Unknown
from isolet.plan.objects import read_execution
from isolet.wire.execution import Amendment, Outcome, State
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.shown import show
from tests.unit.plan.operator.worlds import UID, a_node, a_record, after, an_ended_record

DISPATCH = {
    "runID": "run",
    "mode": "stream",
    "payloadDigest": "sha256:" + "0" * 64,
    "payloadBytes": 2,
}
TERMINATED = {"spec": {"desiredState": "Terminated"}, "metadata": {"generation": 2}}
GONE = a_record(nothing_left=True)
FENCE = Remove(node="n1", uid=UID, kind="Execution")
DONE = Outcome(
    succeeded=True, reason="Succeeded", message="the runner gave its result", exit_code=0
)


def seen(node: Any = None, at: float = 1, changes: Any = None, **more: Any) -> Observed:
    base = {"command": None, "image": None, "workspace": None, "dispatch": DISPATCH}
    spec = {**base, "nodeName": "n1", "ttlSecondsAfterFinished": 90_000}
    merged = worlds.merge({"spec": spec}, changes or {})
    raw = worlds.execution_object(**merged)
    nodes = (node,) if node is not None else (a_node(),)
    return worlds.observed(read_execution(raw), nodes=nodes, now=after(at), **more)


def passed(*args: Any, **more: Any) -> Plan:
    return execution.plan(seen(*args, **more))


def actions(plan: Plan) -> tuple[object, ...]:
    return tuple(a for a in plan.actions if not isinstance(a, Emit))


def reason(plan: Plan) -> str:
    return show(plan).told["Succeeded"].partition(":")[0]


def test_nothing_is_written_or_sent_while_it_runs() -> None:
    for at in (1, 30, 3000):
        plan = passed(a_node(record=a_record(generation=1)), at=at)
        assert not plan.write_status
        assert actions(plan) == ()


def test_a_run_that_was_just_made_is_left_to_its_front_door() -> None:
    plan = passed()
    assert not plan.write_status
    assert actions(plan) == ()
    assert plan.look_again_at is not None


def test_its_outcome_is_one_write() -> None:
    plan = passed(a_node(record=an_ended_record(DONE)))
    assert plan.write_status
    assert reason(plan) == "True Succeeded"
    assert "Ready" not in show(plan).told
    assert actions(plan) == ()


def test_a_run_that_nobody_handed_over_is_fenced_first_and_then_told() -> None:
    late = passed(at=60)
    assert actions(late) == (FENCE,)
    assert not late.write_status
    told = passed(a_node(record=GONE), at=61)
    assert reason(told) == "False StartUnconfirmed"


@pytest.mark.parametrize("record", [None, a_record(generation=1)])
def test_its_owner_may_end_it(record: Any) -> None:
    plan = passed(a_node(record=record), changes=TERMINATED)
    amend = Amend(node="n1", uid=UID, change=Amendment(generation=2, state=State.TERMINATED))
    assert actions(plan) == ((FENCE,) if record is None else (amend,))
    again = passed(a_node(record=a_record(generation=2)), changes=TERMINATED)
    assert actions(again) == ()
    assert reason(passed(a_node(record=GONE), changes=TERMINATED)) == "False Cancelled"


def test_one_that_was_cancelled_ahead_ends_without_a_node() -> None:
    plan = passed(changes={"spec": {"nodeName": None, "desiredState": "Terminated"}})
    assert reason(plan) == "False Cancelled"
    assert plan.write_status


def test_one_that_no_front_door_made_runs_nothing() -> None:
    plan = passed(changes={"spec": {"nodeName": None}})
    assert reason(plan) == "False Unsupported"
    assert actions(plan) == ()


def test_a_node_that_is_gone_or_silent() -> None:
    gone = execution.plan(worlds.replace(seen(), nodes=()))
    assert reason(gone) == "False NodeLost"
    silent = passed(a_node(record=Unknown(), reachable=False))
    assert reason(silent) == "Unknown NodeUnreachable"


def test_after_its_end_the_agent_forgets_it_and_in_time_it_is_deleted() -> None:
    node = a_node(record=an_ended_record(DONE))
    written = passed(node).status.to_object()
    changes = {"status": written}
    assert actions(passed(node, at=2, changes=changes)) == (FENCE,)
    assert actions(passed(a_node(record=GONE), at=2, changes=changes)) == ()
    last = passed(a_node(record=GONE), at=90_004, changes=changes)
    assert [type(a) for a in actions(last)] == [DeleteObject]


def test_it_is_given_no_finalizer_and_never_put() -> None:
    for node in (a_node(), a_node(record=Known(a_record())), a_node(record=GONE)):
        for at in (1, 100):
            assert all(isinstance(a, Remove) for a in actions(passed(node, at=at)))
    assert meta.FINALIZER not in seen().object.metadata.finalizers
