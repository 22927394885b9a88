"""One node's status: an agent that is heard and fit, one change, and what is then said."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.api import conditions as cond
from isolet.api import meta
from isolet.api.conditions import Status
from isolet.api.executionnode import ExecutionNode
from isolet.plan import node
from isolet.plan.actions import Emit, NodePlan
from isolet.plan.model import Contact, NodePass
from isolet.wire.node import Amounts, Image, NodeCondition
from tests.unit.plan.operator.worlds import (
    GI,
    GOOD,
    NOW,
    a_node_object,
    a_report,
    after,
    merge,
)

HEARD = Contact(watched_since=0.0, heard_at=990.0, now=1000.0)
SILENT = Contact(watched_since=0.0, heard_at=980.0, now=1000.0)


def a_pass(object_: dict[str, Any] | None = None, **changes: Any) -> NodePass:
    base = NodePass(
        object=a_node_object(**(object_ or {})),
        contact=HEARD,
        report=a_report(),
        installation="isolet",
        now=NOW,
    )
    return replace(base, **changes)


def told(plan: NodePlan) -> dict[str, str]:
    return {c.type: f"{c.status} {c.reason}: {c.message}" for c in plan.status.conditions}


FIT = {
    "Ready": "True NodeReady: takes work",
    "Reachable": "True OK: the agent answers",
    "WireCompatible": "True OK: version 1 is spoken",
    "EngineReady": "True OK: ",
    "RuntimeQualified": "True OK: ",
    "CapacityLeft": "True OK: there is room",
}
NO_ANSWER = "nothing was heard of the agent for 20 s"
LAST_TRUE = "Unknown HeartbeatStale: when last heard of: True."
TURNED_AWAY = (
    "the agent answers: wire version 1 is not spoken here; spoken are 99: what runs is left alone"
    " and no new work is given; update the older of the two"
)
OLD_AGENT = (
    "the agent speaks 7, the operator 1: what runs is left alone and no new work is given; update"
    " the older of the two"
)


def given(kind: str, status: str, reason: str, message: str = "m") -> NodeCondition:
    return NodeCondition(type=kind, status=status, reason=reason, message=message)


SAYS: dict[str, tuple[NodePass, dict[str, str]]] = {
    "fit": (a_pass(), FIT),
    "silent for as long as it may not be": (
        a_pass(contact=SILENT),
        {
            **FIT,
            "Ready": f"False HeartbeatStale: {NO_ANSWER}",
            "Reachable": f"False HeartbeatStale: {NO_ANSWER}",
            "EngineReady": LAST_TRUE,
            "RuntimeQualified": LAST_TRUE,
        },
    ),
    "the last attempt says why": (
        a_pass(contact=replace(SILENT, problem="wrong CA", reason="CertificateRefused")),
        {
            **FIT,
            "Ready": "False CertificateRefused: wrong CA",
            "Reachable": "False CertificateRefused: wrong CA",
            "EngineReady": LAST_TRUE,
            "RuntimeQualified": LAST_TRUE,
        },
    ),
    "not heard of yet": (
        a_pass(contact=Contact(watched_since=990.0, now=1000.0), report=None),
        {
            "Ready": "Unknown NotProbed: not heard of yet",
            "Reachable": "Unknown NotProbed: not heard of yet",
            "WireCompatible": "Unknown NotProbed: ",
            "EngineReady": "Unknown NotProbed: not checked yet",
            "RuntimeQualified": "Unknown NotProbed: not checked yet",
            "CapacityLeft": "Unknown NotProbed: ",
        },
    ),
    "another version": (
        a_pass(report=a_report(wire_versions=(7,))),
        {
            **FIT,
            "Ready": f"False WireIncompatible: {OLD_AGENT}",
            "WireCompatible": f"False WireIncompatible: {OLD_AGENT}",
        },
    ),
    "an agent that answers only that it speaks another version": (
        a_pass(
            contact=Contact(
                watched_since=0.0,
                problem="wire version 1 is not spoken here; spoken are 99",
                reason="UnsupportedWireVersion",
                now=1000.0,
            ),
            report=None,
        ),
        {
            "Ready": f"False WireIncompatible: {TURNED_AWAY}",
            "Reachable": "True OK: the agent answers",
            "WireCompatible": f"False WireIncompatible: {TURNED_AWAY}",
            "EngineReady": "Unknown NotProbed: not checked yet",
            "RuntimeQualified": "Unknown NotProbed: not checked yet",
            "CapacityLeft": "Unknown NotProbed: ",
        },
    ),
    "a version between": (a_pass(report=a_report(wire_versions=(0, 1, 2))), FIT),
    "the engine hangs": (
        a_pass(
            report=a_report(
                conditions=(
                    given("EngineReady", "False", "EngineUnavailable", "does not answer"),
                    given("RuntimeQualified", "Unknown", "NotChecked", "not checked"),
                )
            )
        ),
        {
            **FIT,
            "Ready": "False EngineUnavailable: does not answer",
            "EngineReady": "False EngineUnavailable: does not answer",
            "RuntimeQualified": "Unknown NotProbed: not checked",
        },
    ),
    "a reason that is in no list becomes the one of its condition": (
        a_pass(
            report=a_report(
                conditions=(GOOD[0], given("RuntimeQualified", "False", "RuntimeUnusable", "why"))
            )
        ),
        {
            **FIT,
            "Ready": "False RuntimeUnqualified: why",
            "RuntimeQualified": "False RuntimeUnqualified: why",
        },
    ),
    "a condition that a later agent gives": (
        a_pass(report=a_report(conditions=(*GOOD, given("Moonphase", "Blue", "Any", "full")))),
        {
            **FIT,
            "Ready": "Unknown Unavailable: full",
            "Moonphase": "Unknown Unavailable: full",
        },
    ),
    "one capability is closed": (
        a_pass(
            report=a_report(conditions=(*GOOD, given("DiskWorkspaces", "False", "DiskUnusable")))
        ),
        {**FIT, "DiskWorkspaces": "False LoopDevicesMissing: m"},
    ),
    "everything is promised": (
        a_pass(report=a_report(allocated=Amounts(executions=50))),
        {**FIT, "CapacityLeft": "False NoCapacity: everything is promised"},
    ),
    "cordoned": (
        a_pass({"spec": {"unschedulable": True}}),
        {**FIT, "Ready": "False Cordoned: no new work: spec.unschedulable is set"},
    ),
    "draining": (
        a_pass({"spec": {"drain": {}}}, remaining=2),
        {
            **FIT,
            "Ready": "False Draining: no new work: spec.drain is set",
            "Drained": "False Draining: work is left; status.drain counts it",
        },
    ),
    "draining, and nothing known of what is left": (
        a_pass({"spec": {"drain": {}}}),
        {
            **FIT,
            "Ready": "False Draining: no new work: spec.drain is set",
            "Drained": "Unknown Draining: work is left; status.drain counts it",
        },
    ),
    "drained": (
        a_pass({"spec": {"drain": {}}}, remaining=0),
        {
            **FIT,
            "Ready": "False Draining: no new work: spec.drain is set",
            "Drained": "True OK: no work is left",
        },
    ),
    "declared off": (
        a_pass({"spec": {"outOfService": {"reason": "it burnt"}}}, contact=SILENT),
        {
            **FIT,
            "Ready": "False OutOfService: declared off: it burnt",
            "Reachable": f"False HeartbeatStale: {NO_ANSWER}",
            "EngineReady": LAST_TRUE,
            "RuntimeQualified": LAST_TRUE,
        },
    ),
    "another node's agent": (
        a_pass(report=a_report("n7")),
        {
            **FIT,
            "Ready": "False Conflict: the agent at https://n1.example:7443 says that it is node n7",
        },
    ),
    "an agent of another installation": (
        a_pass(report=a_report(installation="other")),
        {
            **FIT,
            "Ready": "False Conflict: the agent belongs to installation other, the operator to"
            " isolet",
        },
    ),
}


@pytest.mark.parametrize("name", SAYS)
def test_what_is_said_of_a_node(name: str) -> None:
    seen, want = SAYS[name]
    plan = node.plan(seen)
    assert told(plan) == want
    assert plan.write_status
    assert plan.actions == (), "what is seen for the first time did not happen just now"


def test_the_whole_account() -> None:
    report = a_report(
        images=tuple(Image(id=f"sha256:{n:064x}", tags=("b", "a", "a")) for n in range(203)),
        allocated=Amounts(cpu_millis=1500, memory_bytes=GI, disk_bytes=3 * GI, executions=2),
        now=after(0.5),
        quarantined=1,
        object_stores=("s3",),
    )
    found = node.plan(a_pass(report=report)).status.to_object()
    conditions, images = found.pop("conditions"), found.pop("images")
    assert len(conditions) == 6
    assert len(images) == 200
    assert images[0] == {"id": "sha256:" + "0" * 64, "tags": ["a", "b"]}
    assert found == {
        "observedGeneration": 1,
        "agentVersion": "0.1.0",
        "wireVersions": [1],
        "installation": "isolet",
        "storeEpoch": "e1",
        "bootID": "b1",
        "architecture": "amd64",
        "runtimes": ["runsc"],
        "features": ["DiskWorkspaces", "MemoryWorkspaces", "ObjectStore:s3"],
        "capacity": {"cpu": "8", "memory": "8Gi", "workspace": "100Gi", "executions": 50},
        "allocated": {"cpu": "1500m", "memory": "1Gi", "workspace": "3Gi", "executions": 2},
        "imagesOmitted": 3,
        "quarantined": 1,
        "heartbeatTime": meta.format_time(NOW),
    }


def written(seen: NodePass) -> ExecutionNode:
    """The object after the pass's status was written."""
    raw = merge(seen.object.to_object(), {"status": None})
    return ExecutionNode.model_validate(raw | {"status": node.plan(seen).status.to_object()})


def again(seen: NodePass, **changes: Any) -> NodePlan:
    return node.plan(replace(seen, object=written(seen), **changes))


BUSY = Amounts(memory_bytes=GI, executions=1)
FULL = Amounts(executions=50)


@pytest.mark.parametrize(
    ("changes", "write"),
    [
        ({}, False),
        ({"report": a_report(now=after(299))}, False),
        ({"report": a_report(now=after(300))}, True),
        ({"report": a_report(now=after(59), allocated=BUSY)}, False),
        ({"report": a_report(now=after(60), allocated=BUSY)}, True),
        ({"report": a_report(now=after(59), allocated=FULL)}, False),
        ({"report": a_report(now=after(-3600))}, True),
        ({"report": a_report(now=after(1), epoch="e2")}, True),
        ({"report": a_report(now=after(1), boot_id="b2")}, True),
        ({"contact": SILENT}, True),
    ],
    ids=[
        "nothing new",
        "a heartbeat",
        "a heartbeat after five minutes",
        "room changes with the work",
        "room, after a minute",
        "a node that is full for a moment",
        "the agent's clock was set back",
        "another store",
        "another boot",
        "silence",
    ],
)
def test_what_is_worth_a_write(changes: dict[str, Any], write: bool) -> None:
    assert again(a_pass(), **changes).write_status is write


def test_what_a_silent_agent_said_last_is_kept() -> None:
    plan = again(a_pass(), contact=SILENT, report=None)
    assert plan.status.capacity is not None
    assert plan.status.store_epoch == "e1"


@pytest.mark.parametrize(
    ("drain", "deadline"),
    [
        ({"deadlineSeconds": 60, "onDeadline": "Terminate"}, after(60)),
        ({"deadlineSeconds": 60}, None),
        ({}, None),
    ],
)
def test_a_drain_begins_when_it_is_first_seen_and_then_keeps_its_time(
    drain: dict[str, Any], deadline: Any
) -> None:
    seen = a_pass({"spec": {"drain": drain}}, remaining=3)
    first = node.plan(seen).status.drain
    assert first is not None
    assert (first.start_time, first.deadline, first.remaining) == (NOW, deadline, 3)
    later = replace(seen, object=written(seen), now=after(40), remaining=1)
    second = node.plan(later)
    assert second.status.drain == first.with_(remaining=1)
    assert not second.write_status, "what is left is told with the next heartbeat"
    assert node.drain_deadline(later.object) == deadline
    assert node.plan(replace(later, object=a_node_object())).status.drain is None


def test_a_drain_that_is_lifted_takes_its_condition_along() -> None:
    seen = a_pass({"spec": {"drain": {}}}, remaining=0)
    raw = merge(written(seen).to_object(), {"spec": {"drain": None}})
    plan = node.plan(replace(seen, object=ExecutionNode.model_validate(raw)))
    assert told(plan) == FIT
    assert plan.write_status


def events(plan: NodePlan) -> list[tuple[str, str]]:
    return [(a.type.value, a.reason) for a in plan.actions if isinstance(a, Emit)]


def test_an_event_when_a_node_stops_taking_work_and_when_a_drain_is_over() -> None:
    fit = a_pass()
    assert events(again(fit, contact=SILENT)) == [("Warning", "HeartbeatStale")]
    cut = replace(fit, object=written(fit), contact=SILENT)
    assert events(again(cut, contact=HEARD)) == []
    assert events(again(cut, now=after(60))) == []
    draining = a_pass({"spec": {"drain": {}}}, remaining=1)
    assert events(again(draining, remaining=0)) == [("Normal", "Drained")]


def test_each_silence_is_an_event_of_its_own() -> None:
    fit = a_pass()
    plans = [again(fit, contact=SILENT, now=after(t)) for t in (0, 100)]
    keys = {a.key for plan in plans for a in plan.actions if isinstance(a, Emit)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("contact", "heard", "look"),
    [
        (HEARD, True, 10.0),
        (replace(HEARD, heard_at=1000.0), True, 10.0),
        (replace(HEARD, heard_at=982.0), True, 2.0),
        (SILENT, False, 10.0),
        (Contact(watched_since=995.0, now=1000.0), False, 10.0),
        (Contact(watched_since=981.0, now=1000.0), False, 1.0),
    ],
)
def test_an_agent_is_heard_until_it_has_been_silent_for_too_long(
    contact: Contact, heard: bool, look: float
) -> None:
    assert node.is_heard(contact) is heard
    assert node.plan(a_pass(contact=contact)).look_again_in == look


def test_the_status_is_read_back_as_it_was_written() -> None:
    plan = node.plan(a_pass({"spec": {"drain": {}}}, remaining=1))
    again_ = type(plan.status).model_validate(plan.status.to_object())
    assert again_ == plan.status
    assert cond.status_of(again_.conditions, cond.READY) is Status.FALSE
