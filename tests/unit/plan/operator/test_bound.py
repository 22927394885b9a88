"""A bound Execution, as a table: a healthy base, one change, the whole plan."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.api import meta
from isolet.base import errors, names
from isolet.plan import actions as act
from isolet.plan import binding, execution, values
from isolet.plan.actions import Amend, Bind, Emit, EventType, Flag, Put, Remove
from isolet.plan.model import (
    Absent,
    Failure,
    Input,
    InputRef,
    Known,
    NodeFacts,
    Observed,
    Unknown,
    failure_of,
)
from isolet.wire.execution import (
    Amendment,
    Outcome,
    OutputFacts,
    State,
    Step,
    Waiting,
)
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.shown import Shown, ended, on_the_way, running, show
from tests.unit.plan.operator.test_pending import WANTED
from tests.unit.plan.operator.worlds import (
    NOW,
    UID,
    a_binding,
    a_bound_execution,
    a_node,
    a_pinned,
    a_record,
    after,
    an_ended_record,
    observed,
)

STARTED = meta.format_time(NOW)
DEADLINE = meta.format_time(after(600))
RAN = {"startTime": STARTED, "deadline": DEADLINE}
SESSION = {"spec": {"command": None}}
TERMINATED = {"spec": {"desiredState": "Terminated"}, "metadata": {"generation": 3}}
PREPARING = on_the_way("Preparing", "the sandbox is being made")
SILENT = "the agent of node n1 does not answer: what runs there may still run"


def bound(
    node: NodeFacts | None = None, *, at: float = 10, changes: Any = None, **more: Any
) -> Observed:
    """A pass over a bound object, ten seconds after it was bound."""
    object_ = a_bound_execution(**(changes or {}))
    nodes = (node or a_node(),)
    return observed(object_, nodes=nodes, now=after(at), **more)


def warned(reason: str, message: str, **changes: Any) -> Emit:
    return Emit(
        object=a_bound_execution(**changes).ref,
        type=EventType.WARNING,
        reason=reason,
        message=message,
        key=names.short_digest(UID, reason),
    )


def with_status(seen: Observed, **fields: Any) -> Observed:
    status = seen.object.status.with_(**fields)
    return replace(seen, object=replace(seen.object, status=status))


def failed(action: str, error: errors.IsoletError) -> Failure:
    return replace(failure_of(act.Remove(node="n1", uid=UID), error), action=action)


def amended(**changes: Any) -> Amend:
    base = Amendment(generation=3, active_deadline_seconds=600)
    return Amend(node="n1", uid=UID, change=base.model_copy(update=changes))


def cut(record: Any = None, **changes: Any) -> NodeFacts:
    return a_node(record=record, reachable=False, **changes)


PUT = Put(node="n1", wanted=WANTED)
DRAINING = {
    "spec": {"drain": {"onDeadline": "Terminate", "deadlineSeconds": 60}},
    "status": {"drain": {"startTime": STARTED}},
}
WAITING_ROOM = {
    "spec": {"drain": {"onDeadline": "Wait", "deadlineSeconds": 0}},
    "status": {"drain": {"startTime": STARTED}},
}
OFF = {"spec": {"outOfService": {"reason": "it burnt"}}}
SECRET = InputRef("Secret", "keys")
ENV = [{"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
PIN = {"kind": "Secret", "name": "keys", "uid": "s", "resource_version": "7"}
PINNED = {"kind": "Secret", "name": "keys", "uid": "s", "resourceVersion": "7"}


def with_secret(known: Any, node: NodeFacts | None = None) -> Observed:
    pinned = a_pinned(inputs=(values.PinnedInput(**PIN),))
    object_ = a_bound_execution(a_binding(pinned=pinned), spec={"env": ENV})
    return observed(object_, nodes=(node or a_node(),), inputs={SECRET: known}, now=after(10))


INPUTS_GONE = "Secret keys has vanished since the object was bound, before its values were used"
INPUTS_CHANGED = (
    "Secret keys was changed after the object was bound, before its values were used: make a new"
    " object to use the new ones"
)
NEEDS_INPUTS = a_record(
    step=Step.RECORDED,
    started_at=None,
    deadline_at=None,
    image_id=None,
    waiting=Waiting(reason="AwaitingInputs", message="its owner must send the spec again"),
)
OVER_MAXIMUM = (
    "activeDeadlineSeconds 7200 is over the maximum 3600 of ExecutionClass standard when it was"
    " bound, which holds"
)

GOES_ON: dict[str, tuple[Observed, Shown]] = {
    "the agent never had it: it is started": (
        bound(at=1),
        Shown(actions=(PUT,), told=PREPARING, look=5),
    ),
    "making it takes long enough to say so": (
        bound(at=5),
        Shown(actions=(PUT,), told=PREPARING, write=True, look=65),
    ),
    "a recorded one is left to its agent": (
        bound(a_node(record=a_record(step=Step.RECORDED, started_at=None, deadline_at=None)), at=1),
        Shown(told=PREPARING, look=5),
    ),
    "a dispatched one too": (
        bound(
            a_node(record=a_record(step=Step.DISPATCHED, started_at=None, deadline_at=None)), at=1
        ),
        Shown(told=on_the_way("Starting", "the start is not confirmed yet"), look=5),
    ),
    "an agent that restarted before the start is sent the spec again": (
        bound(a_node(record=NEEDS_INPUTS), at=1),
        Shown(actions=(PUT,), told=PREPARING, look=5),
    ),
    "a command that has just begun is not written yet": (
        bound(a_node(record=a_record()), at=0.5),
        Shown(told=running(), fields=RAN, look=1),
    ),
    "a command that runs": (
        bound(a_node(record=a_record()), at=1),
        Shown(told=running(), fields=RAN, write=True, look=61),
    ),
    "a session that runs is written at once": (
        bound(a_node(record=a_record()), at=0.1, changes=SESSION),
        Shown(
            told=running(Ready="True Running: runs on node n1"),
            fields=RAN,
            write=True,
            look=60.1,
        ),
    ),
    "an agent's clock that is far ahead is not waited for": (
        bound(a_node(record=a_record(started_at=after(3600), deadline_at=after(4200))), at=1),
        Shown(
            told=running(),
            fields={
                "startTime": meta.format_time(after(3600)),
                "deadline": meta.format_time(after(4200)),
            },
            write=True,
            look=61,
        ),
    ),
    "a full node is waited for": (
        bound(failure=failed("Put", errors.Unavailable("no memory left", reason="NodeFull"))),
        Shown(
            actions=(PUT,),
            told=on_the_way("NodeFull", "node n1: no memory left"),
            write=True,
            look=70,
        ),
    ),
    "a certificate that is refused says nothing about the request": (
        bound(failure=failed("Put", errors.Refused("not you", reason="IdentityNotAllowed"))),
        Shown(
            actions=(PUT,),
            told=on_the_way("Unavailable", "node n1: not you"),
            write=True,
            look=70,
        ),
    ),
    "an engine that hangs": (
        bound(
            a_node(
                record=a_record(
                    waiting=Waiting(reason="EngineUnavailable", message="does not answer")
                )
            ),
            changes=SESSION,
        ),
        Shown(
            told=on_the_way(
                "EngineUnavailable",
                "does not answer",
                Ready="Unknown EngineUnavailable: does not answer",
            ),
            fields=RAN,
            write=True,
            look=70,
        ),
    ),
    "its owner ends it": (
        bound(a_node(record=a_record()), changes=TERMINATED),
        Shown(
            actions=(amended(state=State.TERMINATED),),
            told=on_the_way("CancelRequested", "the end was asked for and is not confirmed yet"),
            fields=RAN,
            look=70,
        ),
    ),
    "the agent knows that its owner ends it": (
        bound(a_node(record=a_record(generation=3)), changes=TERMINATED),
        Shown(
            told=on_the_way("CancelRequested", "the end was asked for and is not confirmed yet"),
            fields=RAN,
            look=70,
        ),
    ),
    "an end that cannot be confirmed": (
        bound(
            a_node(
                record=a_record(
                    generation=3, waiting=Waiting(reason="EngineUnavailable", message="hangs")
                )
            ),
            changes=TERMINATED,
        ),
        Shown(told=on_the_way("EngineUnavailable", "hangs"), fields=RAN, write=True, look=70),
    ),
    "a start that is taken back has to be confirmed by the agent": (
        bound(changes=TERMINATED),
        Shown(
            actions=(Remove(node="n1", uid=UID),),
            told=on_the_way(
                "CancelRequested", "waiting for node n1 to confirm that it will not start"
            ),
            look=70,
        ),
    ),
    "a longer deadline": (
        bound(
            a_node(record=a_record()),
            changes={"spec": {"activeDeadlineSeconds": 900}, "metadata": {"generation": 3}},
        ),
        Shown(
            actions=(amended(active_deadline_seconds=900),),
            told=running(),
            fields={**RAN, "resolved": {"activeDeadlineSeconds": 900}},
            write=True,
            look=70,
        ),
    ),
    "a deadline over the maximum that was pinned": (
        bound(
            a_node(record=a_record()),
            changes={"spec": {"activeDeadlineSeconds": 7200}, "metadata": {"generation": 3}},
        ),
        Shown(
            actions=(
                amended(active_deadline_seconds=3600),
                warned(
                    "DeadlineNotAllowed",
                    OVER_MAXIMUM,
                ),
            ),
            told=running(Stalled=f"True DeadlineNotAllowed: {OVER_MAXIMUM}"),
            fields={**RAN, "resolved": {"activeDeadlineSeconds": 3600}},
            write=True,
            look=70,
        ),
    ),
    "a node that drains lets it run until the drain's deadline": (
        bound(a_node(record=a_record(), object_=DRAINING)),
        Shown(told=running(), fields=RAN, write=True, look=60),
    ),
    "a drain that waits has no deadline": (
        bound(a_node(record=a_record(), object_=WAITING_ROOM)),
        Shown(told=running(), fields=RAN, write=True, look=70),
    ),
    "at the drain's deadline it is ended": (
        bound(a_node(record=a_record(), object_=DRAINING), at=60),
        Shown(
            actions=(amended(generation=2, state=State.TERMINATED, stop_reason="Drained"),),
            told=on_the_way("CancelRequested", "the end was asked for and is not confirmed yet"),
            fields=RAN,
            look=120,
        ),
    ),
    "a silent agent proves nothing": (
        bound(cut(a_record()), changes=SESSION),
        Shown(
            told=on_the_way("NodeUnreachable", SILENT, Ready=f"Unknown NodeUnreachable: {SILENT}"),
            fields=RAN,
            write=True,
            look=70,
            flags=frozenset({Flag.NODE_UNREACHABLE}),
        ),
    ),
    "an end that was asked of a silent agent": (
        bound(cut(a_record()), changes=TERMINATED),
        Shown(
            told=on_the_way("CancelRequested", f"the end is not confirmed: {SILENT}"),
            fields=RAN,
            write=True,
            look=70,
            flags=frozenset({Flag.NODE_UNREACHABLE}),
        ),
    ),
    "a start that cannot be sent": (
        bound(cut()),
        Shown(
            told=on_the_way("NodeUnreachable", SILENT),
            write=True,
            look=70,
            flags=frozenset({Flag.NODE_UNREACHABLE}),
        ),
    ),
    "a new leader first tries to reach every agent": (
        bound(cut(synced=False, report=None), leader_since=after(0)),
        Shown(
            told=on_the_way("NodeUnreachable", SILENT),
            look=30,
            flags=frozenset({Flag.NODE_UNREACHABLE}),
        ),
    ),
    "nodes that could not be read": (
        observed(
            a_bound_execution(), nodes=(), nodes_complete=False, now=after(10), leader_since=NOW
        ),
        Shown(
            told=on_the_way(
                "NodeUnreachable", "node n1 could not be read: what runs there may still run"
            ),
            look=30,
            flags=frozenset({Flag.NODE_UNREACHABLE}),
        ),
    ),
    "an agent of another version is left alone": (
        bound(a_node(record=a_record(), report={"wire_versions": (99,)}), changes=TERMINATED),
        Shown(
            told=on_the_way("CancelRequested", "the end was asked for and is not confirmed yet"),
            fields=RAN,
            look=70,
        ),
    ),
    "a pinned input has vanished before it was used": (
        with_secret(Absent()),
        Shown(
            actions=(warned("AwaitingInputs", INPUTS_GONE),),
            told=on_the_way(
                "AwaitingInputs", INPUTS_GONE, Stalled=f"True AwaitingInputs: {INPUTS_GONE}"
            ),
            fields={"resolved": {"inputs": [PINNED]}},
            write=True,
            look=70,
            flags=frozenset({Flag.AWAITING_INPUTS}),
        ),
    ),
    "a pinned input is another one now: its values are not used": (
        with_secret(Known(Input(uid="s", resource_version="8", data={"k": b"other"}))),
        Shown(
            actions=(warned("AwaitingInputs", INPUTS_CHANGED),),
            told=on_the_way(
                "AwaitingInputs", INPUTS_CHANGED, Stalled=f"True AwaitingInputs: {INPUTS_CHANGED}"
            ),
            fields={"resolved": {"inputs": [PINNED]}},
            write=True,
            look=70,
            flags=frozenset({Flag.AWAITING_INPUTS}),
        ),
    ),
    "an input that has vanished after its use is not missed": (
        with_secret(Absent(), a_node(record=a_record())),
        Shown(
            told=running(),
            fields={**RAN, "resolved": {"inputs": [PINNED]}},
            write=True,
            look=70,
        ),
    ),
    "a finalizer that somebody took off is put back first": (
        bound(a_node(record=a_record()), changes={"metadata": {"finalizers": None}}),
        Shown(
            actions=(
                Bind(
                    object=a_bound_execution().ref,
                    node="n1",
                    annotation=a_binding().annotation(),
                    finalizers=(meta.FINALIZER,),
                ),
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_goes_on(name: str) -> None:
    seen, want = GOES_ON[name]
    assert show(execution.plan(seen)) == want


FAILED = Outcome(succeeded=False, reason="NonZeroExit", message="exited with code 3", exit_code=3)
ENDED_AT = meta.format_time(after(3))
HERE = meta.format_time(after(10))
COUNTS = {"stdoutBytes": 3, "stderrBytes": 0, "truncated": False, "incomplete": False}
GONE = a_record(step=Step.DISPOSED, removing=True, nothing_left=True)
NEVER = a_record(
    step=Step.DISPOSED, removing=True, nothing_left=True, started_at=None, deadline_at=None
)
OTHER_EPOCH: dict[str, Any] = {"report": {"epoch": "e2"}}
LOST_RECORDS = "the agent of node n1 has lost the records it had when this was bound"
TOLD_TO_REMOVE = "node n1 was told to remove it, and how it ended is not known"

ENDS: dict[str, tuple[Observed, Shown]] = {
    "a command succeeds": (
        bound(a_node(record=an_ended_record())),
        Shown(
            told=ended("Succeeded", "exited with code 0", well=True),
            fields={**RAN, "completionTime": ENDED_AT, "exitCode": 0, "output": COUNTS},
            write=True,
        ),
    ),
    "a command fails": (
        bound(a_node(record=an_ended_record(FAILED))),
        Shown(
            actions=(warned("NonZeroExit", "exited with code 3"),),
            told=ended("NonZeroExit", "exited with code 3"),
            fields={**RAN, "completionTime": ENDED_AT, "exitCode": 3, "output": COUNTS},
            write=True,
        ),
    ),
    "a command was cancelled: whoever did it knows": (
        bound(
            a_node(
                record=an_ended_record(
                    Outcome(succeeded=False, reason="Cancelled", message="cancelled")
                )
            ),
            changes=TERMINATED,
        ),
        Shown(
            told=ended("Cancelled", "cancelled", stalled=False),
            fields={**RAN, "completionTime": ENDED_AT, "output": COUNTS},
            write=True,
        ),
    ),
    "a session ended as asked": (
        bound(
            a_node(
                record=an_ended_record(
                    Outcome(succeeded=True, reason="IdleTimeout", message="no command for 60 s")
                )
            ),
            changes=SESSION,
        ),
        Shown(
            told=ended(
                "IdleTimeout",
                "no command for 60 s",
                well=True,
                Ready="False IdleTimeout: no command for 60 s",
            ),
            fields={**RAN, "completionTime": ENDED_AT, "output": COUNTS},
            write=True,
        ),
    ),
    "an outcome is read from a silent agent's last word": (
        bound(cut(an_ended_record())),
        Shown(
            told=ended("Succeeded", "exited with code 0", well=True),
            fields={**RAN, "completionTime": ENDED_AT, "exitCode": 0, "output": COUNTS},
            write=True,
        ),
    ),
    "an outcome is told though its node was declared off since": (
        bound(cut(an_ended_record(), object_=OFF)),
        Shown(
            told=ended("Succeeded", "exited with code 0", well=True),
            fields={**RAN, "completionTime": ENDED_AT, "exitCode": 0, "output": COUNTS},
            write=True,
        ),
    ),
    "a reason that is in no list is not passed on as one": (
        bound(
            a_node(
                record=an_ended_record(
                    Outcome(succeeded=False, reason="FluxInverted", message="of a later version")
                )
            )
        ),
        Shown(
            actions=(warned("InternalError", "FluxInverted: of a later version"),),
            told=ended("InternalError", "FluxInverted: of a later version"),
            fields={**RAN, "completionTime": ENDED_AT, "output": COUNTS},
            write=True,
        ),
    ),
    "an end in the future did not happen there": (
        bound(a_node(record=an_ended_record(ended_at=after(3600)))),
        Shown(
            told=ended("Succeeded", "exited with code 0", well=True),
            fields={**RAN, "completionTime": HERE, "exitCode": 0, "output": COUNTS},
            write=True,
        ),
    ),
    "the node was declared off": (
        bound(cut(a_record(), object_=OFF)),
        Shown(
            actions=(warned("NodeLost", "node n1 was declared out of service: it burnt"),),
            told=ended("NodeLost", "node n1 was declared out of service: it burnt"),
            fields={**RAN, "completionTime": HERE},
            write=True,
        ),
    ),
    "the node's object was deleted": (
        observed(a_bound_execution(), nodes=(), now=after(10)),
        Shown(
            actions=(warned("NodeLost", "ExecutionNode n1 was deleted"),),
            told=ended("NodeLost", "ExecutionNode n1 was deleted"),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
    "the node is back with an empty store, and it had run": (
        with_status(bound(a_node(**OTHER_EPOCH)), start_time=NOW, deadline=after(600)),
        Shown(
            actions=(Remove(node="n1", uid=UID), warned("ContainerLost", LOST_RECORDS)),
            told=ended("ContainerLost", LOST_RECORDS),
            fields={**RAN, "completionTime": HERE},
            write=True,
        ),
    ),
    "the node is back with an empty store, and nobody knows whether it had run": (
        bound(a_node(**OTHER_EPOCH)),
        Shown(
            actions=(Remove(node="n1", uid=UID), warned("StartUnconfirmed", LOST_RECORDS)),
            told=ended("StartUnconfirmed", LOST_RECORDS),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
    "it ran, and its record has vanished": (
        with_status(bound(), start_time=NOW, deadline=after(600)),
        Shown(
            actions=(
                Remove(node="n1", uid=UID),
                warned("ContainerLost", "it ran, and node n1 has no record of it any more"),
            ),
            told=ended("ContainerLost", "it ran, and node n1 has no record of it any more"),
            fields={**RAN, "completionTime": HERE},
            write=True,
        ),
    ),
    "somebody had the agent remove it while it ran": (
        with_status(bound(a_node(record=GONE)), start_time=NOW, deadline=after(600)),
        Shown(
            actions=(warned("ContainerLost", TOLD_TO_REMOVE),),
            told=ended("ContainerLost", TOLD_TO_REMOVE),
            fields={**RAN, "completionTime": HERE},
            write=True,
        ),
    ),
    "the agent confirms that a start that was taken back will not happen": (
        bound(a_node(record=NEVER), changes=TERMINATED),
        Shown(
            told=ended("Cancelled", "cancelled; nothing had run", stalled=False),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
    "the node was drained before it was started": (
        bound(a_node(record=NEVER, object_=DRAINING), at=60),
        Shown(
            actions=(warned("Drained", "node n1 was drained before it was started"),),
            told=ended("Drained", "node n1 was drained before it was started"),
            fields={"completionTime": meta.format_time(after(60))},
            write=True,
        ),
    ),
    "the node's own policy refuses it": (
        bound(failure=failed("Put", errors.Refused("memory over 1Gi", reason="NodePolicy"))),
        Shown(
            actions=(warned("NotAllowed", "node n1: memory over 1Gi"),),
            told=ended("NotAllowed", "node n1: memory over 1Gi"),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
    "the agent finds the request malformed": (
        bound(failure=failed("Put", errors.Invalid("bad user"))),
        Shown(
            actions=(warned("InvalidRequest", "node n1: bad user"),),
            told=ended("InvalidRequest", "node n1: bad user"),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
    "the agent knows that it has ended there before": (
        bound(failure=failed("Put", errors.Conflict("ended before", reason="AlreadyEnded"))),
        Shown(
            actions=(warned("StartUnconfirmed", "node n1: ended before"),),
            told=ended("StartUnconfirmed", "node n1: ended before"),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
    "the agent knows the uid with another spec": (
        bound(failure=failed("Put", errors.Conflict("another spec"))),
        Shown(
            actions=(warned("Conflict", "node n1: another spec"),),
            told=ended("Conflict", "node n1: another spec"),
            fields={"completionTime": HERE},
            write=True,
        ),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends(name: str) -> None:
    seen, want = ENDS[name]
    got = show(execution.plan(seen))
    assert got == replace(want, actions=tuple(_at(seen, a) for a in want.actions))


def _at(seen: Observed, action: act.Action) -> act.Action:
    return replace(action, object=seen.object.ref) if isinstance(action, Emit) else action


@pytest.mark.parametrize("text", ["", "{}", "not json", a_binding(uid="another").annotation()])
def test_a_binding_that_cannot_be_read_starts_nothing(text: str) -> None:
    changes = {"metadata": {"annotations": {binding.ANNOTATION: text}}}
    plan = execution.plan(bound(changes=changes))
    assert plan.actions[0] == Remove(node="n1", uid=UID)
    assert show(plan).told["Succeeded"].startswith("False StartUnconfirmed")


def test_a_binding_that_cannot_be_read_loses_nothing_that_runs() -> None:
    changes = {"metadata": {"annotations": {binding.ANNOTATION: ""}}}
    plan = execution.plan(bound(a_node(record=a_record()), changes=changes))
    assert show(plan).told == running()


@pytest.mark.parametrize(
    "failure",
    [
        failed("Put", errors.Unavailable("no")),
        failed("Put", errors.Unconfirmed("no answer")),
        failed("Put", errors.Fenced("a newer leader")),
        failed("Put", errors.NotFound("no such path")),
        failed("Amend", errors.Refused("no", reason="NodePolicy")),
        replace(failed("Put", errors.Invalid("no")), node="n9"),
    ],
    ids=lambda f: f"{f.action} {f.kind} {f.node}",
)
def test_a_failure_that_may_pass_is_tried_again(failure: Failure) -> None:
    plan = execution.plan(bound(failure=failure))
    assert PUT in plan.actions


def test_a_later_class_changes_nothing_of_what_is_bound() -> None:
    other = Known(
        (
            worlds.a_class(
                runtimeHandler="kata", images={"allowed": [worlds.TAG], "resolveTags": True}
            ),
        )
    )
    for known in (other, Known(()), Unknown()):
        assert execution.plan(bound(classes=known)) == execution.plan(bound())


def test_another_agent_that_has_it_is_told_to_remove_it() -> None:
    seen = bound(a_node(record=a_record()))
    double = replace(seen, nodes=(*seen.nodes, a_node("n2", record=a_record())))
    plan = execution.plan(double)
    assert plan.actions == (Remove(node="n2", uid=UID),)
    assert plan.status == execution.plan(seen).status


# After the end.


def finished(
    node: NodeFacts | None = None, *, at: float = 100, changes: Any = None, **fields: Any
) -> Observed:
    """The object with its outcome written, a while later."""
    ended_plan = execution.plan(bound(a_node(record=an_ended_record()), changes=changes))
    seen = bound(node or a_node(record=an_ended_record()), at=at, changes=changes)
    return with_status(seen, **{**dict(ended_plan.status), **fields})


TTL = {"spec": {"ttlSecondsAfterFinished": 60}}


def test_the_end_is_quiet() -> None:
    plan = execution.plan(finished())
    assert (plan.actions, plan.write_status, plan.look_again_at) == ((), False, None)


@pytest.mark.parametrize(
    "node",
    [
        a_node(),
        a_node(**OTHER_EPOCH),
        cut(),
        cut(synced=False, report=None, record=Unknown()),
        cut(object_=OFF),
        a_node(record=GONE),
        a_node(record=an_ended_record(FAILED)),
    ],
)
def test_an_outcome_stands_whatever_becomes_of_the_facts(node: NodeFacts) -> None:
    seen = finished(node)
    plan = execution.plan(seen)
    assert plan.status == seen.object.status
    assert plan.actions == ()


def test_a_tail_that_came_late_is_added() -> None:
    changes = {"spec": {"output": {"statusTailBytes": 8}}}
    late = an_ended_record(output=OutputFacts(stdout_bytes=5, stdout_tail=b"late\n"))
    plan = execution.plan(finished(a_node(record=late), changes=changes))
    assert plan.write_status
    assert plan.status.output is not None
    assert plan.status.output.stdout_tail == "late\n"


@pytest.mark.parametrize(("at", "deleted"), [(62.999, False), (63, True), (64, True)])
def test_the_time_to_live_is_over_exactly_when_it_is(at: float, deleted: bool) -> None:
    seen = finished(at=at, changes=TTL)
    plan = execution.plan(seen)
    assert plan.actions == ((act.DeleteObject(object=seen.object.ref),) if deleted else ())
    if not deleted:
        assert plan.look_again_at == after(63)


@pytest.mark.parametrize(
    ("wall", "reckoned", "deleted", "again"),
    [
        (63, 63, True, 63),
        (86_400, 10, False, 86_400 + 53),  # The clock was set ahead,
        (86_400, 62.5, False, 86_400.5),
        (86_400, 63, True, 86_400),
        (40, 63, False, 63),  # or back.
        (70, 100_000, True, 63),
    ],
)
def test_a_clock_that_is_set_ahead_deletes_nothing_early(
    wall: float, reckoned: float, deleted: bool, again: float
) -> None:
    seen = replace(finished(at=wall, changes=TTL), reckoned=after(reckoned))
    plan = execution.plan(seen)
    assert plan.actions == ((act.DeleteObject(object=seen.object.ref),) if deleted else ())
    if not deleted:
        assert plan.look_again_at == after(again)


def test_a_change_after_the_end_is_acknowledged_in_every_condition() -> None:
    seen = finished()
    metadata = seen.object.metadata.model_copy(update={"generation": 7})
    plan = execution.plan(replace(seen, object=replace(seen.object, metadata=metadata)))
    assert plan.write_status
    assert {c.observed_generation for c in plan.status.conditions} == {7}
    assert plan.status.observed_generation == 7


def test_work_that_was_given_up_for_lost_is_ended_when_its_node_is_back() -> None:
    lost = execution.plan(bound(cut(a_record(), object_=OFF)))
    seen = with_status(bound(a_node(record=a_record()), at=600), **dict(lost.status))
    plan = execution.plan(seen)
    assert plan.actions == (
        amended(generation=2, state=State.TERMINATED, active_deadline_seconds=None),
    )
    assert plan.status == seen.object.status
