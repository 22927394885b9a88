"""A Checkpoint's whole plans as a table: a healthy base, one change, everything that is said."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.api import meta
from isolet.base import names
from isolet.plan import checkpoint_object
from isolet.plan.actions import (
    Bind,
    DeleteObject,
    Emit,
    EventType,
    Flag,
    Put,
    Release,
    Remove,
    WriteTombstone,
)
from isolet.plan.binding import Taking
from isolet.plan.model import (
    Absent,
    Cause,
    CheckpointPass,
    ErrorKind,
    Failure,
    Known,
    Tombstone,
    Unknown,
)
from isolet.plan.objects import read_checkpoint
from isolet.wire.checkpoint import CheckpointSpec, CheckpointStep, CheckpointWanted
from isolet.wire.execution import Medium, Outcome, Step, Waiting
from tests.unit.plan.operator import checkpoint_worlds as cw
from tests.unit.plan.operator.checkpoint_worlds import (
    CKPT,
    COPY,
    DELETING,
    GONE_OFF,
    NODE_LOCATION,
    SOURCE_UID,
    STORE_LOCATION,
    TAKING,
    a_binding,
    a_failed_record,
    a_host,
    a_node,
    a_ready_object,
    a_record,
    a_whole_record,
    bound_object,
    observed,
)
from tests.unit.plan.operator.shown import Shown, show
from tests.unit.plan.operator.worlds import LEADER_SINCE, SUCCEEDED, after, merge

BOUND = bound_object()
DRAIN: dict[str, Any] = {"spec": {"drain": {}}}
START = {"executionUID": SOURCE_UID, "startTime": "2026-01-01T12:00:00Z"}
ENDED = {"completionTime": "2026-01-01T12:00:00Z"}


def wanted(generation: int = 2) -> CheckpointWanted:
    return CheckpointWanted(
        uid=CKPT,
        namespace="team",
        name="saved",
        generation=generation,
        spec=CheckpointSpec(execution_uid=SOURCE_UID, reason="handoff"),
    )


def bind(seen: CheckpointPass, taking: Taking | None = TAKING, node: str = "n1") -> Bind:
    return Bind(
        object=seen.object.ref,
        node=node,
        annotation=a_binding(taking=taking).annotation(),
        finalizers=(meta.FINALIZER,),
    )


def warned(seen: CheckpointPass, reason: str, message: str) -> Emit:
    return Emit(
        object=seen.object.ref,
        type=EventType.WARNING,
        reason=reason,
        message=message,
        key=names.short_digest(CKPT, reason),
    )


def going(reason: str, message: str) -> dict[str, str]:
    return {"Ready": f"Unknown {reason}: {message}", "Reconciling": f"True {reason}: {message}"}


def failed(reason: str, message: str) -> dict[str, str]:
    return {"Ready": f"False {reason}: {message}", "Stalled": f"True {reason}: {message}"}


TAKEN = ("Checkpointing", "the workspace is being taken")


def takes(seen: CheckpointPass) -> Shown:
    return Shown(
        actions=(bind(seen), Put(node="n1", wanted=wanted())),
        told=going(*TAKEN),
        fields={"executionUID": SOURCE_UID},
        look=5.0,
    )


def refuses(seen: CheckpointPass, reason: str, message: str) -> Shown:
    return Shown(
        actions=(warned(seen, reason, message),),
        told=failed(reason, message),
        fields=ENDED,
        write=True,
    )


def waits(reason: str, message: str, *, look: float = 4.0, write: bool = False) -> Shown:
    return Shown(told=going(reason, message), write=write, look=look)


NEW: dict[str, tuple[CheckpointPass, Any]] = {
    "of a running session": (observed(), takes),
    "of a command that runs": (
        observed(source=Known(a_host(spec={"command": ["sleep", "9"]}))),
        takes,
    ),
    "of a Disk workspace that is retained": (
        observed(source=Known(a_host(step=Step.ENDED, outcome=SUCCEEDED))),
        takes,
    ),
    "of a running Memory workspace": (
        observed(source=Known(a_host(medium=Medium.MEMORY))),
        takes,
    ),
    "on a node that is drained": (
        observed(nodes=(a_node(object_=DRAIN),)),
        takes,
    ),
    "of a Memory workspace that has ended": (
        observed(
            source=Known(a_host(medium=Medium.MEMORY, step=Step.ENDED, outcome=SUCCEEDED)),
        ),
        (
            "NotRetained",
            "Execution session has ended: its Memory workspace went with it; a Disk workspace can"
            " be taken after the end",
        ),
    ),
    "of one that is disposed": (
        observed(source=Known(a_host(step=Step.DISPOSED, outcome=SUCCEEDED))),
        (
            "NotRetained",
            "Execution session has ended: its workspace is gone (workspace.retainSeconds keeps it"
            " for a while)",
        ),
    ),
    "of one that is being deleted": (
        observed(source=Known(a_host(metadata=DELETING["metadata"]))),
        ("ExecutionEnded", "Execution session is being deleted"),
    ),
    "of one whose node was deleted": (
        observed(nodes=()),
        ("NodeLost", "ExecutionNode n1 of Execution session was deleted"),
    ),
    "of one whose node is off": (
        observed(nodes=(a_node(object_=GONE_OFF),)),
        (
            "NodeLost",
            "node n1 of Execution session was declared out of service: it burnt",
        ),
    ),
    "of one that its agent has forgotten": (
        observed(
            source=Known(
                a_host(
                    record=Absent(),
                    status={
                        "conditions": [
                            {
                                "type": "Succeeded",
                                "status": "True",
                                "reason": "Succeeded",
                                "message": "",
                                "lastTransitionTime": "2026-01-01T11:00:00Z",
                            }
                        ]
                    },
                )
            )
        ),
        ("NotRetained", "Execution session has ended and is disposed"),
    ),
    "of nothing, just now": (
        observed(source=Absent()),
        waits("AwaitingExecution", "Execution session is not there"),
    ),
    "of nothing, for five seconds": (
        observed(source=Absent(), now=after(4)),
        Shown(
            actions=(warned(observed(), "NotFound", "Execution session is not there, for 5 s"),),
            told=failed("NotFound", "Execution session is not there, for 5 s"),
            fields={"completionTime": "2026-01-01T12:00:04Z"},
            write=True,
        ),
    ),
    "of nothing, seen by a new leader": (
        observed(source=Absent(), now=after(4), leader_since=after(3)),
        waits("AwaitingExecution", "Execution session is not there", look=8.0),
    ),
    "of something that could not be read": (
        observed(source=Unknown(), now=after(600)),
        waits("AwaitingExecution", "Execution session could not be read", look=660.0, write=True),
    ),
    "of one that no node has taken": (
        observed(source=Known(a_host(node=None))),
        waits("AwaitingExecution", "Execution session is bound to no node yet"),
    ),
    "of one that is being made": (
        observed(source=Known(a_host(step=Step.RECORDED)), now=after(10)),
        waits("AwaitingExecution", "Execution session does not run yet", look=59.0, write=True),
    ),
    "of one that is being made for a minute": (
        observed(source=Known(a_host(step=Step.RECORDED)), now=after(59)),
        Shown(
            actions=(
                warned(observed(), "NotRunning", "Execution session does not run yet, for 60 s"),
            ),
            told=failed("NotRunning", "Execution session does not run yet, for 60 s"),
            fields={"completionTime": "2026-01-01T12:00:59Z"},
            write=True,
        ),
    ),
    "of one whose node is silent": (
        observed(source=Known(a_host(record=Unknown()))),
        waits("NodeUnreachable", "node n1 of Execution session does not answer"),
    ),
    "of one whose node is silent for a minute": (
        observed(source=Known(a_host(record=Unknown())), now=after(59)),
        Shown(
            actions=(
                warned(
                    observed(),
                    "CheckpointFailed",
                    "node n1 of Execution session does not answer, for 60 s",
                ),
            ),
            told=failed(
                "CheckpointFailed", "node n1 of Execution session does not answer, for 60 s"
            ),
            fields={"completionTime": "2026-01-01T12:00:59Z"},
            write=True,
        ),
    ),
    "that an agent has, since etcd was set back": (
        observed(source=Absent(), nodes=(a_node("n1"), a_node("n2", a_whole_record()))),
        lambda seen: Shown(
            actions=(bind(seen, None, "n2"),),
            told=going(*TAKEN),
            look=5.0,
        ),
    ),
}


@pytest.mark.parametrize("name", NEW)
def test_a_new_one(name: str) -> None:
    seen, want = NEW[name]
    found = show(checkpoint_object.plan(seen))
    if isinstance(want, tuple):
        assert found == refuses(seen, *want)
    else:
        assert found == (want if isinstance(want, Shown) else want(seen))


def test_a_binding_is_written_before_the_agent_hears_of_it() -> None:
    first, second = checkpoint_object.plan(observed()).actions
    assert (type(first), type(second)) == (Bind, Put)


def fails_with(reason: str, kind: ErrorKind = ErrorKind.REFUSED, node: str = "n1") -> Failure:
    return Failure(action="Put", node=node, kind=kind, reason=reason, message="so it said")


def known(record: Any, **changes: Any) -> CheckpointPass:
    return observed(BOUND, nodes=(a_node("n1", record),), **changes)


WHOLE = {
    **START,
    **{k: v for k, v in cw.ready_status(NODE_LOCATION).items() if k != "conditions"},
}
del WHOLE["observedGeneration"]


def ends(seen: CheckpointPass, reason: str, message: str, **fields: Any) -> Shown:
    return Shown(
        actions=(warned(seen, reason, message),),
        told=failed(reason, message),
        fields={"executionUID": SOURCE_UID, **ENDED, **fields},
        write=True,
    )


ON_NODE: dict[str, tuple[CheckpointPass, Any]] = {
    "being taken": (
        known(a_record()),
        Shown(told=going(*TAKEN), fields=START, look=5.0),
    ),
    "being taken for long": (
        known(a_record(), now=after(6)),
        Shown(told=going(*TAKEN), fields=START, write=True, look=66.0),
    ),
    "waiting for its turn": (
        known(
            a_record(
                step=CheckpointStep.RECORDED,
                started_at=None,
                waiting=Waiting(reason="AwaitingTurn", message="a command runs"),
            ),
            now=after(6),
        ),
        Shown(
            told=going("AwaitingTurn", "a command runs"),
            fields={"executionUID": SOURCE_UID},
            write=True,
            look=66.0,
        ),
    ),
    "whole": (
        known(a_whole_record()),
        Shown(
            told={"Ready": "True CheckpointReady: whole on node n1"},
            fields=WHOLE,
            write=True,
        ),
    ),
    "whole, in an object store too": (
        known(a_whole_record(in_store=COPY)),
        Shown(
            told={"Ready": "True CheckpointReady: whole on node n1 and in object store s3"},
            fields={**WHOLE, "locations": [NODE_LOCATION, STORE_LOCATION]},
            write=True,
        ),
    ),
    "whole, and its node is silent": (
        observed(BOUND, nodes=(a_node("n1", a_whole_record(), reachable=False),)),
        Shown(
            told={"Ready": "True CheckpointReady: whole on node n1"},
            fields=WHOLE,
            write=True,
        ),
    ),
    "not to be taken": (
        known(a_failed_record()),
        lambda seen: ends(seen, "CheckpointFailed", "the disk broke", **START),
    ),
    "failed for a reason of a later version": (
        known(a_failed_record(Outcome(succeeded=False, reason="Novel", message="new"))),
        lambda seen: ends(seen, "CheckpointFailed", "Novel: new", **START),
    ),
    "whole by its word alone": (
        known(a_whole_record(manifest=None)),
        lambda seen: ends(seen, "CheckpointFailed", "whole", **START),
    ),
    "removed by somebody": (
        known(a_record(removing=True)),
        lambda seen: ends(seen, "CheckpointFailed", "node n1 was told to remove it", **START),
    ),
    "not known to the agent yet": (
        known(None),
        Shown(
            actions=(Put(node="n1", wanted=wanted()),),
            told=going(*TAKEN),
            fields={"executionUID": SOURCE_UID},
            look=5.0,
        ),
    ),
    "refused by the node's policy": (
        known(None, failure=fails_with("NodePolicy")),
        lambda seen: ends(seen, "NotAllowed", "node n1: so it said"),
    ),
    "refused altogether": (
        known(None, failure=fails_with("CheckpointsNotAllowed")),
        lambda seen: ends(seen, "CheckpointsNotAllowed", "node n1: so it said"),
    ),
    "over the quota": (
        known(None, failure=fails_with("CheckpointQuota")),
        lambda seen: ends(seen, "CheckpointQuota", "node n1: so it said"),
    ),
    "of an Execution that has gone meanwhile": (
        known(None, failure=fails_with("NotFound", ErrorKind.NOT_FOUND)),
        lambda seen: ends(seen, "NotRetained", "Execution session is not on node n1 any more"),
    ),
    "asked of an agent that is older": (
        known(None, failure=fails_with("NoSuchPath", ErrorKind.UNAVAILABLE)),
        lambda seen: ends(
            seen,
            "Unsupported",
            "the agent of node n1 is older and takes no Checkpoints: update it",
        ),
    ),
    "buried on the node": (
        known(None, failure=fails_with("AlreadyEnded", ErrorKind.CONFLICT)),
        lambda seen: ends(seen, "CheckpointFailed", "node n1 had it before and has removed it"),
    ),
    "asked of a busy agent": (
        known(None, failure=fails_with("NodeBusy", ErrorKind.UNAVAILABLE)),
        Shown(
            actions=(Put(node="n1", wanted=wanted()),),
            told=going(*TAKEN),
            fields={"executionUID": SOURCE_UID},
            look=5.0,
        ),
    ),
    "on a silent node that was never read": (
        observed(BOUND, nodes=(a_node("n1", Unknown(), reachable=False),)),
        Shown(
            told=going(
                "NodeUnreachable",
                "the agent of node n1 does not answer: what runs there may still run",
            ),
            fields={"executionUID": SOURCE_UID},
            write=True,
            look=60.0,
        ),
    ),
    "on a node that lost its records": (
        observed(BOUND, nodes=(a_node("n1", report={"epoch": "e2"}),)),
        lambda seen: Shown(
            actions=(
                Remove(node="n1", uid=CKPT, kind="Checkpoint"),
                warned(
                    seen,
                    "CheckpointFailed",
                    "the agent of node n1 has lost the records it had when this was bound",
                ),
            ),
            told=failed(
                "CheckpointFailed",
                "the agent of node n1 has lost the records it had when this was bound",
            ),
            fields={"executionUID": SOURCE_UID, **ENDED},
            write=True,
        ),
    ),
    "on a node that was deleted": (
        observed(BOUND, nodes=()),
        lambda seen: ends(seen, "NodeLost", "ExecutionNode n1 was deleted"),
    ),
    "on a node that is off": (
        observed(BOUND, nodes=(a_node("n1", a_record(), object_=GONE_OFF),)),
        lambda seen: ends(
            seen, "NodeLost", "node n1 was declared out of service: it burnt", **START
        ),
    ),
    "without its finalizer": (
        observed(merge(BOUND, {"metadata": {"finalizers": None}})),
        lambda seen: Shown(actions=(bind(seen),)),
    ),
}


@pytest.mark.parametrize("name", ON_NODE)
def test_on_its_node(name: str) -> None:
    seen, want = ON_NODE[name]
    assert show(checkpoint_object.plan(seen)) == (want if isinstance(want, Shown) else want(seen))


def ready(*locations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return a_ready_object(*locations, **changes)


def after_all(raw: dict[str, Any], **changes: Any) -> CheckpointPass:
    base = observed(raw, nodes=(a_node("n1", a_whole_record()),))
    return replace(base, **changes)


def test_nothing_is_written_while_nothing_changes() -> None:
    for seen in (
        after_all(ready()),
        after_all(ready(), source=Absent()),
        after_all(ready(), nodes=(a_node("n1", Unknown(), reachable=False),)),
        after_all(ready(), nodes=(), nodes_complete=False),
        after_all(
            ready(), nodes=(a_node("n1", a_whole_record(), object_={"spec": {"drain": {}}}),)
        ),
    ):
        plan = checkpoint_object.plan(seen)
        assert (plan.actions, plan.write_status, plan.look_again_at) == ((), False, None)


GONE = {
    "its node was deleted": ((), "ExecutionNode n1, which had the copy, was deleted"),
    "its node is off": (
        (a_node("n1", a_whole_record(), object_=GONE_OFF),),
        "node n1, which has the copy, was declared out of service: it burnt",
    ),
    "its node came back empty": (
        (a_node("n1", report={"epoch": "e2"}),),
        "the agent of node n1 has no record of it any more",
    ),
    "its node says so": (
        (a_node("n1", a_whole_record(on_node=False)),),
        "node n1 says that it has no copy any more",
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_without_a_copy_it_is_not_ready(name: str) -> None:
    nodes, why = GONE[name]
    seen = after_all(ready(), nodes=nodes)
    found = show(checkpoint_object.plan(seen))
    assert found.told == failed("CheckpointUnavailable", why)
    assert found.write
    assert "locations" not in found.fields
    assert found.actions == (warned(seen, "CheckpointUnavailable", why),)
    # What was taken is still told.
    assert found.fields["manifestDigest"] == cw.MANIFEST


def test_a_copy_in_a_store_outlives_the_node() -> None:
    raw = ready(NODE_LOCATION, STORE_LOCATION)
    found = show(checkpoint_object.plan(after_all(raw, nodes=())))
    assert found.told == {"Ready": "True CheckpointReady: whole in object store s3"}
    assert found.fields["locations"] == [STORE_LOCATION]


def test_a_store_that_takes_no_copy_is_told_and_holds_up_nothing() -> None:
    why = Waiting(reason="ObjectStoreUnavailable", message="the store says no")
    for raw in (BOUND, ready()):
        seen = observed(raw, nodes=(a_node("n1", a_whole_record(waiting=why)),))
        found = show(checkpoint_object.plan(seen))
        assert found.told == {
            "Ready": "True CheckpointReady: whole on node n1",
            "Reconciling": "True ObjectStoreUnavailable: the store says no",
        }
        assert found.write
    raw = ready() | {"status": checkpoint_object.plan(seen).status.to_object()}
    again = show(checkpoint_object.plan(after_all(raw)))
    assert again.told == {"Ready": "True CheckpointReady: whole on node n1"}


def test_a_node_that_comes_back_makes_it_ready_again() -> None:
    lost = checkpoint_object.plan(after_all(ready(), nodes=(a_node("n1", object_=GONE_OFF),)))
    raw = ready() | {"status": lost.status.to_object()}
    again = show(checkpoint_object.plan(after_all(raw)))
    assert again.told == {"Ready": "True CheckpointReady: whole on node n1"}
    assert again.fields["locations"] == [NODE_LOCATION]


def test_a_failure_stands() -> None:
    first = checkpoint_object.plan(known(a_failed_record()))
    raw = BOUND | {"status": first.status.to_object()}
    for nodes in ((), (a_node("n1", a_whole_record()),), (a_node("n1"),)):
        plan = checkpoint_object.plan(observed(raw, nodes=nodes, source=Absent()))
        assert (plan.actions, plan.write_status) == ((), False)
        assert plan.status == first.status


@pytest.mark.parametrize(
    ("now", "due"), [(29.9, False), (30, True), (31, True)], ids=["before", "at", "after"]
)
def test_its_time_is_up(now: float, due: bool) -> None:
    raw = ready(spec={"ttlSecondsAfterFinished": 30})
    plan = checkpoint_object.plan(after_all(raw, now=after(now)))
    assert plan.actions == ((DeleteObject(object=read_checkpoint(raw).ref),) if due else ())
    assert plan.look_again_at == (after(now + 60) if due else after(30))


@pytest.mark.parametrize(("reckoned", "due"), [(29, False), (30, True)])
def test_a_clock_that_is_set_ahead_deletes_no_checkpoint_early(reckoned: float, due: bool) -> None:
    raw = ready(spec={"ttlSecondsAfterFinished": 30})
    seen = after_all(raw, now=after(86_400), reckoned=after(reckoned))
    plan = checkpoint_object.plan(seen)
    assert plan.actions == ((DeleteObject(object=read_checkpoint(raw).ref),) if due else ())
    assert due or plan.look_again_at == after(86_401)


# Deletion.


def leaving(raw: dict[str, Any], **changes: Any) -> CheckpointPass:
    return after_all(merge(raw, DELETING), **changes)


def removal(node: str = "n1") -> Remove:
    return Remove(node=node, uid=CKPT, kind="Checkpoint")


def release(seen: CheckpointPass) -> Release:
    return Release(object=seen.object.ref, finalizers=())


def given_up(seen: CheckpointPass, cause: Cause, why: str, detail: str = "") -> tuple[Any, ...]:
    text = f"released without the word of node n1 that nothing is left: {why}"
    stone = Tombstone(
        uid=CKPT,
        namespace="team",
        name="saved",
        node="n1",
        cause=cause,
        detail=detail,
        written_at=seen.now,
    )
    return (
        WriteTombstone(tombstone=stone),
        warned(seen, "ReleasedUnconfirmed", text),
        release(seen),
    )


SILENT = (
    "deletion waits for node n1: the agent of node n1 does not answer: what runs there may still"
    " run. If the node is gone for good, delete ExecutionNode n1; if it is off, set its"
    " spec.outOfService; to give up this object alone, annotate it with"
    " isolet.dev/force-release=<reason>"
)
BOTH = ready(NODE_LOCATION, STORE_LOCATION)
LEFT = a_whole_record(step=CheckpointStep.DISPOSED, removing=True, nothing_left=True, on_node=False)
DELETIONS: dict[str, tuple[CheckpointPass, Any]] = {
    "of one that nobody reads": (leaving(ready()), lambda seen: (removal(),)),
    "once its agent confirms": (
        leaving(ready(), nodes=(a_node("n1", LEFT),)),
        lambda seen: (release(seen),),
    ),
    "while its agent is on it": (
        leaving(ready(), nodes=(a_node("n1", a_whole_record(removing=True)),)),
        lambda seen: (),
    ),
    "while it is used": (leaving(ready(), restoring=("other",)), lambda seen: ()),
    "while it is used, by force": (
        leaving(
            merge(ready(), {"metadata": {"annotations": {meta.FORCE_RELEASE: "enough"}}}),
            restoring=("other",),
        ),
        lambda seen: given_up(
            seen, Cause.FORCED, "annotation isolet.dev/force-release (enough)", "enough"
        ),
    ),
    "while its node is silent": (
        leaving(ready(), nodes=(a_node("n1", a_whole_record(), reachable=False),)),
        lambda seen: (warned(seen, "AwaitingNode", SILENT),),
    ),
    "after its node was deleted": (
        leaving(ready(), nodes=()),
        lambda seen: given_up(seen, Cause.NODE_DELETED, "ExecutionNode n1 was deleted"),
    ),
    "after its node was declared off": (
        leaving(ready(), nodes=(a_node("n1", a_whole_record(), object_=GONE_OFF),)),
        lambda seen: given_up(
            seen,
            Cause.OUT_OF_SERVICE,
            "node n1 was declared out of service (it burnt)",
            "it burnt",
        ),
    ),
    "with a copy in a store that its own agent removes": (
        leaving(BOTH, nodes=(a_node("n1", a_whole_record(in_store=COPY)),)),
        lambda seen: (removal(),),
    ),
    "with a copy in a store that only another reaches": (
        leaving(BOTH, nodes=(a_node("n2"), a_node("n3", stores=("s3",)))),
        lambda seen: (removal("n3"),),
    ),
    "with a copy in a store that another has emptied": (
        leaving(BOTH, nodes=(a_node("n3", LEFT, stores=("s3",)),)),
        lambda seen: given_up(seen, Cause.NODE_DELETED, "ExecutionNode n1 was deleted"),
    ),
    "with a copy in a store that nobody reaches": (
        leaving(BOTH, nodes=(a_node("n2"), a_node("n3", stores=("s3",), reachable=False))),
        lambda seen: (),
    ),
    "with a copy in a store that nobody reaches, by force": (
        leaving(
            merge(BOTH, {"metadata": {"annotations": {meta.FORCE_RELEASE: "enough"}}}), nodes=()
        ),
        lambda seen: given_up(
            seen, Cause.FORCED, "annotation isolet.dev/force-release (enough)", "enough"
        ),
    ),
    "of one that was never bound": (
        observed(
            cw.checkpoint_object(metadata={**DELETING["metadata"], "finalizers": [meta.FINALIZER]})
        ),
        lambda seen: (release(seen),),
    ),
    "of one that is not ours to hold": (
        observed(cw.checkpoint_object(**DELETING), restoring=("other",)),
        lambda seen: (),
    ),
    "of one that cannot be read": (
        leaving(merge(ready(), {"spec": {"executionRef": "odd"}})),
        lambda seen: (removal(),),
    ),
}


@pytest.mark.parametrize("name", DELETIONS)
def test_deletion(name: str) -> None:
    seen, want = DELETIONS[name]
    assert checkpoint_object.plan(seen).actions == want(seen)


SAID_AFTER_A_WHILE: dict[str, tuple[CheckpointPass, str, str]] = {
    "in use": (
        leaving(ready(), restoring=("b", "a")),
        "CheckpointInUse",
        "deletion waits for Executions that start from it: a, b",
    ),
    "not confirmed": (
        leaving(ready(), nodes=(a_node("n1", a_whole_record(removing=True)),)),
        "AwaitingNode",
        "deletion waits for node n1: it has not confirmed yet that nothing is left",
    ),
    "read by an agent": (
        leaving(
            ready(),
            nodes=(
                a_node(
                    "n1",
                    a_whole_record(
                        removing=True,
                        readers=1,
                        waiting=Waiting(reason="CheckpointInUse", message="1 restore reads it"),
                    ),
                ),
            ),
        ),
        "AwaitingNode",
        "deletion waits for node n1: 1 restore reads it",
    ),
    "a store out of reach": (
        leaving(BOTH, nodes=()),
        "AwaitingNode",
        "a copy is left in object store s3, and no node that answers has that store; to give it"
        " up, annotate the Checkpoint with isolet.dev/force-release=<reason>",
    ),
}


@pytest.mark.parametrize("name", SAID_AFTER_A_WHILE)
def test_what_deletion_waits_for_is_told_after_a_while(name: str) -> None:
    seen, reason, text = SAID_AFTER_A_WHILE[name]
    early, late = (checkpoint_object.plan(replace(seen, now=after(s))) for s in (8.9, 9))
    assert not early.write_status
    assert early.look_again_at == after(9)
    found = show(late)
    assert found.write
    assert found.told == failed(reason, text)
    assert found.flags == frozenset({Flag.CLEANUP_BLOCKED})
    (told,) = [a for a in found.actions if isinstance(a, Emit)]
    assert (told.reason, told.message) == (reason, text)
    assert seen.now > LEADER_SINCE
