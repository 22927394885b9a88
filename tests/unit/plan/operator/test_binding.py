"""The binding: it is read back as it was written, and only where it belongs."""

from datetime import datetime
from typing import Any

import pytest

from isolet.plan import binding, messages, values
from isolet.plan.model import Absent, Input, InputRef, Known, Unknown
from isolet.wire.execution import (
    Amendment,
    EnvVar,
    ExecutionWanted,
    Medium,
    State,
    Step,
    Waiting,
)
from isolet.wire.node import Amounts
from tests.unit.plan.operator.worlds import (
    MI,
    a_binding,
    a_bound_execution,
    a_pinned,
    a_record,
    after,
    an_execution,
)


def test_it_is_read_back_as_it_was_written() -> None:
    bound = a_binding(
        bound_at=after(0.123456),
        pinned=a_pinned(
            inputs=(values.PinnedInput(kind="Secret", name="s", uid="u", resource_version="1"),),
            idle_timeout_seconds=5,
        ),
    )
    assert binding.read(a_bound_execution(bound)) == bound


def test_its_text_is_compact_and_the_same_each_time() -> None:
    text = a_binding().annotation()
    assert text == a_binding().annotation()
    assert " " not in text
    assert len(text) < 1200


@pytest.mark.parametrize(
    "change",
    [
        {"uid": "another object's"},
        {"version": 2},
        {"bound_at": datetime(2026, 1, 1)},  # noqa: DTZ001
    ],
)
def test_what_is_not_the_objects_own_is_not_read(change: dict[str, Any]) -> None:
    assert binding.read(a_bound_execution(a_binding(**change))) is None


def test_an_object_without_one_has_none() -> None:
    assert binding.read(an_execution()) is None


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({}, 600),
        ({"activeDeadlineSeconds": 5}, 5),
        ({"activeDeadlineSeconds": 3600}, 3600),
        ({"activeDeadlineSeconds": 3601}, 3600),
    ],
)
def test_the_deadline_is_the_objects_up_to_what_was_pinned(spec: Any, want: int) -> None:
    assert binding.deadline_seconds(an_execution(spec=spec), a_pinned()) == want


def test_the_deadline_of_an_adopted_object_is_left_as_it_is() -> None:
    assert binding.deadline_seconds(an_execution(), None) is None
    asked = an_execution(spec={"activeDeadlineSeconds": 5})
    assert binding.deadline_seconds(asked, None) == 5


ENV = [
    {"name": "PLAIN", "value": "ü"},
    {"name": "EMPTY", "value": ""},
    {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
    {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "modes", "key": "m"}}},
    {"name": "AGAIN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
]
KNOWN = {
    InputRef("Secret", "keys"): Known(
        Input(uid="s", resource_version="7", data={"k": b"\xff\xfe"})
    ),
    InputRef("ConfigMap", "modes"): Known(Input(uid="c", resource_version="8", data={"m": b"x"})),
}


def test_each_input_is_named_once_in_a_fixed_order() -> None:
    assert values.inputs_of(an_execution(spec={"env": ENV}).spec) == (
        InputRef("ConfigMap", "modes"),
        InputRef("Secret", "keys"),
    )
    assert values.inputs_of(None) == ()


def test_values_are_sent_byte_for_byte() -> None:
    wanted = messages.wanted(an_execution(spec={"env": ENV}), a_pinned(), KNOWN, 2)
    assert isinstance(wanted, ExecutionWanted)
    assert wanted.spec.env == (
        EnvVar(name="PLAIN", value="ü".encode()),
        EnvVar(name="EMPTY", value=b""),
        EnvVar(name="API_KEY", value=b"\xff\xfe", secret=True),
        EnvVar(name="MODE", value=b"x"),
        EnvVar(name="AGAIN", value=b"\xff\xfe", secret=True),
    )


def test_without_its_values_nothing_is_sent() -> None:
    found = messages.wanted(an_execution(spec={"env": ENV}), a_pinned(), {}, 2)
    assert found == values.Wait("AwaitingInputs", "Secret keys could not be read", sure=False)


def test_a_spec_that_cannot_be_read_is_not_sent() -> None:
    broken = an_execution(spec={"command": 7})
    found = messages.wanted(broken, a_pinned(), {}, 2)
    assert isinstance(found, values.Wait)
    assert found.reason == "InvalidSpec"


def test_the_message_about_a_broken_spec_shows_no_value() -> None:
    broken = an_execution(spec={"env": [{"name": "API_KEY", "value": "canary-42"}], "command": 7})
    assert "spec.command" in broken.invalid
    assert "API_KEY" in broken.invalid
    assert "canary" not in broken.invalid


@pytest.mark.parametrize(
    ("spec", "stop", "want"),
    [
        ({}, None, Amendment(generation=2, active_deadline_seconds=600)),
        (
            {"desiredState": "Terminated"},
            None,
            Amendment(generation=2, active_deadline_seconds=600, state=State.TERMINATED),
        ),
        (
            {},
            "Drained",
            Amendment(
                generation=2,
                active_deadline_seconds=600,
                state=State.TERMINATED,
                stop_reason="Drained",
            ),
        ),
        (
            {"desiredState": "Terminated"},
            "Drained",
            Amendment(generation=2, active_deadline_seconds=600, state=State.TERMINATED),
        ),
    ],
    ids=["as it is", "the owner's wish", "a drain", "the owner's wish comes before a drain"],
)
def test_what_is_mutable(spec: Any, stop: str | None, want: Amendment) -> None:
    object_ = a_bound_execution(spec=spec)
    assert binding.amendment(object_, a_binding(), stop) == want


@pytest.mark.parametrize(
    ("pinned", "want"),
    [
        (None, Amounts()),
        (a_pinned(), Amounts(cpu_millis=1000, memory_bytes=512 * MI, executions=1)),
        (
            a_pinned(medium=Medium.DISK),
            Amounts(cpu_millis=1000, memory_bytes=512 * MI, disk_bytes=64 * MI, executions=1),
        ),
    ],
)
def test_what_it_takes_of_a_node(pinned: Any, want: Amounts) -> None:
    assert binding.demand(pinned) == want


WAITS = Waiting(reason="AwaitingInputs", message="send it again")


@pytest.mark.parametrize(
    ("record", "want"),
    [
        (Absent(), True),
        (Unknown(), True),
        (Known(a_record(step=Step.RECORDED)), False),
        (Known(a_record(step=Step.RECORDED, waiting=WAITS)), True),
        (Known(a_record()), False),
    ],
)
def test_when_values_have_to_be_read(record: Any, want: bool) -> None:
    assert binding.needs_values(record) is want
