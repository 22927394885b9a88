"""Checkpoints as a user has them: what is taken and restored, what cannot be, and what is left.

What is in a workspace is told by programs inside it, and what is left on a node by its folders and
its engine: nothing of ours judges itself.
"""

import json
from typing import Any

from tests.e2e.checkpoints import (
    DISK,
    a_checkpoint,
    a_restore,
    a_session,
    copies,
    inside,
    on,
    ready,
    refused,
    taken,
    uid,
)
from tests.e2e.looks import events, eventually, held, node_is, outcome
from tests.e2e.world import ROOT, World


def test_a_disk_is_taken_after_its_command_has_ended(nodes: World) -> None:
    nodes.execution(
        "draft", "sh", "-c", "echo done > result", workspace={**DISK, "retainSeconds": 600}
    )
    nodes.finished("draft")
    a_checkpoint(nodes)
    taken(nodes)
    a_restore(nodes, "copy")
    ready(nodes, "copy")
    assert inside(nodes, "copy", "cat result") == "done\n"


def test_placement_prefers_the_node_with_the_copy(nodes: World) -> None:
    a_session(nodes, **on("node-1"))
    a_checkpoint(nodes)
    taken(nodes)
    for number in range(3):
        a_restore(nodes, f"copy{number}")
    for number in range(3):
        ready(nodes, f"copy{number}")
        assert (nodes.get("execution", f"copy{number}") or {})["spec"]["nodeName"] == "node-1"


# What cannot be.


def test_what_cannot_be_taken_says_so_without_waiting(nodes: World) -> None:
    a_checkpoint(nodes, "nothing", "nobody")
    nodes.execution("short", "true", workspace={"medium": "Memory", "retainSeconds": 600})
    nodes.execution("gone", "true", workspace=DISK)
    nodes.execution("never", "true", image="sha256:" + "0" * 64)
    for name in ("short", "gone", "never"):
        nodes.finished(name)
    eventually(lambda: not held(nodes, "node-0", uid(nodes, "gone")), "disposed on node-0")
    eventually(lambda: not held(nodes, "node-1", uid(nodes, "gone")), "disposed on node-1")
    for name in ("short", "gone", "never"):
        a_checkpoint(nodes, f"of-{name}", name)
    assert "Execution nobody is not there" in refused(nodes, "nothing", "NotFound")["message"]
    assert "Memory workspace" in refused(nodes, "of-short", "NotRetained")["message"]
    refused(nodes, "of-gone", "NotRetained")
    assert "ended before it ran" in refused(nodes, "of-never", "ExecutionEnded")["message"]
    told = eventually(lambda: events(nodes, "of-short"), "an Event")
    assert (told[0]["type"], told[0]["reason"]) == ("Warning", "NotRetained")
    described = nodes.kubectl("describe", "checkpoint", "of-short")
    assert "NotRetained" in described
    for name in ("nothing", "of-short", "of-gone", "of-never"):
        nodes.kubectl("delete", "checkpoint", name, "--timeout=120s")


def test_what_a_node_forbids_or_has_no_room_for_says_so(nodes: World) -> None:
    policy = nodes.stack.layout.data / "policy.toml"
    before = policy.read_text()
    try:
        for count, reason in ((1, "CheckpointQuota"), (0, "CheckpointsNotAllowed")):
            policy.write_text(f"{before}[checkpoints]\ncount = {count}\n")
            nodes.stack.end("agent-node-0")
            nodes.stack.start_agent("node-0")
            node_is(nodes, "node-0", "Ready", "True")
            if count:
                a_session(nodes, **on("node-0"))
                a_checkpoint(nodes)
                taken(nodes)
            a_checkpoint(nodes, f"refused-{count}")
            assert "node node-0: " in refused(nodes, f"refused-{count}", reason)["message"]
        nodes.delete("checkpoint", "saved", wait=True)
        assert inside(nodes, "draft", "echo goes on") == "goes on\n"
    finally:
        policy.write_text(before)
        nodes.stack.end("agent-node-0")


def test_bad_input_is_refused_before_anything_is_made(nodes: World) -> None:
    for spec, words in (
        ({}, "executionRef"),
        ({"executionRef": {"name": "Not A Name"}}, "executionRef.name"),
        ({"executionRef": {"name": "draft"}, "nodeName": "node-0"}, "spec.nodeName"),
        ({"executionRef": {"name": "draft"}, "reason": "x" * 1025}, "reason"),
    ):
        said = nodes.refused("apply", "-f", "-", stdin=document(spec))
        assert words in said, said
    a_session(nodes)
    a_checkpoint(nodes)
    taken(nodes)
    said = nodes.refused(
        *("patch", "checkpoint", "saved", "--type=merge"),
        *("-p", '{"spec":{"executionRef":{"name":"other"}}}'),
    )
    assert "executionRef" in said
    small = {"workspace": "2Mi"}
    inside(nodes, "draft", "head -c 4000000 /dev/urandom > big")
    a_checkpoint(nodes, "large")
    taken(nodes, "large")
    a_restore(nodes, "tight", "large", resources=small)
    assert outcome(nodes.finished("tight")) == ("False", "CheckpointTooLarge")
    said = nodes.refused("apply", "-f", "-", stdin=document(OTHER_IMAGE, "Execution"))
    assert "does not allow this image" in said
    draft = uid(nodes, "draft")
    for node in nodes.stack.nodes():
        there = nodes.witness(node).containers("isolet")
        assert [container[:12] for container in there] == held(nodes, node, draft)


OTHER_IMAGE = {
    "className": "test",
    "restoreFrom": {"checkpointName": "saved"},
    "image": "sha256:" + "1" * 64,
}


def document(spec: dict[str, Any], kind: str = "Checkpoint") -> str:
    return json.dumps(
        {
            "apiVersion": "isolet.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": "bad"},
            "spec": spec,
        }
    )


def test_a_copy_whose_object_is_gone_is_cleared(nodes: World) -> None:
    a_session(nodes, **on("node-0"))
    a_checkpoint(nodes)
    taken(nodes)
    nodes.stack.kill("agent-node-0")
    nodes.delete("checkpoint", "saved")
    nodes.stack.kube(
        *("-n", nodes.namespace, "annotate", "checkpoint", "saved"),
        "isolet.dev/force-release=the disk is gone",
    )
    nodes.gone("checkpoint", "saved")
    assert copies(nodes, "node-0")
    nodes.stack.start_agent("node-0")
    eventually(lambda: not copies(nodes, "node-0"), "the copy removed")


def test_the_example(nodes: World) -> None:
    nodes.kubectl("apply", "-f", str(ROOT / "examples" / "class-standard.yaml"))
    example = str(ROOT / "examples" / "checkpoint.yaml")
    wait = ("wait", "--timeout=120s")
    nodes.kubectl("apply", "-f", example, "-l", "step=1")
    nodes.kubectl(*wait, "--for=condition=Finished", "process/write")
    nodes.kubectl("apply", "-f", example, "-l", "step=2")
    nodes.kubectl(*wait, "--for=condition=Ready", "checkpoint/draft-1")
    nodes.kubectl("delete", "execution", "draft", "--timeout=120s")
    nodes.kubectl("apply", "-f", example, "-l", "step=3")
    nodes.kubectl(*wait, "--for=condition=Finished", "process/read")
    told = nodes.kubectl("get", "process", "read", "-o", "jsonpath={.status.output.stdoutTail}")
    assert told == "first line\nsecond line\n"
    nodes.kubectl("delete", "-f", example, "--ignore-not-found", "--timeout=120s")
    nodes.kubectl("delete", "-f", str(ROOT / "examples" / "class-standard.yaml"))
