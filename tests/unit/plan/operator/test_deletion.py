"""An Execution that is being deleted, as a table: the whole plan."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.api import meta
from isolet.base import errors, names
from isolet.plan import binding, execution
from isolet.plan.actions import Emit, EventType, Flag, Release, Remove, WriteTombstone
from isolet.plan.model import (
    Absent,
    Cause,
    NodeFacts,
    Observed,
    Tombstone,
    Unknown,
    failure_of,
)
from isolet.plan.objects import read_execution
from isolet.wire.execution import Step, Waiting
from isolet.wire.node import Stray
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.shown import Shown, on_the_way, show
from tests.unit.plan.operator.test_bound import RAN, finished
from tests.unit.plan.operator.worlds import (
    NOW,
    UID,
    a_bound_execution,
    a_node,
    a_record,
    after,
    an_ended_record,
    an_execution,
    observed,
)

DELETED: dict[str, Any] = {
    "metadata": {"deletionTimestamp": meta.format_time(NOW), "generation": 3}
}
SILENT = "the agent of node n1 does not answer: what runs there may still run"
HOW_TO_RELEASE = (
    "If the node is gone for good, delete ExecutionNode n1; if it is off, set its"
    " spec.outOfService; to give up this object alone, annotate it with"
    " isolet.dev/force-release=<reason>"
)
BLOCKED = f"deletion waits for node n1: {SILENT}. {HOW_TO_RELEASE}"
NOT_YET = "deletion waits for node n1: it has not confirmed yet that nothing is left"
OFF = {"spec": {"outOfService": {"reason": "it burnt"}}}
REMOVE = Remove(node="n1", uid=UID)
GONE = a_record(step=Step.DISPOSED, removing=True, nothing_left=True)
CANNOT = failure_of(REMOVE, errors.Unavailable("the engine does not answer"))


def deleted(node: NodeFacts | None = None, *, at: float = 1, **more: Any) -> Observed:
    """A pass over a bound object whose deletion was asked for a second ago."""
    object_ = a_bound_execution(**worlds.merge(DELETED, more.pop("changes", {})))
    return observed(object_, nodes=(node or a_node(),), now=after(at), **more)


def release(seen: Observed) -> Release:
    return Release(object=seen.object.ref, finalizers=())


def waits(text: str) -> dict[str, str]:
    return on_the_way("AwaitingNode", text, Stalled=f"True AwaitingNode: {text}") | {
        "Scheduled": "True Bound: bound to node n1"
    }


def _no_reconciling(told: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in told.items() if k != "Reconciling"}


def event(seen: Observed, reason: str, text: str) -> Emit:
    return Emit(
        object=seen.object.ref,
        type=EventType.WARNING,
        reason=reason,
        message=text,
        key=names.short_digest(UID, reason),
    )


WAITS: dict[str, tuple[Observed, Shown]] = {
    "the agent is told": (
        deleted(a_node(record=a_record())),
        Shown(actions=(REMOVE,), told=_no_reconciling(waits(NOT_YET)), fields=RAN, look=10),
    ),
    "once it has been told, nothing is repeated": (
        deleted(a_node(record=a_record(removing=True))),
        Shown(told=_no_reconciling(waits(NOT_YET)), fields=RAN, look=10),
    ),
    "an agent without a record is asked too, so that a late start cannot come through": (
        deleted(),
        Shown(actions=(REMOVE,), told=_no_reconciling(waits(NOT_YET)), look=10),
    ),
    "what takes long is said": (
        deleted(
            a_node(
                record=a_record(
                    removing=True, waiting=Waiting(reason="Quarantined", message="volume is busy")
                )
            ),
            at=10,
        ),
        Shown(
            actions=(
                event(deleted(), "AwaitingNode", "deletion waits for node n1: volume is busy"),
            ),
            told=_no_reconciling(waits("deletion waits for node n1: volume is busy")),
            fields=RAN,
            write=True,
            look=40,
            flags=frozenset({Flag.CLEANUP_BLOCKED}),
        ),
    ),
    "silence is not a word": (
        deleted(a_node(record=a_record(), reachable=False)),
        Shown(
            actions=(event(deleted(), "AwaitingNode", BLOCKED),),
            told=_no_reconciling(waits(BLOCKED)),
            fields=RAN,
            write=True,
            look=31,
            flags=frozenset({Flag.CLEANUP_BLOCKED}),
        ),
    ),
    "a failed read is not absence": (
        deleted(a_node(record=Unknown(), synced=False), leader_since=NOW),
        Shown(
            told=_no_reconciling(
                waits(
                    "deletion waits for node n1: the agent of node n1 has not told yet what it has."
                    f" {HOW_TO_RELEASE}"
                )
            ),
            look=30,
        ),
    ),
    "nodes that could not be read are not deleted ones": (
        observed(
            a_bound_execution(**DELETED),
            nodes=(),
            nodes_complete=False,
            now=after(1),
            leader_since=NOW,
        ),
        Shown(
            told=_no_reconciling(
                waits(
                    "deletion waits for node n1: node n1 could not be read: what runs there may"
                    f" still run. {HOW_TO_RELEASE}"
                )
            ),
            look=30,
        ),
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits(name: str) -> None:
    seen, want = WAITS[name]
    assert show(execution.plan(seen)) == want


def test_the_agents_word_releases_it() -> None:
    seen = deleted(a_node(record=GONE))
    plan = execution.plan(seen)
    assert (plan.actions, plan.write_status) == ((release(seen),), False)


def test_what_had_ended_before_takes_its_record_and_output_along() -> None:
    ended = a_record(step=Step.DISPOSED, nothing_left=True)
    seen = deleted(a_node(record=ended))
    assert execution.plan(seen).actions == (REMOVE, release(seen))
    # It is asked for once, and an agent that cannot be asked holds nothing up.
    for seen in (
        deleted(a_node(record=ended), failure=CANNOT),
        deleted(a_node(record=ended, reachable=False)),
    ):
        assert execution.plan(seen).actions == (release(seen),)


def test_an_object_that_was_never_bound_goes_at_once() -> None:
    unbound = an_execution(
        metadata={**DELETED["metadata"], "finalizers": [meta.FINALIZER, "other.example/keep"]}
    )
    seen = observed(unbound, nodes=(a_node(record=Unknown(), synced=False),))
    assert execution.plan(seen).actions == (
        Release(object=seen.object.ref, finalizers=("other.example/keep",)),
    )


def test_without_our_finalizer_there_is_nothing_to_do_or_to_say() -> None:
    seen = deleted(a_node(record=a_record()), changes={"metadata": {"finalizers": ["other/one"]}})
    plan = execution.plan(seen)
    assert (plan.actions, plan.write_status, plan.status) == ((), False, seen.object.status)


def test_an_unbound_object_that_an_agent_has_is_removed_there_first() -> None:
    unbound = an_execution(metadata={**DELETED["metadata"], "finalizers": [meta.FINALIZER]})
    seen = observed(unbound, nodes=(a_node("n0"), a_node(record=a_record())))
    assert execution.plan(seen).actions == (REMOVE,)
    gone = observed(unbound, nodes=(a_node("n0"), a_node(record=GONE)))
    assert execution.plan(gone).actions == (release(gone),)


def given_up(seen: Observed, cause: Cause, why: str, detail: str = "") -> tuple[object, ...]:
    text = f"released without the word of node n1 that nothing is left: {why}"
    return (
        WriteTombstone(
            tombstone=Tombstone(
                uid=UID,
                namespace="team",
                name="hello",
                node="n1",
                cause=cause,
                detail=detail,
                written_at=seen.now,
            )
        ),
        event(seen, "ReleasedUnconfirmed", text),
        release(seen),
    )


FORCE = {"metadata": {"annotations": {meta.FORCE_RELEASE: " rack 7 was sold "}}}
REPLACED: dict[str, Any] = {"report": {"boot_id": "b2"}}

RELEASES: dict[str, tuple[Observed, Cause, str, str]] = {
    "the node's object was deleted": (
        observed(a_bound_execution(**DELETED), nodes=(), now=after(1)),
        Cause.NODE_DELETED,
        "ExecutionNode n1 was deleted",
        "",
    ),
    "the node was declared off": (
        deleted(a_node(record=a_record(), reachable=False, object_=OFF)),
        Cause.OUT_OF_SERVICE,
        "node n1 was declared out of service (it burnt)",
        "it burnt",
    ),
    "an administrator's last resort": (
        deleted(a_node(record=a_record(), reachable=False), changes=FORCE),
        Cause.FORCED,
        "annotation isolet.dev/force-release (rack 7 was sold)",
        "rack 7 was sold",
    ),
    "the node is back with another boot, without it, and cannot give its word": (
        deleted(a_node(**REPLACED), failure=CANNOT),
        Cause.NODE_REPLACED,
        "node n1 is back with another boot or store, and without it",
        "",
    ),
    "the node is back with another store, without it, and cannot give its word": (
        deleted(a_node(report={"epoch": "e2"}), failure=CANNOT),
        Cause.NODE_REPLACED,
        "node n1 is back with another boot or store, and without it",
        "",
    ),
}


@pytest.mark.parametrize("name", RELEASES)
def test_is_given_up_on_a_fact_that_somebody_stated(name: str) -> None:
    seen, cause, why, detail = RELEASES[name]
    plan = execution.plan(seen)
    assert plan.actions == given_up(seen, cause, why, detail)
    assert not plan.write_status


LEFT = Stray(kind="container", name="c", uid=UID, age_seconds=60)

KEEPS = {
    "a node that can be asked is asked": deleted(a_node(**REPLACED)),
    "the same boot and store": deleted(failure=CANNOT),
    "something of it is left": deleted(
        a_node(report={"boot_id": "b2", "strays": (LEFT,)}), failure=CANNOT
    ),
    "it still has the record": deleted(
        a_node(record=a_record(), report={"boot_id": "b2"}), failure=CANNOT
    ),
    "a node that was declared drained only": deleted(
        a_node(record=a_record(), object_={"spec": {"drain": {}, "unschedulable": True}})
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_is_not_given_up(name: str) -> None:
    assert execution.plan(KEEPS[name]).actions == (REMOVE,)


def test_a_confirmed_end_needs_no_tombstone() -> None:
    seen = deleted(a_node(record=GONE, object_=OFF, reachable=False))
    assert execution.plan(seen).actions == (release(seen),)


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": {"activeDeadlineSeconds": -1}},
        {"spec": {"command": "not a list"}},
        {"spec": {"className": None, "image": 7}},
        {"status": {"conditions": "nonsense"}},
        {"metadata": {"annotations": {binding.ANNOTATION: "nonsense"}}},
    ],
)
def test_an_object_that_cannot_be_read_can_still_be_deleted(broken: dict[str, Any]) -> None:
    raw = worlds.merge(worlds.bound_object(**DELETED), broken)
    seen = observed(read_execution(raw), nodes=(a_node(record=a_record()),))
    assert execution.plan(seen).actions == (REMOVE,)
    gone = replace(seen, nodes=(a_node(record=GONE),))
    assert execution.plan(gone).actions == (release(gone),)


def test_an_outcome_stands_while_the_deletion_is_blocked() -> None:
    seen = finished(a_node(record=an_ended_record(), reachable=False))
    leaving = replace(seen.object, metadata=deleted().object.metadata)
    plan = execution.plan(replace(seen, object=leaving))
    told = show(plan).told
    assert told["Succeeded"] == "True Succeeded: exited with code 0"
    assert told["Finished"] == "True Finished: Succeeded says how"
    assert told["Stalled"] == f"True AwaitingNode: {BLOCKED}"


def test_a_bound_object_of_which_nobody_ever_heard_waits_too() -> None:
    seen = deleted(a_node(record=Absent(), reachable=False))
    assert execution.plan(seen).actions[0] == event(seen, "AwaitingNode", BLOCKED)
