"""An Execution without a node, as a table: a healthy base, one change, the whole plan."""

from dataclasses import replace

import pytest

from isolet.api import meta
from isolet.base import names
from isolet.plan import execution
from isolet.plan.actions import Bind, Emit, EventType, Flag, Put
from isolet.plan.binding import Binding
from isolet.plan.model import (
    Absent,
    Input,
    InputRef,
    Known,
    NodeFacts,
    Observed,
    Unknown,
)
from isolet.plan.objects import read_execution
from isolet.wire.execution import EnvVar, ExecutionSpec, ExecutionWanted, Medium, Step, Workspace
from isolet.wire.node import Amounts
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.shown import Shown, ended, on_the_way, show, waiting
from tests.unit.plan.operator.worlds import (
    IMAGE,
    IMAGE_ID,
    NOW,
    TAG,
    UID,
    a_binding,
    a_class,
    a_node,
    a_pinned,
    a_record,
    after,
    an_execution,
    observed,
)


def warned(seen: Observed, reason: str, message: str) -> Emit:
    return Emit(
        object=seen.object.ref,
        type=EventType.WARNING,
        reason=reason,
        message=message,
        key=names.short_digest(UID, reason),
    )


def bound_by(seen: Observed, binding: Binding, node: str = "n1") -> Bind:
    return Bind(
        object=seen.object.ref,
        node=node,
        annotation=binding.annotation(),
        finalizers=(meta.FINALIZER,),
    )


WANTED = ExecutionWanted(
    uid=UID,
    namespace="team",
    name="hello",
    class_name="standard",
    generation=2,
    spec=ExecutionSpec(
        image=IMAGE,
        resources=worlds.RESOURCES,
        workspace=Workspace(medium=Medium.MEMORY),
        command=("sh", "-c", "make test"),
        maximum_deadline_seconds=3600,
    ),
    active_deadline_seconds=600,
)
PREPARING = on_the_way("Preparing", "the sandbox is being made")


def test_a_fit_node_is_bound_and_the_start_goes_right_behind() -> None:
    seen = observed()
    assert show(execution.plan(seen)) == Shown(
        actions=(bound_by(seen, a_binding()), Put(node="n1", wanted=WANTED)),
        told=PREPARING,
        look=2,
    )


def test_a_tag_is_bound_to_the_id_it_stands_for_on_that_node() -> None:
    seen = observed(
        an_execution(spec={"image": TAG}),
        classes=Known((a_class(images={"allowed": [TAG], "resolveTags": True}),)),
    )
    plan = execution.plan(seen)
    bind, put = plan.actions
    assert bind == bound_by(seen, a_binding(pinned=a_pinned(image=TAG, run=IMAGE_ID)))
    assert isinstance(put, Put)
    assert put.wanted.spec.image == IMAGE_ID
    assert plan.status.resolved is not None
    assert (plan.status.resolved.image, plan.status.resolved.image_id) == (TAG, IMAGE_ID)


def test_other_finalizers_stay() -> None:
    seen = observed(an_execution(metadata={"finalizers": ["other.example/keep"]}))
    bind = execution.plan(seen).actions[0]
    assert isinstance(bind, Bind)
    assert bind.finalizers == ("other.example/keep", meta.FINALIZER)


SECRET = InputRef("Secret", "keys")
REFERS = {"env": [{"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]}
OPEN = Known((a_class(env={"allowSecretRefs": True}),))


def test_values_go_to_the_agent_and_only_their_version_into_the_object() -> None:
    seen = observed(
        an_execution(spec=REFERS),
        classes=OPEN,
        inputs={SECRET: Known(Input(uid="s1", resource_version="7", data={"k": b"canary-42"}))},
    )
    plan = execution.plan(seen)
    bind, put = plan.actions
    assert isinstance(put, Put)
    assert put.wanted.spec.env == (EnvVar(name="API_KEY", value=b"canary-42", secret=True),)
    assert isinstance(bind, Bind)
    assert '"resourceVersion":"7"' in bind.annotation
    assert "canary" not in repr(plan) + bind.annotation + plan.status.model_dump_json()
    assert "canary" not in repr(seen)


def silent(name: str) -> NodeFacts:
    return replace(a_node(name), reachable=False, synced=False, report=None, record=Unknown())


OLD = {"creationTimestamp": meta.format_time(after(-600))}
AWAITS_N2 = (
    "it may already run on n2, which this operator has not reached since it began: bring the agent"
    " back, or set spec.outOfService on a node that is off"
)
FULL = Amounts(cpu_millis=8000)
NO_IMAGE = a_node(report={"images": ()})
MISSING = f"0/1 nodes can take it: 1 without image {IMAGE}"
GONE = f"image {IMAGE} is on no node, and images are never pulled: {MISSING}"

WAITS: dict[str, tuple[Observed, Shown]] = {
    "a class that is not there may still come, and a moment is waited before saying so": (
        observed(classes=Known(())),
        Shown(
            told=waiting("False", "ClassNotFound", "there is no ExecutionClass standard"),
            look=1,
        ),
    ),
    "classes that could not be read are not absent": (
        observed(classes=Unknown()),
        Shown(told=waiting("Unknown", "Pending", "the classes could not be read"), look=9),
    ),
    "a namespace that could not be read": (
        observed(namespace_labels=Unknown()),
        Shown(told=waiting("Unknown", "Pending", "its namespace could not be read"), look=9),
    ),
    "nodes that could not be read": (
        observed(nodes_complete=False),
        Shown(told=waiting("Unknown", "Pending", "the nodes could not be read"), look=9),
    ),
    "two default classes": (
        observed(
            an_execution(spec={"className": None}),
            classes=Known((a_class("b", isDefault=True), a_class("a", isDefault=True))),
        ),
        Shown(
            told=waiting(
                "False",
                "ClassAmbiguous",
                "className is absent and a, b all say isDefault: true",
            ),
            look=1,
        ),
    ),
    "no default class": (
        observed(an_execution(spec={"className": None})),
        Shown(
            told=waiting(
                "False",
                "ClassNotFound",
                "className is absent and no ExecutionClass is the default",
            ),
            look=1,
        ),
    ),
    "an input that is not there": (
        observed(an_execution(spec=REFERS), classes=OPEN, inputs={SECRET: Absent()}),
        Shown(
            told=waiting("False", "AwaitingInputs", "Secret keys is not there (env API_KEY)"),
            look=1,
            flags=frozenset({Flag.AWAITING_INPUTS}),
        ),
    ),
    "an input that could not be read": (
        observed(an_execution(spec=REFERS), classes=OPEN, inputs={}),
        Shown(
            told=waiting("Unknown", "AwaitingInputs", "Secret keys could not be read"),
            look=9,
            flags=frozenset({Flag.AWAITING_INPUTS}),
        ),
    ),
    "a key that is not there": (
        observed(
            an_execution(spec=REFERS),
            classes=OPEN,
            inputs={SECRET: Known(Input(uid="s", resource_version="1", data={"x": b""}))},
        ),
        Shown(
            told=waiting(
                "False", "AwaitingInputs", "key k of Secret keys is not there (env API_KEY)"
            ),
            look=1,
            flags=frozenset({Flag.AWAITING_INPUTS}),
        ),
    ),
    "no node has room": (
        observed(nodes=(a_node(report={"allocated": FULL}),)),
        Shown(
            told=waiting("False", "Unschedulable", "0/1 nodes can take it: 1 full"),
            look=1,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
    "what was promised counts before the agent tells of it": (
        observed(nodes=(a_node(promised=FULL),)),
        Shown(
            told=waiting("False", "Unschedulable", "0/1 nodes can take it: 1 full"),
            look=1,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
    "there is no node at all, which is no missing image": (
        observed(nodes=()),
        Shown(
            told=waiting("False", "Unschedulable", "0/0 nodes: there is no ExecutionNode"),
            look=1,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
    "an image that was just loaded may not be told yet": (
        observed(nodes=(NO_IMAGE,)),
        Shown(
            told=waiting("False", "Unschedulable", MISSING),
            look=4,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
    "an unread node may have the image": (
        observed(nodes=(NO_IMAGE, silent("n2")), now=after(8)),
        Shown(
            actions=(
                warned(
                    observed(),
                    "Unschedulable",
                    f"0/2 nodes can take it: 1 unreachable, 1 without image {IMAGE}",
                ),
            ),
            told=waiting(
                "False",
                "Unschedulable",
                f"0/2 nodes can take it: 1 unreachable, 1 without image {IMAGE}",
            ),
            write=True,
            look=68,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
    "an older object may run where nobody has looked yet": (
        observed(
            an_execution(metadata=OLD),
            nodes=(a_node(), silent("n2")),
            leader_since=after(-60),
        ),
        Shown(
            actions=(warned(observed(an_execution(metadata=OLD)), "Unschedulable", AWAITS_N2),),
            told=waiting("False", "Unschedulable", AWAITS_N2),
            write=True,
            look=60,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
    "an object made shortly after the leader began is taken for an older one: clocks differ": (
        observed(nodes=(a_node(), silent("n2")), leader_since=after(-20)),
        Shown(
            told=waiting("False", "Unschedulable", AWAITS_N2),
            look=9,
            flags=frozenset({Flag.UNSCHEDULABLE}),
        ),
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits(name: str) -> None:
    seen, want = WAITS[name]
    assert show(execution.plan(seen)) == want


BAD_SPEC = {"command": None, "image": "no pin"}

ENDS: dict[str, tuple[Observed, str, str]] = {
    "a spec that cannot be read": (
        observed(an_execution(spec={"activeDeadlineSeconds": 0})),
        "InvalidSpec",
        "spec.activeDeadlineSeconds: Input should be greater than or equal to 1",
    ),
    "a class that is not granted": (
        observed(classes=Known((a_class(namespaceSelector={"matchLabels": {"team": "b"}}),))),
        "ClassNotAllowed",
        "ExecutionClass standard is not granted to namespace team (spec.namespaceSelector)",
    ),
    "an image that is on no node, after a moment": (
        observed(nodes=(NO_IMAGE,), now=after(4)),
        "ImageMissing",
        GONE,
    ),
    "a node that is out of service is no hope for an image": (
        observed(
            nodes=(
                NO_IMAGE,
                replace(
                    silent("n2"),
                    object=worlds.a_node_object(
                        "n2", spec={"outOfService": {"reason": "unplugged"}}
                    ),
                ),
            ),
            now=after(4),
        ),
        "ImageMissing",
        f"image {IMAGE} is on no node, and images are never pulled:"
        f" 0/2 nodes can take it: 1 out of service, 1 without image {IMAGE}",
    ),
    "its scheduling deadline, to the moment": (
        observed(
            an_execution(spec={"schedulingDeadlineSeconds": 60}),
            nodes=(a_node(report={"allocated": FULL}),),
            now=after(59),
        ),
        "SchedulingDeadlineExceeded",
        "no node was bound within 60 s: 0/1 nodes can take it: 1 full",
    ),
    "the class's scheduling deadline": (
        observed(
            nodes=(a_node(report={"allocated": FULL}),),
            classes=Known((a_class(deadlines={"schedulingDeadlineSeconds": 30}),)),
            now=after(29),
        ),
        "SchedulingDeadlineExceeded",
        "no node was bound within 30 s: 0/1 nodes can take it: 1 full",
    ),
    "an agent that had it and has removed it: etcd was restored": (
        observed(
            nodes=(
                a_node("n0"),
                a_node(record=a_record(step=Step.DISPOSED, removing=True, nothing_left=True)),
            )
        ),
        "StartUnconfirmed",
        "node n1 had it before and has removed it; it is not run again",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_without_a_node(name: str) -> None:
    seen, reason, message = ENDS[name]
    assert show(execution.plan(seen)) == Shown(
        actions=(warned(seen, reason, message),),
        told=ended(reason, message, scheduled=None),
        fields={"completionTime": meta.format_time(seen.now)},
        write=True,
    )


def test_a_deadline_is_not_over_before_it_is_reached() -> None:
    seen = observed(
        an_execution(spec={"schedulingDeadlineSeconds": 60}),
        nodes=(a_node(report={"allocated": FULL}),),
        now=after(58.9),
    )
    plan = execution.plan(seen)
    assert plan.look_again_at == after(59)


def test_what_could_not_be_read_never_ends_anything() -> None:
    seen = observed(
        an_execution(metadata=OLD, spec={"schedulingDeadlineSeconds": 60}),
        nodes=(a_node(), silent("n2")),
    )
    seen = replace(seen, leader_since=after(-60))
    assert show(execution.plan(seen)).told["Succeeded"].startswith("Unknown Unschedulable")


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (
            {"desiredState": "Terminated"},
            ended("Cancelled", "cancelled; nothing had run", scheduled=None, stalled=False),
        ),
        (
            {"desiredState": "Terminated", "command": None},
            ended(
                "Terminated",
                "terminated as asked; nothing had run",
                well=True,
                scheduled=None,
                Ready="False Terminated: terminated as asked; nothing had run",
            ),
        ),
    ],
    ids=["a command", "a session"],
)
def test_taken_back_before_anything_ran(spec: dict[str, object], want: dict[str, str]) -> None:
    seen = observed(an_execution(spec=spec), classes=Known(()), nodes=(a_node(),))
    assert show(execution.plan(seen)) == Shown(
        told=want, fields={"completionTime": meta.format_time(NOW)}, write=True
    )


ADOPTED: dict[str, tuple[Observed, str, bool]] = {
    "an agent has it": (observed(nodes=(a_node("n0"), a_node(record=a_record()))), "n1", True),
    "it is adopted though its class has gone": (
        observed(nodes=(a_node(record=a_record()),), classes=Known(())),
        "n1",
        False,
    ),
    "it is adopted though it would be refused today": (
        observed(
            nodes=(a_node(record=a_record()),),
            classes=Known((a_class(namespaceSelector={"matchLabels": {"team": "b"}}),)),
        ),
        "n1",
        False,
    ),
    "it is adopted though it is to end": (
        observed(
            an_execution(spec={"desiredState": "Terminated"}), nodes=(a_node(record=a_record()),)
        ),
        "n1",
        True,
    ),
    "it is adopted while other agents are silent": (
        observed(
            an_execution(metadata=OLD),
            nodes=(silent("n0"), a_node(record=a_record())),
            leader_since=NOW,
        ),
        "n1",
        True,
    ),
    "the one that still has something of it comes before one that had": (
        observed(
            nodes=(
                a_node("n0", record=a_record(removing=True, nothing_left=True)),
                a_node(record=a_record()),
            )
        ),
        "n1",
        True,
    ),
}


@pytest.mark.parametrize("name", ADOPTED)
def test_what_an_agent_already_has_is_bound_there_and_not_sent_again(name: str) -> None:
    seen, node, pinned = ADOPTED[name]
    plan = execution.plan(seen)
    (bind,) = plan.actions
    assert bind == bound_by(seen, a_binding(pinned=a_pinned() if pinned else None), node)
    assert not plan.write_status


def test_a_wait_is_told_once_and_written_once() -> None:
    seen = observed(classes=Known(()), now=after(1))
    plan = execution.plan(seen)
    assert [type(a) for a in plan.actions] == [Emit]
    assert plan.write_status
    raw = worlds.stored(worlds.execution_object(), plan.status)
    later = replace(seen, object=read_execution(raw), now=after(300))
    assert show(execution.plan(later)) == replace(
        show(plan), actions=(), write=False, look=300 + 60
    )
