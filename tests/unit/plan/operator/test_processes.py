"""Processes: what differs from Executions, as tables over a healthy base."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.api import conditions as cond
from isolet.api import meta
from isolet.plan import binding, execution, objects
from isolet.plan.actions import Amend, Bind, Plan, Put, Remove
from isolet.plan.model import (
    Absent,
    ErrorKind,
    Failure,
    Input,
    InputRef,
    Known,
    NodeFacts,
    Observed,
    Unknown,
)
from isolet.wire.execution import EnvVar, Medium, OOMSeen, Outcome, Step, Workspace
from isolet.wire.node import Amounts
from isolet.wire.process import (
    Artifact,
    ArtifactProblem,
    OnOverflow,
    OutputPolicy,
    ProcessAmendment,
    ProcessOutputFacts,
    ProcessSpec,
    ProcessState,
    ProcessWanted,
    Sandbox,
    StagedFile,
)
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.worlds import (
    HOST_UID,
    IMAGE,
    UID,
    a_bound_process,
    a_host,
    a_node,
    a_process,
    a_process_record,
    after,
    inside_binding,
    observed,
)

SECRET, CONFIG = InputRef("Secret", "keys"), InputRef("ConfigMap", "data")
INPUTS = {
    SECRET: Known(Input(uid="s", resource_version="7", data={"k": b"canary-42"})),
    CONFIG: Known(Input(uid="c", resource_version="8", data={"k": b"\0\xff"})),
}
OPEN = Known((worlds.a_class(env={"allowSecretRefs": True}),))

TAKEN_BACK = Known(
    (
        worlds.a_class(
            env={"allowSecretRefs": True}, namespaceSelector={"matchLabels": {"team": "b"}}
        ),
    )
)


def key_of(ref: InputRef) -> dict[str, str]:
    return {"name": ref.name, "key": "k"}


def told(plan: Plan) -> str:
    found = cond.get(plan.status.conditions, cond.SUCCEEDED)
    assert found is not None
    return f"{found.status} {found.reason}: {found.message}"


def put(plan: Plan) -> ProcessWanted:
    found = next(action for action in plan.actions if isinstance(action, Put))
    assert isinstance(found.wanted, ProcessWanted)
    return found.wanted


_FACTS = (Absent, Unknown)


def inside(host: Any = None, process: Any = None, **changes: Any) -> Observed:
    fact = Known(a_host() if host is None else host) if not isinstance(host, _FACTS) else host
    return observed(process or a_process(True), **{"host": fact, **changes})


def test_a_sandbox_of_its_own_is_placed_bound_and_started() -> None:
    plan = execution.plan(observed(a_process()))
    bind = plan.actions[0]
    assert isinstance(bind, Bind)
    assert (bind.object.kind, bind.node) == ("Process", "n1")
    assert put(plan) == ProcessWanted(
        uid=UID,
        namespace="team",
        name="hello",
        class_name="standard",
        generation=2,
        spec=ProcessSpec(
            sandbox=Sandbox(
                image=IMAGE,
                resources=worlds.RESOURCES,
                workspace=Workspace(medium=Medium.MEMORY),
            ),
            command=("sh", "-c", "make test"),
            timeout_seconds=600,
            maximum_deadline_seconds=3600,
        ),
    )
    assert not plan.write_status


def test_one_in_a_session_is_bound_to_its_node_and_pins_its_uid() -> None:
    nodes = (a_node("n0"), a_node("n1"), a_node("n2"))
    plan = execution.plan(inside(a_host(node="n2"), nodes=nodes))
    bind = plan.actions[0]
    assert isinstance(bind, Bind)
    assert bind.node == "n2"
    assert put(plan).spec.execution_uid == HOST_UID
    assert put(plan).spec.sandbox is None
    assert plan.status.execution_uid == HOST_UID  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"command": ["true"], "timeoutSeconds": None}, 600),
        ({"command": None, "shell": "true", "timeoutSeconds": None}, 30),
        ({"command": None, "code": {"language": "sh", "source": "x"}, "timeoutSeconds": 9}, 9),
    ],
)
def test_how_long_it_may_run(given: dict[str, Any], seconds: int) -> None:
    plan = execution.plan(observed(a_process(spec=given)))
    assert put(plan).spec.timeout_seconds == seconds


def test_values_of_files_stdin_and_env_only_go_to_the_agent() -> None:
    files = [
        {"path": "a", "content": "text", "mode": 0o600},
        {"path": "b", "contentBase64": "AP8="},
        {"path": "c", "secretKeyRef": key_of(SECRET)},
        {"path": "d", "configMapKeyRef": key_of(CONFIG)},
    ]
    env = [{"name": "API_KEY", "valueFrom": {"secretKeyRef": key_of(SECRET)}}]
    spec = {"files": files, "env": env, "stdin": {"secretKeyRef": key_of(SECRET)}}
    plan = execution.plan(observed(a_process(spec=spec), classes=OPEN, inputs=INPUTS))
    wanted = put(plan).spec
    assert wanted.files == (
        StagedFile(path="a", content=b"text", mode=0o600),
        StagedFile(path="b", content=b"\0\xff"),
        StagedFile(path="c", content=b"canary-42"),
        StagedFile(path="d", content=b"\0\xff"),
    )
    assert wanted.stdin == b"canary-42"
    assert wanted.env == (EnvVar(name="API_KEY", value=b"canary-42", secret=True),)
    bind = plan.actions[0]
    assert isinstance(bind, Bind)
    assert "canary" not in repr(plan) + bind.annotation + plan.status.model_dump_json()
    assert plan.status.resolved is not None
    pinned = plan.status.resolved.inputs or ()
    assert [(i.kind, i.resource_version) for i in pinned] == [("ConfigMap", "8"), ("Secret", "7")]


def test_the_output_policy_is_passed_on() -> None:
    output = {"onOverflow": "Fail", "limit": "64Ki", "statusTailBytes": 9}
    plan = execution.plan(observed(a_process(spec={"output": output})))
    assert put(plan).spec.output == OutputPolicy(
        on_overflow=OnOverflow.FAIL, limit_bytes=65_536, status_tail_bytes=9
    )


LOST = Outcome(succeeded=False, reason="ContainerLost", message="gone")
STDIN = {"stdin": {"secretKeyRef": key_of(SECRET)}}
COMMAND = replace(
    a_host(), object=objects.read_execution(worlds.bound_object(metadata={"uid": HOST_UID}))
)
ENDING = replace(
    a_host(),
    object=objects.read_execution(
        worlds.bound_object(
            worlds.a_binding(uid=HOST_UID),
            metadata={"uid": HOST_UID, "name": "session"},
            spec={"command": None, "desiredState": "Terminated"},
        )
    ),
)
AWAITS = "Unknown AwaitingExecution: Execution session"
WAITS: dict[str, tuple[Observed, str]] = {
    "its Execution is not there": (inside(host=Absent()), f"{AWAITS} is not there"),
    "its Execution could not be read": (inside(host=Unknown()), f"{AWAITS} could not be read"),
    "its Execution does not run yet": (
        inside(a_host(running=False)),
        f"{AWAITS} does not run (yet)",
    ),
    "its Execution is to end": (inside(ENDING), f"{AWAITS} does not run (yet)"),
    "nobody knows whether it runs": (inside(a_host(heard=False)), f"{AWAITS} does not run (yet)"),
    "the node of its Execution is silent": (
        inside(nodes=(replace(a_node(), reachable=False),)),
        "Unknown AwaitingExecution: node n1 of Execution session does not answer",
    ),
    "its namespace could not be read, and it needs a Secret": (
        inside(
            process=a_process(True, spec=STDIN),
            classes=OPEN,
            inputs=INPUTS,
            namespace_labels=Unknown("down"),
        ),
        "Unknown Pending: its namespace could not be read",
    ),
    "an input is not there": (
        inside(process=a_process(True, spec=STDIN), classes=OPEN, inputs={SECRET: Absent()}),
        "Unknown AwaitingInputs: Secret keys is not there (stdin)",
    ),
}


@pytest.mark.parametrize("case", WAITS)
def test_it_waits_for(case: str) -> None:
    seen, said = WAITS[case]
    plan = execution.plan(replace(seen, now=after(20)))
    assert plan.actions == () or not isinstance(plan.actions[0], Bind)
    assert told(plan) == said
    assert plan.write_status


REFUSED: dict[str, tuple[Observed, str]] = {
    "its Execution has ended": (
        inside(a_host(ended=worlds.SUCCEEDED)),
        "False ExecutionEnded: Execution session has ended (Succeeded); nothing had run",
    ),
    "its Execution runs a command": (
        inside(COMMAND),
        "False InvalidSpec: executionRef: Execution session has a command: only a session takes"
        " Processes",
    ),
    "it may run longer than its Execution ever may": (
        inside(process=a_process(True, spec={"timeoutSeconds": 3601})),
        "False DeadlineNotAllowed: timeoutSeconds 3601 is over the maximum 3600 of Execution"
        " session",
    ),
    "the class of its Execution allows no Secrets": (
        inside(process=a_process(True, spec=STDIN), inputs=INPUTS),
        "False SecretNotAllowed: ExecutionClass standard allows no values from Secrets: stdin",
    ),
    "the class of its Execution is not granted any more": (
        inside(
            process=a_process(True, spec=STDIN),
            classes=TAKEN_BACK,
            inputs=INPUTS,
        ),
        "False ClassNotAllowed: ExecutionClass standard is not granted to namespace team any"
        " more (spec.namespaceSelector), so no values from Secrets: stdin",
    ),
    "its own class allows no Secrets": (
        observed(a_process(spec=STDIN), inputs=INPUTS),
        "False SecretNotAllowed: ExecutionClass standard allows no values from Secrets: stdin",
    ),
    "it may run longer than its class lets anyone": (
        observed(a_process(spec={"timeoutSeconds": 3601})),
        "False DeadlineNotAllowed: timeoutSeconds 3601 is over the maximum 3600 of ExecutionClass"
        " standard",
    ),
    "a repository that its class does not grant": (
        observed(
            a_process(
                spec={"template": {"workspace": {"git": {"repository": "r", "revision": "main"}}}}
            )
        ),
        "False RepositoryNotAllowed: ExecutionClass standard does not allow Git repository r"
        " (spec.workspace.gitRepositories)",
    ),
    "its deadline has passed": (
        observed(a_process(spec={"deadlineAt": meta.format_time(after(-1))})),
        "False DeadlineExceeded: deadlineAt passed before a node was bound; nothing had run",
    ),
    "its owner took it back": (
        observed(a_process(spec={"desiredState": "Cancelled"})),
        "False Cancelled: cancelled; nothing had run",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_ends_before_anything_is_made(case: str) -> None:
    seen, said = REFUSED[case]
    plan = execution.plan(seen)
    assert not any(isinstance(action, Bind | Put) for action in plan.actions)
    assert told(plan) == said
    assert plan.write_status
    assert plan.status.start_time is None


def test_waiting_ends_at_its_deadline() -> None:
    process = a_process(True, spec={"deadlineAt": meta.format_time(after(5))})
    assert execution.plan(inside(process=process, host=Absent())).look_again_at == after(1)
    told_already = inside(process=process, host=Absent(), now=after(2))
    raw = worlds.process_object(True, spec={"deadlineAt": meta.format_time(after(5))})
    written = worlds.stored(raw, execution.plan(told_already).status)
    later = replace(told_already, object=objects.read_process(written))
    assert execution.plan(later).look_again_at == after(5)


def bound(
    node: NodeFacts | None = None, *, hosted: bool = False, changes: Any = None, **more: Any
) -> Observed:
    process = a_bound_process(inside=hosted, **(changes or {}))
    host = {"host": Known(a_host())} if hosted else {}
    return observed(process, nodes=(node or a_node(),), **{"now": after(10), **host, **more})


def test_a_cancel_is_sent_without_the_spec() -> None:
    changes = {"spec": {"desiredState": "Cancelled"}, "metadata": {"generation": 3}}
    plan = execution.plan(bound(a_node(record=Known(a_process_record())), changes=changes))
    change = ProcessAmendment(generation=3, state=ProcessState.CANCELLED)
    assert plan.actions == (Amend(node="n1", uid=UID, change=change),)
    assert told(plan).startswith("Unknown CancelRequested")


DRAIN = {
    "spec": {"drain": {"onDeadline": "Terminate", "deadlineSeconds": 5}},
    "status": {"drain": {"startTime": meta.format_time(after(-60))}},
}


def test_a_drain_ends_one_of_its_own_and_leaves_one_in_a_session_to_its_session() -> None:
    node = a_node(record=Known(a_process_record()), object_=DRAIN)
    (amend,) = execution.plan(bound(node)).actions
    assert isinstance(amend, Amend)
    assert amend.change.stop_reason == "Drained"
    assert execution.plan(bound(node, hosted=True)).actions == ()


@pytest.mark.parametrize(
    "host",
    [Absent(), Known(a_host("another")), Known(a_host(ended=LOST))],
    ids=["gone", "another of its name", "ended"],
)
def test_what_was_bound_to_an_execution_that_is_over_never_starts(host: Any) -> None:
    plan = execution.plan(bound(hosted=True, host=host))
    assert plan.actions[0] == Remove(node="n1", uid=UID, kind="Process")
    assert not any(isinstance(action, Put) for action in plan.actions)
    assert told(plan).startswith("False ExecutionEnded: Execution session")


@pytest.mark.parametrize(
    ("kind", "reason", "said"),
    [
        (ErrorKind.CONFLICT, "NotRunning", "Unknown AwaitingExecution"),
        (ErrorKind.NOT_FOUND, "NotFound", "Unknown AwaitingExecution"),
        (ErrorKind.UNAVAILABLE, "TooManyProcesses", "Unknown AwaitingTurn"),
        (ErrorKind.UNAVAILABLE, "NodeFull", "Unknown NodeFull"),
        (ErrorKind.CONFLICT, "NotASession", "False InvalidSpec"),
        (ErrorKind.CONFLICT, "Conflict", "False Conflict"),
        (ErrorKind.REFUSED, "NodePolicy", "False NotAllowed"),
    ],
)
def test_what_the_agent_says_to_the_start(kind: ErrorKind, reason: str, said: str) -> None:
    failure = Failure(action="Put", node="n1", kind=kind, reason=reason, message="no")
    plan = execution.plan(bound(hosted=True, failure=failure))
    assert told(plan) == f"{said}: node n1: no"


def test_its_deadline_is_never_later_than_that_of_its_execution() -> None:
    record = a_process_record(execution_uid=HOST_UID, deadline_at=after(3000))
    plan = execution.plan(bound(a_node(record=Known(record)), hosted=True))
    assert plan.status.deadline == after(600), "the deadline of a_host"


def test_the_outcome_with_all_that_was_kept() -> None:
    digest = "sha256:" + "e" * 64
    record = a_process_record(
        step=Step.ENDED,
        outcome=Outcome(
            succeeded=True,
            reason="Succeeded",
            message="exit 0",
            exit_code=0,
            oom=OOMSeen(engine_event=True),
        ),
        ended_at=after(3),
        container_id="c1",
        boot_id="b1",
        output=ProcessOutputFacts(stdout_bytes=9, truncated=True, truncated_streams=("stdout",)),
        artifacts=(Artifact(path="out/a", size=3, digest=digest),),
        artifact_problems=(ArtifactProblem(path="b", reason="ArtifactRejected", message="link"),),
    )
    plan = execution.plan(bound(a_node(record=Known(record))))
    status = plan.status.to_object()
    assert status["artifacts"] == [{"path": "out/a", "size": 3, "digest": digest}]
    problem = {"path": "b", "reason": "ArtifactRejected", "message": "link"}
    assert status["artifactProblems"] == [problem]
    assert status["output"]["truncatedStreams"] == ["stdout"]
    assert status["exitCode"] == 0
    assert status["oomEvidence"] == {"engineEvent": True}
    assert (status["containerID"], status["bootID"]) == ("c1", "b1")
    assert status["requestDigest"] == "hmac-sha256:0"
    assert status["resolved"]["className"] == "standard"


def test_when_what_was_retained_is_gone_is_said_once() -> None:
    pinned = worlds.a_pinned(retain_seconds=60)
    record = a_process_record(
        step=Step.ENDED,
        outcome=Outcome(succeeded=True, reason="Succeeded", message="exit 0", exit_code=0),
        ended_at=after(3),
    )
    own = worlds.a_binding(pinned=pinned)
    first = execution.plan(
        observed(a_bound_process(own), nodes=(a_node(record=Known(record)),), now=after(4))
    )
    assert first.status.retained_until == after(63)
    metadata = {
        "generation": 2,
        "finalizers": [meta.FINALIZER],
        "annotations": {"isolet.dev/binding": own.annotation()},
    }
    raw = worlds.process_object(metadata=metadata, spec={"nodeName": "n1"})
    ended = objects.read_process(worlds.stored(raw, first.status))
    gone = record.model_copy(update={"step": Step.DISPOSED, "nothing_left": True})
    seen = observed(ended, nodes=(a_node(record=Known(gone)),), now=after(70))
    second = execution.plan(seen)
    assert second.write_status
    assert second.status.disposal_time == after(70)  # type: ignore[union-attr]
    final = objects.read_process(worlds.stored(raw, second.status))
    assert not execution.plan(replace(seen, object=final, now=after(99))).write_status


def test_an_object_no_version_understands_can_be_deleted() -> None:
    raw = worlds.process_object(
        metadata={"deletionTimestamp": meta.format_time(after(1)), "finalizers": [meta.FINALIZER]},
        spec={"code": {"language": "cobol"}, "nodeName": "n1"},
    )
    process = objects.read_process(raw)
    assert process.spec is None
    plan = execution.plan(observed(process, nodes=(a_node(),), now=after(2)))
    assert plan.actions == (Remove(node="n1", uid=UID, kind="Process"),)


def test_the_binding_of_one_in_a_session_holds_no_room() -> None:
    assert binding.demand(inside_binding().pinned) == Amounts()
