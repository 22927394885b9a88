"""Pieces of the status that have tables of their own: tails, times, what is read back."""

from datetime import timedelta
from typing import Any

import pytest

from isolet.api import conditions as cond
from isolet.api import execution as api
from isolet.api.conditions import Status
from isolet.plan import execution, status
from isolet.plan.status import Mark, Picture, Verdict
from tests.unit.plan.operator.worlds import (
    NOW,
    a_binding,
    a_bound_execution,
    a_node,
    a_pinned,
    a_record,
    after,
    an_ended_record,
    an_execution,
    observed,
)

TAILS: dict[str, tuple[bytes, int, str | None]] = {
    "nothing": (b"", 10, None),
    "not asked for": (b"hello", 0, None),
    "shorter than the bound": (b"hello\n", 10, "hello\n"),
    "exactly the bound": (b"hello", 5, "hello"),
    "an agent that sends too much": (b"hello", 3, "llo"),
    "whole characters": ("äöü".encode(), 6, "äöü"),
    "cut through a character": ("äöü".encode(), 5, "öü"),
    "cut through one of four bytes": ("x😀y".encode(), 4, "y"),
    "a character that was never ended": (b"ab\xe2\x82", 8, "ab\ufffd"),
    "broken bytes grow, and the front gives way": (b"abc\xff\xff", 5, "\ufffd"),
    "only broken bytes": (b"\xff\xff\xff\xff", 4, "\ufffd"),
    "fewer bytes than one sign for a broken one": (b"\xff\xff", 2, None),
    "control characters stay": (b"a\0b\r\x1b[0m", 20, "a\0b\r\x1b[0m"),
}


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_is_text_within_its_bound(name: str) -> None:
    data, limit, want = TAILS[name]
    found = status.tail(data, limit)
    assert found == want
    assert len((found or "").encode()) <= limit


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64])
def test_any_bytes_make_a_tail_within_its_bound(limit: int) -> None:
    noise = bytes((n * 89 + n // 7) % 256 for n in range(4096))
    for start in range(0, 4096, 13):
        found = status.tail(noise[start:], limit) or ""
        assert len(found.encode()) <= limit


@pytest.mark.parametrize(
    ("when", "want"),
    [
        (None, after(100)),
        (after(50), after(50)),
        (after(1000), after(100)),
        (after(-1000), NOW),
    ],
    ids=["unknown", "between", "in the future", "before it was made"],
)
def test_an_agents_time_is_kept_between_two_of_our_own(when: Any, want: Any) -> None:
    assert status.plausible(when, NOW, after(100)) == want


def put(stored: api.ExecutionStatus, picture: Picture, now: float) -> api.ExecutionStatus:
    object_ = a_bound_execution(status=stored.to_object())
    return status.compute(object_, picture, after(now))


RUNS = Picture(
    scheduled=Mark(Status.TRUE, "Bound", "b"),
    progress=Mark(Status.TRUE, "Running", "r"),
    binding=a_binding(),
    record=a_record(),
)
ENDED = Picture(
    verdict=Verdict(succeeded=False, reason="NodeLost", message="gone"), binding=a_binding()
)


def test_the_same_truth_is_the_same_bytes() -> None:
    first = put(api.ExecutionStatus(), RUNS, 10)
    assert put(first, RUNS, 500) == first
    assert first.model_dump_json() == put(first, RUNS, 500).model_dump_json()


def test_a_transition_is_dated_only_when_the_status_flips() -> None:
    first = put(api.ExecutionStatus(), RUNS, 10)
    waits = Picture(progress=Mark(Status.UNKNOWN, "NodeUnreachable", "n"), reconciling=True)
    second = put(first, waits, 50)
    succeeded = cond.get(second.conditions, cond.SUCCEEDED)
    assert succeeded is not None
    assert (succeeded.reason, succeeded.last_transition_time) == ("NodeUnreachable", after(10))
    third = put(second, ENDED, 90.7)
    succeeded = cond.get(third.conditions, cond.SUCCEEDED)
    assert succeeded is not None
    assert (succeeded.status, succeeded.last_transition_time) == (Status.FALSE, after(90))


def test_it_was_scheduled_when_it_was_bound() -> None:
    scheduled = cond.get(put(api.ExecutionStatus(), RUNS, 10).conditions, cond.SCHEDULED)
    assert scheduled is not None
    assert scheduled.last_transition_time == NOW


def test_an_outcome_is_never_taken_back() -> None:
    ended = put(api.ExecutionStatus(), ENDED, 10)
    for later in (
        RUNS,
        Picture(verdict=Verdict(succeeded=True, reason="Succeeded", message="s", exit_code=0)),
        Picture(binding=a_binding(), record=an_ended_record()),
    ):
        again = put(ended, later, 500)
        for kind in (cond.SUCCEEDED, cond.FINISHED, cond.STALLED):
            assert cond.get(again.conditions, kind) == cond.get(ended.conditions, kind)
        kept = ("completion_time", "exit_code", "output", "start_time")
        assert all(getattr(again, name) == getattr(ended, name) for name in kept)


def test_a_deadline_that_wobbles_does_not_rewrite_the_object() -> None:
    first = put(api.ExecutionStatus(), RUNS, 10)
    for seconds, moves in ((0.9, False), (-0.9, False), (2, True), (300, True)):
        deadline = after(600 + seconds)
        picture = Picture(**{**_fields(RUNS), "record": a_record(deadline_at=deadline)})
        again = put(first, picture, 20)
        assert (again.deadline != first.deadline) is moves


def _fields(picture: Picture) -> dict[str, Any]:
    return {name: getattr(picture, name) for name in Picture.__slots__}


def test_passing_conditions_go_and_foreign_ones_stay() -> None:
    foreign = cond.Condition(
        type="example.com/Reviewed",
        status=Status.TRUE,
        last_transition_time=NOW,
        reason="Yes",
        message="",
    )
    waits = Picture(
        progress=Mark(Status.UNKNOWN, "Preparing", "p"),
        reconciling=True,
        stalled=Mark(Status.TRUE, "AwaitingInputs", "a"),
    )
    first = put(api.ExecutionStatus(conditions=(foreign,)), waits, 10)
    assert [c.type for c in first.conditions] == [
        "Finished",
        "Succeeded",
        "Reconciling",
        "Stalled",
        "example.com/Reviewed",
    ]
    second = put(first, RUNS, 20)
    assert [c.type for c in second.conditions] == [
        "Scheduled",
        "Finished",
        "Succeeded",
        "example.com/Reviewed",
    ]
    assert second.conditions[-1] == foreign


def test_a_retention_is_told_where_there_is_something_to_keep() -> None:
    kept = a_binding(pinned=a_pinned(retain_seconds=300))
    seen = observed(
        a_bound_execution(kept), nodes=(a_node(record=an_ended_record()),), now=after(10)
    )
    assert execution.plan(seen).status.retained_until == after(3) + timedelta(seconds=300)
    never = an_ended_record(started_at=None)
    seen = observed(a_bound_execution(kept), nodes=(a_node(record=never),), now=after(10))
    plan = execution.plan(seen)
    assert plan.status.retained_until is None
    assert plan.status.output is None


def test_a_status_that_something_else_wrote_is_written_anew() -> None:
    seen = observed(an_execution(status={"conditions": [{"type": 7}], "exitCode": "x"}))
    assert seen.object.status == api.ExecutionStatus()
    assert seen.object.invalid == ""
