"""Values for the tests of Checkpoint plans: healthy by default, changed by keyword."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isolet.api import meta
from isolet.plan import binding
from isolet.plan.binding import Binding, Restored, Taking
from isolet.plan.model import Absent, CheckpointPass, Fact, Host, Known, NodeFacts
from isolet.plan.objects import CheckpointFacts, read_checkpoint, read_execution
from isolet.wire.checkpoint import (
    CheckpointObserved,
    CheckpointStep,
    Manifest,
    Source,
    StoreCopy,
)
from isolet.wire.execution import Medium, Outcome, Step
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.worlds import IMAGE, IMAGE_ID, NOW, RESOURCES, after, merge

CKPT = "c0c0"
SOURCE_UID = "50u5ce"
MANIFEST, CONTENT = "sha256:" + "e" * 64, "sha256:" + "f" * 64
READY = Outcome(succeeded=True, reason="CheckpointReady", message="whole")
FAILED = Outcome(succeeded=False, reason="CheckpointFailed", message="the disk broke")
COPY = StoreCopy(store="s3", key="k/c0c0")
TAKING = Taking(execution_name="session", execution_uid=SOURCE_UID, image=IMAGE)


def checkpoint_object(**changes: Any) -> dict[str, Any]:
    """A Checkpoint as the API server has it, of Execution `session`."""
    base = {
        "apiVersion": meta.API_VERSION,
        "kind": "Checkpoint",
        "metadata": {
            "name": "saved",
            "namespace": "team",
            "uid": CKPT,
            "resourceVersion": "10",
            "generation": 1,
            "creationTimestamp": meta.format_time(worlds.CREATED),
        },
        "spec": {"executionRef": {"name": "session"}, "reason": "handoff"},
    }
    return merge(base, changes)


def a_binding(**changes: Any) -> Binding:
    base = Binding(uid=CKPT, epoch="e1", boot_id="b1", bound_at=NOW, taking=TAKING)
    return base.model_copy(update=changes)


def bound_object(bound: Binding | None = None, **changes: Any) -> dict[str, Any]:
    base = {
        "metadata": {
            "generation": 2,
            "finalizers": [meta.FINALIZER],
            "annotations": {binding.ANNOTATION: (bound or a_binding()).annotation()},
        },
        "spec": {"nodeName": "n1"},
    }
    return merge(checkpoint_object(**base), changes)


NODE_LOCATION = {"name": "n1", "type": "Node", "verifiedTime": "2026-01-01T12:00:00Z"}
STORE_LOCATION = {
    "name": "s3",
    "type": "ObjectStore",
    "key": "k/c0c0",
    "verifiedTime": "2026-01-01T12:00:00Z",
}


def ready_status(*locations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The status of one that was taken whole."""
    where = " and ".join(
        f"on node {item['name']}" if item["type"] == "Node" else f"in object store {item['name']}"
        for item in locations
    )
    base = {
        "observedGeneration": 2,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "observedGeneration": 2,
                "lastTransitionTime": meta.format_time(NOW),
                "reason": "CheckpointReady",
                "message": f"whole {where}",
            }
        ],
        "executionUID": SOURCE_UID,
        "startTime": "2026-01-01T12:00:00Z",
        "completionTime": "2026-01-01T12:00:00Z",
        "manifestVersion": 1,
        "manifestDigest": MANIFEST,
        "contentDigest": CONTENT,
        "sizeBytes": 1234,
        "entries": 3,
        "image": IMAGE,
        "imageID": IMAGE_ID,
        "resources": {
            "cpu": "1",
            "memory": "512Mi",
            "workspace": "64Mi",
            "tmp": "16Mi",
            "shm": "4Mi",
            "pids": 128,
            "output": "8Mi",
        },
        "medium": "Memory",
        "locations": list(locations),
    }
    return merge(base, changes)


def a_ready_object(*locations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return merge(bound_object(status=ready_status(*(locations or (NODE_LOCATION,)))), changes)


def a_manifest(**changes: Any) -> Manifest:
    base = Manifest(
        checkpoint_uid=CKPT,
        namespace="team",
        name="saved",
        taken_at=NOW,
        source=Source(
            execution_uid=SOURCE_UID,
            namespace="team",
            name="session",
            image=IMAGE_ID,
            image_id=IMAGE_ID,
            user="65532:65532",
            resources=RESOURCES,
            medium=Medium.MEMORY,
        ),
        entries=3,
        entries_bytes=300,
        content_digest=CONTENT,
        content_bytes=2048,
        size_bytes=1234,
    )
    return base.model_copy(update=changes)


def a_record(**changes: Any) -> CheckpointObserved:
    """The agent's record of one that is being taken."""
    base = CheckpointObserved(
        uid=CKPT,
        namespace="team",
        name="saved",
        sequence=60,
        generation=2,
        execution_uid=SOURCE_UID,
        step=CheckpointStep.TAKING,
        started_at=NOW,
    )
    return base.model_copy(update=changes)


def a_whole_record(**changes: Any) -> CheckpointObserved:
    return a_record(
        **{
            "step": CheckpointStep.ENDED,
            "outcome": READY,
            "manifest": a_manifest(),
            "manifest_digest": MANIFEST,
            "on_node": True,
            "ended_at": NOW,
            **changes,
        }
    )


def a_failed_record(outcome: Outcome = FAILED, **changes: Any) -> CheckpointObserved:
    step = CheckpointStep.ENDED
    return a_record(step=step, outcome=outcome, ended_at=NOW, nothing_left=True, **changes)


def a_node(
    name: str = "n1",
    checkpoint: Fact[CheckpointObserved] | CheckpointObserved | None = None,
    *,
    stores: tuple[str, ...] = (),
    object_: Mapping[str, Any] | None = None,
    **changes: Any,
) -> NodeFacts:
    known = Known(checkpoint) if isinstance(checkpoint, CheckpointObserved) else checkpoint
    base = worlds.a_node(
        name,
        object_=object_,
        report={"object_stores": stores, **changes.pop("report", {})},
        checkpoint=known or Absent(),
    )
    return replace(base, **changes)


def a_host(
    *,
    step: Step = Step.RUNNING,
    outcome: Outcome | None = None,
    medium: Medium = Medium.DISK,
    record: Any = None,
    node: str | None = "n1",
    **changes: Any,
) -> Host:
    """Execution `session`, whose workspace is to be taken."""
    bound = worlds.a_binding(uid=SOURCE_UID, pinned=worlds.a_pinned(medium=medium))
    raw = worlds.bound_object(bound, metadata={"name": "session", "uid": SOURCE_UID})
    raw["spec"].pop("command")
    raw["spec"]["nodeName"] = node
    known = Known(worlds.a_record(uid=SOURCE_UID, name="session", step=step, outcome=outcome))
    return Host(object=read_execution(merge(raw, changes)), record=record or known)


GONE_OFF = {"spec": {"outOfService": {"reason": "it burnt"}}}
DELETING = {"metadata": {"deletionTimestamp": meta.format_time(after(-1))}}


def observed(raw: dict[str, Any] | CheckpointFacts | None = None, **changes: Any) -> CheckpointPass:
    """A pass over a new Checkpoint of a running session in a healthy cluster of one node."""
    facts = raw if isinstance(raw, CheckpointFacts) else read_checkpoint(raw or checkpoint_object())
    base = CheckpointPass(
        object=facts,
        source=Known(a_host()),
        nodes=(a_node(),),
        nodes_complete=True,
        leader_since=worlds.LEADER_SINCE,
        installation="isolet",
        now=NOW,
    )
    return replace(base, **changes)


def restored(**changes: Any) -> Restored:
    base = Restored(name="saved", uid=CKPT, manifest_digest=MANIFEST, content_digest=CONTENT)
    return base.model_copy(update=changes)


def origin(*locations: dict[str, Any], **changes: Any) -> CheckpointFacts:
    """Checkpoint `saved` as an Execution that starts from it finds it."""
    return read_checkpoint(a_ready_object(*locations, **changes))
