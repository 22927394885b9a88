"""Values for the tests of the operator's plans: healthy by default, changed by keyword."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from isolet.api import executionclass, executionnode, meta
from isolet.plan import binding
from isolet.plan.binding import Binding, Inside, Pinned
from isolet.plan.model import (
    Absent,
    Fact,
    Host,
    Known,
    NodeFacts,
    Observed,
    Unknown,
)
from isolet.plan.objects import ExecutionFacts, ProcessFacts, read_execution, read_process
from isolet.wire.execution import (
    ExecutionObserved,
    Medium,
    Outcome,
    OutputFacts,
    Resources,
    Step,
)
from isolet.wire.node import Amounts, Image, NodeCondition, NodeObserved
from isolet.wire.process import ProcessObserved

UID = "6a1f4f2e-0000-4000-8000-000000000001"
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
CREATED = NOW - timedelta(seconds=1)
LEADER_SINCE = NOW - timedelta(hours=1)
IMAGE_ID = "sha256:" + "1" * 64
IMAGE = "registry.example/python@sha256:" + "a" * 64
TAG = "registry.example/python:3.12"
MI, GI = 1 << 20, 1 << 30


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` merged into a copy of `base` as a merge-patch would be; None removes."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def execution_object(**changes: Any) -> dict[str, Any]:
    """An Execution as the API server has it: one command, small, of class `standard`."""
    base = {
        "apiVersion": meta.API_VERSION,
        "kind": "Execution",
        "metadata": {
            "name": "hello",
            "namespace": "team",
            "uid": UID,
            "resourceVersion": "10",
            "generation": 1,
            "creationTimestamp": meta.format_time(CREATED),
        },
        "spec": {
            "className": "standard",
            "image": IMAGE,
            "command": ["sh", "-c", "make test"],
            "workspace": {"medium": "Memory"},
        },
    }
    return merge(base, changes)


def an_execution(**changes: Any) -> ExecutionFacts:
    return read_execution(execution_object(**changes))


def bound_object(bound: Binding | None = None, **changes: Any) -> dict[str, Any]:
    base = {
        "metadata": {
            "generation": 2,
            "finalizers": [meta.FINALIZER],
            "annotations": {binding.ANNOTATION: (bound or a_binding()).annotation()},
        },
        "spec": {"nodeName": "n1"},
    }
    return merge(execution_object(**base), changes)


def a_bound_execution(bound: Binding | None = None, **changes: Any) -> ExecutionFacts:
    return read_execution(bound_object(bound, **changes))


def a_class(name: str = "standard", **spec: Any) -> executionclass.ExecutionClass:
    base = {
        "images": {"allowed": [IMAGE]},
        "namespaceSelector": {},
        "resources": {
            "default": {
                "cpu": "1",
                "memory": "512Mi",
                "workspace": "64Mi",
                "tmp": "16Mi",
                "shm": "4Mi",
                "pids": 128,
                "output": "8Mi",
            },
            "maximum": {
                "cpu": "4",
                "memory": "2Gi",
                "workspace": "2Gi",
                "tmp": "64Mi",
                "shm": "64Mi",
                "pids": 256,
                "output": "16Mi",
            },
        },
    }
    return executionclass.ExecutionClass.model_validate(
        {
            "metadata": {"name": name, "uid": f"class-{name}", "generation": 3},
            "spec": merge(base, spec),
        }
    )


RESOURCES = Resources(
    cpu_millis=1000,
    memory_bytes=512 * MI,
    workspace_bytes=64 * MI,
    tmp_bytes=16 * MI,
    shm_bytes=4 * MI,
    pids=128,
    output_bytes=8 * MI,
)


def a_pinned(**changes: Any) -> Pinned:
    base = Pinned(
        class_name="standard",
        class_uid="class-standard",
        class_generation=3,
        image=IMAGE,
        run=IMAGE,
        runtime="runsc",
        user="65532:65532",
        resources=RESOURCES,
        medium=Medium.MEMORY,
        workspace_executable=True,
        tmp_executable=False,
        retain_seconds=0,
        default_deadline_seconds=600,
        maximum_deadline_seconds=3600,
    )
    return base.model_copy(update=changes)


def a_binding(**changes: Any) -> Binding:
    base = Binding(uid=UID, epoch="e1", boot_id="b1", bound_at=NOW, pinned=a_pinned())
    return base.model_copy(update=changes)


GOOD = tuple(
    NodeCondition(type=kind, status="True", reason="OK", message="")
    for kind in ("EngineReady", "RuntimeQualified")
)


def a_report(name: str = "n1", **changes: Any) -> NodeObserved:
    base = NodeObserved(
        name=name,
        installation="isolet",
        agent_version="0.1.0",
        epoch="e1",
        boot_id="b1",
        sequence=100,
        now=NOW,
        architecture="amd64",
        conditions=GOOD,
        runtimes=("runsc",),
        media=("Memory", "Disk"),
        images=(Image(id=IMAGE_ID, tags=(TAG,), digests=(IMAGE,)),),
        capacity=Amounts(cpu_millis=8000, memory_bytes=8 * GI, disk_bytes=100 * GI, executions=50),
    )
    return base.model_copy(update=changes)


def a_node_object(name: str = "n1", **changes: Any) -> executionnode.ExecutionNode:
    base = {
        "metadata": {"name": name, "uid": f"node-{name}", "generation": 1, "resourceVersion": "5"},
        "spec": {"endpoint": f"https://{name}.example:7443"},
    }
    return executionnode.ExecutionNode.model_validate(merge(base, changes))


def a_node(
    name: str = "n1",
    *,
    record: Fact[ExecutionObserved] | ExecutionObserved | None = None,
    object_: Mapping[str, Any] | None = None,
    report: Mapping[str, Any] | None = None,
    **changes: Any,
) -> NodeFacts:
    """A node that is heard, read and fit; without a record of the object."""
    known = Known(record) if isinstance(record, ExecutionObserved) else (record or Absent())
    base = NodeFacts(
        object=a_node_object(name, **(object_ or {})),
        report=a_report(**{"name": name, **(report or {})}),
        reachable=True,
        synced=True,
        record=known,
    )
    return replace(base, **changes)


def a_record(**changes: Any) -> ExecutionObserved:
    """The agent's record of the bound object, running for ten seconds."""
    base = ExecutionObserved(
        uid=UID,
        namespace="team",
        name="hello",
        sequence=50,
        spec_digest="hmac-sha256:0",
        generation=2,
        step=Step.RUNNING,
        image_id=IMAGE_ID,
        started_at=NOW,
        deadline_at=after(600),
    )
    return base.model_copy(update=changes)


SUCCEEDED = Outcome(succeeded=True, reason="Succeeded", message="exited with code 0", exit_code=0)


LOST = Outcome(succeeded=False, reason="ContainerLost", message="the sandbox is gone")


def an_ended_record(outcome: Outcome = SUCCEEDED, **changes: Any) -> ExecutionObserved:
    return a_record(
        **{
            "step": Step.ENDED,
            "outcome": outcome,
            "ended_at": after(3),
            "output": OutputFacts(stdout_bytes=3),
            **changes,
        }
    )


def observed(object_: ExecutionFacts | None = None, **changes: Any) -> Observed:
    """A pass over a new object in a healthy cluster of one node."""
    base = Observed(
        object=object_ or an_execution(),
        namespace_labels=Known({"team": "a"}),
        classes=Known((a_class(),)),
        nodes=(a_node(),),
        nodes_complete=True,
        leader_since=LEADER_SINCE,
        installation="isolet",
        now=NOW,
    )
    return replace(base, **changes)


def process_object(inside: bool = False, **changes: Any) -> dict[str, Any]:
    """A Process as the API server has it: of its own sandbox, or of Execution `session`."""
    template = {"className": "standard", "image": IMAGE, "workspace": {"medium": "Memory"}}
    where = {"executionRef": {"name": "session"}} if inside else {"template": template}
    base = execution_object(kind="Process")
    base["spec"] = {**where, "command": ["sh", "-c", "make test"], "timeoutSeconds": 600}
    return merge(base, changes)


def a_process(inside: bool = False, **changes: Any) -> ProcessFacts:
    return read_process(process_object(inside, **changes))


HOST_UID = "0d0d"


def a_host(
    uid: str = HOST_UID,
    node: str = "n1",
    running: bool = True,
    ended: Outcome | None = None,
    heard: bool = True,
) -> Host:
    """Execution `session`, whose end its status tells too."""
    raw = bound_object(
        a_binding(uid=uid), metadata={"name": "session", "uid": uid}, spec={"command": None}
    )
    raw["spec"]["nodeName"] = node
    if ended is not None:
        at = meta.format_time(NOW)
        done = {"status": "True", "reason": "Finished", "message": "", "lastTransitionTime": at}
        end = {**done, "status": str(ended.succeeded), "reason": ended.reason}
        raw["status"] = {"conditions": [{"type": "Finished", **done}, {"type": "Succeeded", **end}]}
    step = Step.ENDED if ended else Step.RUNNING if running else Step.RECORDED
    record = a_record(uid=uid, name="session", step=step, outcome=ended)
    return Host(object=read_execution(raw), record=Known(record) if heard else Unknown())


def inside_binding(**changes: Any) -> Binding:
    """The binding of a Process to Execution `session` on n1."""
    inside = Inside(
        execution_name="session",
        execution_uid=HOST_UID,
        class_name="standard",
        maximum_deadline_seconds=3600,
    )
    return a_binding(pinned=None, inside=inside).model_copy(update=changes)


def a_bound_process(bound: Binding | None = None, inside: bool = False, **c: Any) -> ProcessFacts:
    found = bound or (inside_binding() if inside else a_binding())
    base = {
        "metadata": {
            "generation": 2,
            "finalizers": [meta.FINALIZER],
            "annotations": {binding.ANNOTATION: found.annotation()},
        },
        "spec": {"nodeName": "n1"},
    }
    return read_process(merge(process_object(inside, **base), c))


def a_process_record(**changes: Any) -> ProcessObserved:
    """The agent's record of a Process, running for ten seconds."""
    return ProcessObserved(**a_record().model_dump(exclude={"output"})).model_copy(update=changes)


def stored(object_: dict[str, Any], status: Any) -> dict[str, Any]:
    """The object after a status was written."""
    return merge(object_, {"status": None}) | {"status": status.to_object()}
