from datetime import UTC, datetime, timedelta

import pydantic
import pytest

from isolet.api import conditions
from isolet.api.conditions import Condition, Status

T0 = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)


def put(
    listed: tuple[Condition, ...],
    kind: str,
    status: Status,
    reason: str = "Pending",
    message: str = "",
    generation: int = 1,
    now: datetime = T0,
) -> tuple[Condition, ...]:
    return conditions.put(listed, kind, status, reason, message, generation=generation, now=now)


def test_the_first_one() -> None:
    (found,) = put((), "Ready", Status.UNKNOWN, "Preparing", "soon")
    assert found.to_object() == {
        "type": "Ready",
        "status": "Unknown",
        "reason": "Preparing",
        "message": "soon",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }


def test_writing_the_same_truth_again_changes_nothing() -> None:
    listed = put((), "Ready", Status.TRUE)
    assert put(listed, "Ready", Status.TRUE, now=T1) == listed


def test_another_reason_does_not_move_the_transition() -> None:
    listed = put((), "Ready", Status.FALSE)
    (found,) = put(listed, "Ready", Status.FALSE, "NodeFull", "x", generation=2, now=T1)
    assert (found.reason, found.message, found.observed_generation) == ("NodeFull", "x", 2)
    assert found.last_transition_time == listed[0].last_transition_time


def test_a_flip_does() -> None:
    listed = put((), "Ready", Status.FALSE)
    (found,) = put(listed, "Ready", Status.TRUE, now=T1)
    assert found.last_transition_time == T1.replace(microsecond=0)


def test_the_order_is_kept() -> None:
    listed: tuple[Condition, ...] = ()
    for kind in ("Scheduled", "Ready", "Finished"):
        listed = put(listed, kind, Status.UNKNOWN)
    listed = put(listed, "Ready", Status.TRUE)
    assert [c.type for c in listed] == ["Scheduled", "Ready", "Finished"]
    assert [c.type for c in conditions.drop(listed, "Ready")] == ["Scheduled", "Finished"]


@pytest.mark.parametrize("outcome", [Status.TRUE, Status.FALSE])
@pytest.mark.parametrize("later", list(Status))
def test_an_outcome_is_written_once(outcome: Status, later: Status) -> None:
    listed = put((), conditions.SUCCEEDED, outcome, "Succeeded")
    assert put(listed, conditions.SUCCEEDED, later, "NodeLost", now=T1) == listed
    assert conditions.is_decided(listed, conditions.SUCCEEDED)


def test_the_end_is_not_taken_back() -> None:
    waiting = put((), conditions.FINISHED, Status.FALSE)
    ended = put(waiting, conditions.FINISHED, Status.TRUE)
    assert conditions.is_true(ended, conditions.FINISHED)
    assert put(ended, conditions.FINISHED, Status.FALSE, now=T1) == ended


def test_a_missing_one_is_unknown() -> None:
    assert conditions.get((), "Ready") is None
    assert conditions.status_of((), "Ready") is Status.UNKNOWN
    assert not conditions.is_true((), "Ready")
    assert not conditions.is_decided((), conditions.SUCCEEDED)


def test_a_message_is_cut_to_what_kubernetes_takes() -> None:
    (found,) = put((), "Ready", Status.FALSE, "Pending", "x" * 40_000)
    assert len(found.message) == 32_768


@pytest.mark.parametrize("reason", ["", "not one word", "1st"])
def test_a_reason_is_one_word(reason: str) -> None:
    with pytest.raises(pydantic.ValidationError):
        put((), "Ready", Status.FALSE, reason)


def test_every_type_has_a_meaning() -> None:
    types = {
        *conditions.EXECUTION_TYPES,
        *conditions.PROCESS_TYPES,
        *conditions.CHECKPOINT_TYPES,
        *conditions.CLASS_TYPES,
        *conditions.NODE_TYPES,
    }
    assert types == conditions.MEANINGS.keys()
