"""An Execution that starts from a Checkpoint: what it waits for, where it goes, what it is told."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.plan import admission, execution, restoring
from isolet.plan.actions import Bind, Plan, Put, Source
from isolet.plan.binding import Pinned
from isolet.plan.model import Absent, ErrorKind, Failure, Known, NodeFacts, Observed, Unknown
from isolet.plan.values import Refusal, Wait
from isolet.wire.checkpoint import Restore, StoreCopy
from isolet.wire.execution import ExecutionWanted, Medium, Step, Waiting
from tests.unit.plan.operator import checkpoint_worlds as cw
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.checkpoint_worlds import (
    CKPT,
    COPY,
    GONE_OFF,
    NODE_LOCATION,
    STORE_LOCATION,
    a_node,
    a_whole_record,
    origin,
    restored,
)
from tests.unit.plan.operator.shown import emitted, show
from tests.unit.plan.operator.worlds import (
    IMAGE,
    IMAGE_ID,
    MI,
    RESOURCES,
    TAG,
    a_bound_execution,
    a_class,
    a_pinned,
    a_record,
    after,
    an_execution,
    observed,
)

SPEC: dict[str, Any] = {"image": None, "restoreFrom": {"checkpointName": "saved"}}
EMPTY = {name: None for name in ("cpu", "memory", "workspace", "tmp", "shm", "pids", "output")}
BARE: dict[str, Any] = {"resources": {"default": EMPTY}}


def seen_from(checkpoint: Any = None, spec: Any = None, rules: Any = None, **c: Any) -> Observed:
    """A new Execution that restores Checkpoint `saved`, which is on n1."""
    base: dict[str, Any] = {
        "checkpoint": checkpoint or Known(origin()),
        "classes": Known((a_class(**(rules or BARE)),)),
        "nodes": (a_node("n1", a_whole_record()), a_node("n2")),
    }
    return observed(an_execution(spec=SPEC | (spec or {})), **{**base, **c})


# Which Checkpoint, and what it gives.

PINNED = a_pinned(restored=restored())

ADMITTED: dict[str, tuple[Observed, Pinned | Refusal | Wait]] = {
    "restoreFrom alone": (seen_from(), PINNED),
    "the class's defaults are last": (
        seen_from(rules={"images": {"default": IMAGE_ID, "allowed": [IMAGE, IMAGE_ID]}}),
        PINNED,
    ),
    "an image of its own": (
        seen_from(
            spec={"image": IMAGE_ID}, rules={**BARE, "images": {"allowed": [IMAGE_ID, IMAGE]}}
        ),
        PINNED.model_copy(update={"image": IMAGE_ID, "run": IMAGE_ID}),
    ),
    "a bound of its own": (
        seen_from(spec={"resources": {"pids": 7}}),
        PINNED.model_copy(update={"resources": RESOURCES.model_copy(update={"pids": 7})}),
    ),
    "a tag, as what it stood for": (
        seen_from(
            Known(origin(status={"image": TAG})),
            rules={**BARE, "images": {"allowed": [TAG], "resolveTags": True}},
        ),
        PINNED.model_copy(update={"image": TAG, "run": IMAGE_ID}),
    ),
    "a Disk workspace from one in memory": (
        seen_from(spec={"workspace": {"medium": "Disk"}}),
        PINNED.model_copy(update={"medium": Medium.DISK}),
    ),
    "nothing of that name": (
        seen_from(Absent()),
        Wait("AwaitingCheckpoint", "Checkpoint saved is not there"),
    ),
    "not read": (
        seen_from(Unknown()),
        Wait("AwaitingCheckpoint", "Checkpoint saved could not be read", sure=False),
    ),
    "being taken": (
        seen_from(Known(cw.read_checkpoint(cw.bound_object()))),
        Wait("AwaitingCheckpoint", "Checkpoint saved is not ready yet"),
    ),
    "being deleted": (
        seen_from(Known(origin(**cw.DELETING))),
        Wait("AwaitingCheckpoint", "Checkpoint saved is being deleted"),
    ),
    "failed": (
        seen_from(
            Known(
                origin(
                    status={
                        "manifestDigest": None,
                        "conditions": [
                            {
                                "type": "Ready",
                                "status": "False",
                                "reason": "CheckpointQuota",
                                "message": "no room",
                                "lastTransitionTime": "2026-01-01T12:00:00Z",
                            }
                        ],
                    }
                )
            )
        ),
        Refusal("CheckpointUnavailable", "Checkpoint saved failed: CheckpointQuota: no room"),
    ),
    "an image that the class no longer allows": (
        seen_from(rules={**BARE, "images": {"allowed": [IMAGE_ID]}}),
        Refusal(
            "ImageNotAllowed",
            f"image {IMAGE} is not among those that ExecutionClass standard allows",
        ),
    ),
    "more than the class allows": (
        seen_from(rules={"resources": {"default": EMPTY, "maximum": {"pids": 100}}}),
        Refusal(
            "ResourcesNotAllowed",
            "over the maximum of ExecutionClass standard: pids 128 (at most 100)",
        ),
    ),
    "just room enough": (
        seen_from(
            Known(origin(status={"sizeBytes": 8 * MI})), spec={"resources": {"workspace": "8Mi"}}
        ),
        PINNED.model_copy(
            update={"resources": RESOURCES.model_copy(update={"workspace_bytes": 8 * MI})}
        ),
    ),
    "a byte too much": (
        seen_from(
            Known(origin(status={"sizeBytes": 8 * MI + 1})),
            spec={"resources": {"workspace": "8Mi"}},
        ),
        Refusal(
            "CheckpointTooLarge",
            "resources.workspace 8Mi is smaller than Checkpoint saved, which holds 8388609 bytes",
        ),
    ),
}


@pytest.mark.parametrize("name", ADMITTED)
def test_admission(name: str) -> None:
    seen, want = ADMITTED[name]
    assert admission.admit(seen) == want


def test_waiting_is_told_and_ends_with_the_scheduling_deadline() -> None:
    seen = seen_from(Absent(), {"schedulingDeadlineSeconds": 60}, now=after(30))
    found = show(execution.plan(seen))
    assert found.told["Scheduled"] == "False AwaitingCheckpoint: Checkpoint saved is not there"
    assert found.write
    over = show(execution.plan(replace(seen, now=after(59))))
    assert over.told["Succeeded"] == (
        "False SchedulingDeadlineExceeded: no node was bound within 60 s: Checkpoint saved is not"
        " there"
    )


# Where it goes.


def away(name: str = "n1", **changes: Any) -> NodeFacts:
    """A node with the copy that takes no work."""
    return a_node(name, a_whole_record(**changes), object_={"spec": {"drain": {}}})


def silent(**changes: Any) -> NodeFacts:
    return a_node("n1", a_whole_record(**changes), reachable=False)


FROM_N1 = Source(
    checkpoint_uid=CKPT,
    reader="n2",
    peer="n1",
    peer_name="n1",
    endpoint="https://n1.example:7443",
)
HERE = Source(checkpoint_uid=CKPT)
STORED = Source(checkpoint_uid=CKPT, in_store=COPY)
IN_BOTH = Known(origin(NODE_LOCATION, STORE_LOCATION))
BIG_AND_EMPTY = {"report": {"allocated": worlds.Amounts()}}
BUSY = worlds.Amounts(memory_bytes=6 * worlds.GI)

PLACED: dict[str, tuple[Observed, tuple[str, Source] | tuple[str, str]]] = {
    "where the copy is": (seen_from(), ("n1", HERE)),
    "where the copy is, however full": (
        seen_from(nodes=(a_node("n1", a_whole_record(), report={"allocated": BUSY}), a_node("n2"))),
        ("n1", HERE),
    ),
    "elsewhere, from a node that is drained": (
        seen_from(nodes=(away(), a_node("n2"))),
        ("n2", FROM_N1),
    ),
    "elsewhere, from a node that is cordoned": (
        seen_from(
            nodes=(
                a_node("n1", a_whole_record(), object_={"spec": {"unschedulable": True}}),
                a_node("n2"),
            )
        ),
        ("n2", FROM_N1),
    ),
    "elsewhere, by other names in certificates": (
        seen_from(
            nodes=(
                a_node(
                    "n1",
                    a_whole_record(),
                    object_={"spec": {"serverName": "one", "drain": {}}},
                ),
                a_node("n2", object_={"spec": {"serverName": "two"}}),
            )
        ),
        ("n2", replace(FROM_N1, reader="two", peer_name="one")),
    ),
    "from a store when its node is silent": (
        seen_from(IN_BOTH, nodes=(silent(in_store=COPY), a_node("n2", stores=("s3",)))),
        ("n2", STORED),
    ),
    "from a store when its node is gone": (
        seen_from(IN_BOTH, nodes=(a_node("n2", stores=("s3",)),)),
        ("n2", STORED),
    ),
    "from either, the store where its node fails": (
        seen_from(IN_BOTH, nodes=(away(in_store=COPY), a_node("n2", stores=("s3",)))),
        ("n2", replace(FROM_N1, in_store=COPY)),
    ),
    "only where the store is": (
        seen_from(
            IN_BOTH,
            nodes=(silent(in_store=COPY), a_node("n2"), a_node("n3", stores=("s3", "other"))),
        ),
        ("n3", STORED),
    ),
    "nowhere when its node is silent": (
        seen_from(nodes=(silent(), a_node("n2"))),
        (
            "CheckpointUnavailable",
            "0/2 nodes can take it: 1 unreachable, 1 without a way to Checkpoint saved: copies are"
            " on n1 (does not answer)",
        ),
    ),
    "nowhere when its node is off": (
        seen_from(nodes=(a_node("n1", a_whole_record(), object_=GONE_OFF), a_node("n2"))),
        (
            "CheckpointUnavailable",
            "0/2 nodes can take it: 1 out of service, 1 without a way to Checkpoint saved: copies"
            " are on n1 (out of service)",
        ),
    ),
    "nowhere when its node is gone": (
        seen_from(nodes=(a_node("n2"),)),
        (
            "CheckpointUnavailable",
            "0/1 nodes can take it: 1 without a way to Checkpoint saved: a copy was last seen on"
            " n1",
        ),
    ),
    "nowhere when its node is only reached from its own machine": (
        seen_from(
            nodes=(
                a_node(
                    "n1",
                    a_whole_record(),
                    object_={"spec": {"endpoint": "unix:///run/a", "unschedulable": True}},
                ),
                a_node("n2"),
            )
        ),
        (
            "CheckpointUnavailable",
            "0/2 nodes can take it: 1 unschedulable, 1 without a way to Checkpoint saved: copies"
            " are on n1 (reached only from its own machine)",
        ),
    ),
    "nowhere when only another's store has it": (
        seen_from(IN_BOTH, nodes=(a_node("n2", stores=("other",)),)),
        (
            "CheckpointUnavailable",
            "0/1 nodes can take it: 1 without a way to Checkpoint saved: copies are on object"
            " store s3 (which the node does not have)",
        ),
    ),
    "nowhere for another cause": (
        seen_from(nodes=(away(), a_node("n2", reachable=False))),
        ("Unschedulable", "0/2 nodes can take it: 1 draining, 1 unreachable"),
    ),
    "not from a copy that is being removed": (
        seen_from(nodes=(a_node("n1", a_whole_record(removing=True)), a_node("n2"))),
        (
            "CheckpointUnavailable",
            "0/2 nodes can take it: 2 without a way to Checkpoint saved: a copy was last seen on"
            " n1",
        ),
    ),
}


def put_of(plan: Plan) -> Put:
    (put,) = [a for a in plan.actions if isinstance(a, Put)]
    return put


@pytest.mark.parametrize("name", PLACED)
def test_placement(name: str) -> None:
    seen, (where, what) = PLACED[name]
    plan = execution.plan(seen)
    if isinstance(what, str):
        assert plan.actions == ()
        assert show(plan).told["Scheduled"] == f"False {where}: {what}"
        return
    put = put_of(plan)
    assert (put.node, put.source) == (where, what)
    (bound,) = [a for a in plan.actions if isinstance(a, Bind)]
    assert bound.node == where
    assert isinstance(put.wanted, ExecutionWanted)
    assert put.wanted.restore_from is None, "no plan holds a grant"
    assert put.wanted.spec.restore == Restore(
        checkpoint_uid=CKPT, manifest_digest=cw.MANIFEST, content_digest=cw.CONTENT
    )


def test_the_order_of_nodes_does_not_matter() -> None:
    for seen, _ in PLACED.values():
        turned = replace(seen, nodes=tuple(reversed(seen.nodes)))
        assert execution.plan(turned) == execution.plan(seen)


def test_it_goes_on_once_a_copy_can_be_reached() -> None:
    seen = seen_from(nodes=(silent(), a_node("n2")))
    assert execution.plan(seen).actions == ()
    assert put_of(execution.plan(replace(seen, nodes=(away(), a_node("n2"))))).source == FROM_N1


# On its node.

BINDING = worlds.a_binding(pinned=PINNED)


def on_node(record: Any = None, **changes: Any) -> Observed:
    """Bound to n2, with the copy on n1."""
    raw = {**SPEC, "nodeName": "n2"}
    known = Known(record) if record is not None else Absent()
    base: dict[str, Any] = {
        "checkpoint": Known(origin()),
        "nodes": (a_node("n1", a_whole_record()), a_node("n2", record=known)),
    }
    return observed(a_bound_execution(BINDING, spec=raw), **{**base, **changes})


def waits_for(reason: str, **changes: Any) -> Any:
    why = Waiting(reason=reason, message="so it said")
    return a_record(step=Step.RECORDED, started_at=None, waiting=why, **changes)


def test_what_was_not_sent_is_sent_with_a_source() -> None:
    assert put_of(execution.plan(on_node())).source == FROM_N1


def test_the_checkpoint_object_is_not_needed_any_more() -> None:
    seen = on_node(checkpoint=Absent())
    assert put_of(execution.plan(seen)).source == FROM_N1


def test_nothing_is_sent_while_no_copy_can_be_reached() -> None:
    seen = on_node(nodes=(silent(), a_node("n2")))
    plan = execution.plan(seen)
    assert not [a for a in plan.actions if isinstance(a, Put)]
    assert show(plan).told["Succeeded"] == (
        "Unknown CheckpointUnavailable: Checkpoint saved: copies are on n1 (does not answer)"
    )


@pytest.mark.parametrize("reason", ["CheckpointUnavailable", "AwaitingCheckpoint"])
@pytest.mark.parametrize(
    ("granted", "again"),
    [(None, True), (-9, False), (-10, True)],
    ids=["never", "just now", "long"],
)
def test_a_grant_is_renewed_while_it_has_not_started(
    reason: str, granted: float | None, again: bool
) -> None:
    at = after(granted) if granted is not None else None
    plan = execution.plan(on_node(waits_for(reason), granted_at=at))
    puts = [a.source for a in plan.actions if isinstance(a, Put)]
    assert puts == ([FROM_N1] if again else [])
    if not again and granted is not None:
        assert plan.look_again_at == after(granted + 10)


def test_a_restart_of_the_agent_gets_values_and_source_again() -> None:
    seen = on_node(waits_for("AwaitingInputs"), granted_at=after(-1))
    assert put_of(execution.plan(seen)).source == FROM_N1


def test_nothing_is_sent_while_it_restores() -> None:
    for record in (a_record(step=Step.RECORDED, started_at=None), waits_for("Restoring")):
        plan = execution.plan(on_node(record, now=after(6)))
        assert plan.actions == ()
        assert show(plan).told["Succeeded"] == "Unknown Restoring: the workspace is being restored"


def test_what_was_restored_is_in_the_status() -> None:
    plan = execution.plan(on_node(a_record(), now=after(6)))
    resolved = plan.status.to_object()["resolved"]
    assert resolved["checkpoint"] == {
        "name": "saved",
        "uid": CKPT,
        "contentDigest": cw.CONTENT,
    }
    assert (resolved["image"], resolved["medium"]) == (IMAGE, "Memory")


def test_a_grant_that_cannot_be_had_ends_nothing() -> None:
    failure = Failure(
        action="Put",
        node="n2",
        kind=ErrorKind.UNAVAILABLE,
        reason="CheckpointUnavailable",
        message="node n1, which has the Checkpoint: no answer",
    )
    plan = execution.plan(on_node(failure=failure))
    assert put_of(plan).source == FROM_N1
    assert (
        show(plan).told["Succeeded"].startswith("Unknown CheckpointUnavailable: node n2: node n1")
    )
    ((kind, reason, _),) = emitted(plan)
    assert (kind, reason) == ("Warning", "CheckpointUnavailable"), "somebody may have to act"


def test_a_copy_in_a_store_is_known_from_record_or_status() -> None:
    record = seen_from(nodes=(a_node("n1", a_whole_record(in_store=COPY)),))
    assert restoring.stored(record, CKPT) == COPY
    told = seen_from(IN_BOTH, nodes=())
    assert restoring.stored(told, CKPT) == StoreCopy(store="s3", key="k/c0c0")
    assert restoring.stored(told, "another") is None
    assert restoring.stored(seen_from(nodes=()), CKPT) is None
