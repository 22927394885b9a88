"""Checkpoints on two real nodes, as a user has them: taken, kept, restored on the other node.

What is in a workspace is told by programs inside it, and what is left on a node by its folders and
its engine: nothing of ours judges itself.
"""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.looks import events, eventually, held, node_is, outcome, scheduled, writes
from tests.e2e.world import ROOT, World, condition

DISK = {"medium": "Disk"}
TREE = """
mkdir -p tree/deep/er tree/empty && cd tree
printf 'plain' > plain
printf '#!/bin/sh\\necho runs\\n' > program && chmod 755 program
printf 'secret' > private && chmod 600 private
printf 'odd' > "$(printf 'a name with \\tblanks and \\303\\244')"
: > nothing
head -c 300000 /dev/urandom > deep/er/random
dd if=/dev/zero of=sparse bs=1 count=0 seek=2000000 2>/dev/null; printf x >> sparse
ln -s ../plain deep/link && ln -s /nowhere/at/all dangling && ln plain twin
chmod 1777 deep && chmod 500 empty
touch -d '2001-02-03 04:05:06' plain deep/er/random && touch -d '1999-12-31 23:59:59' deep empty
"""
EDIT = "cd tree && printf ' and edited' >> plain && rm nothing && mkdir new && touch new/file"
LOOK = """
find . -not -name lost+found | sort | while IFS= read -r f; do
  stat -c '%n|%f|%u:%g|%h|%s|%y' "$f"; [ -L "$f" ] && readlink "$f"
done
find . -type f | sort | while IFS= read -r f; do sha256sum "$f"; done
"""


def a_checkpoint(world: World, name: str = "saved", source: str = "draft", **spec: Any) -> None:
    world.apply(
        {
            "apiVersion": "isolet.dev/v1alpha1",
            "kind": "Checkpoint",
            "metadata": {"name": name},
            "spec": {"executionRef": {"name": source}, **spec},
        }
    )


def a_restore(world: World, name: str, source: str = "saved", **spec: Any) -> None:
    """`restoreFrom` alone, but for the class."""
    base = {"className": "test", "restoreFrom": {"checkpointName": source}}
    world.apply(
        {
            "apiVersion": "isolet.dev/v1alpha1",
            "kind": "Execution",
            "metadata": {"name": name},
            "spec": {**base, **spec},
        }
    )


def on(node: str) -> dict[str, dict[str, str]]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def a_session(world: World, name: str = "draft", **spec: Any) -> None:
    world.execution(name, **{"workspace": DISK, **spec})
    ready(world, name)


def ready(world: World, name: str) -> None:
    world.kubectl("wait", "--for=condition=Ready", "--timeout=90s", f"execution/{name}")


def inside(world: World, session: str, script: str) -> str:
    """What a shell command says inside a session."""
    name = f"{session}-{time.monotonic_ns()}"
    tail = {"statusTailBytes": 4096}
    world.process(name, executionRef={"name": session}, shell=script, output=tail)
    status = world.finished(name, 90, kind="process")
    assert outcome(status) == ("True", "Succeeded"), status
    world.delete("process", name, wait=True)
    return str((status.get("output") or {}).get("stdoutTail", ""))


def taken(world: World, name: str = "saved", seconds: float = 60) -> dict[str, Any]:
    """Wait until a Checkpoint is ready; returns its status."""
    found = world.until(
        "checkpoint", name, lambda o: condition(o, "Ready").get("status") == "True", seconds
    )
    return dict(found["status"])


def refused(world: World, name: str, reason: str, seconds: float = 30) -> dict[str, Any]:
    """Wait until a Checkpoint has failed; returns its condition."""
    found = world.until(
        "checkpoint", name, lambda o: condition(o, "Ready").get("status") == "False", seconds
    )
    said = condition(found, "Ready")
    assert said["reason"] == reason, said
    return said


def left(world: World) -> dict[str, list[str]]:
    """Copies on each node, whole or half made, as its folders have them."""
    found = {}
    for node in world.stack.nodes():
        folder = world.stack.agent_folder(node) / "checkpoints"
        found[node] = sorted(f"{p.parent.name}/{p.name}" for p in folder.glob("*/*"))
    return found


def no_copy_left(world: World) -> None:
    nothing: dict[str, list[str]] = {node: [] for node in world.stack.nodes()}
    eventually(lambda: left(world) == nothing, f"no copy left ({left(world)})", 30)


@pytest.fixture
def nodes(world: World) -> Iterator[World]:
    """A world in which nodes may be drained and agents stopped; all is whole again afterwards."""
    yield world
    world.stack.start_missing()
    for name in world.stack.nodes():
        world.stack.register(name)
        whole = {"unschedulable": False, "drain": None, "outOfService": None}
        world.patch("executionnode", name, {"spec": whole})
    world.stack.wait_ready()
    for kind in ("executions", "checkpoints"):
        world.kubectl("delete", kind, "--all", "--timeout=60s")
    no_copy_left(world)


def drain(world: World, node: str) -> None:
    world.patch("executionnode", node, {"spec": {"drain": {"onDeadline": "Wait"}}})
    node_is(world, node, "Drained", "True")


@pytest.mark.parametrize("medium", ["Disk", "Memory"])
def test_the_story_from_an_edit_on_one_node_to_the_same_files_on_the_other(
    nodes: World, medium: str
) -> None:
    bounds = {"cpu": "500m", "memory": "128Mi", "workspace": "32Mi"}
    a_session(nodes, workspace={"medium": medium}, resources=bounds, **on("node-0"))
    inside(nodes, "draft", TREE)
    inside(nodes, "draft", EDIT)
    before = inside(nodes, "draft", LOOK)
    assert before.count("\n") > 15
    began = len(list(nodes.audit()))
    a_checkpoint(nodes, reason="handoff")
    status = taken(nodes)
    assert [(x["type"], x["name"]) for x in status["locations"]] == [("Node", "node-0")]
    assert (status["medium"], status["resources"]["workspace"]) == (medium, "32Mi")
    assert len(writes(nodes, began, nodes.namespace)) <= 3
    row = nodes.kubectl("get", "checkpoint", "saved", "--no-headers").split()
    assert row[:5] == ["saved", "True", "CheckpointReady", "draft", "node-0"]

    nodes.kubectl("delete", "execution", "draft", "--timeout=60s")
    drain(nodes, "node-0")
    a_restore(nodes, "copy", workspace={"medium": medium})
    ready(nodes, "copy")
    copy = nodes.get("execution", "copy") or {}
    assert copy["spec"]["nodeName"] == "node-1"
    resolved = copy["status"]["resolved"]
    assert resolved["checkpoint"]["contentDigest"] == status["contentDigest"]
    assert (resolved["imageID"], resolved["resources"]) == (
        status["imageID"],
        status["resources"],
    )
    assert inside(nodes, "copy", LOOK) == before
    assert taken(nodes)["locations"] == status["locations"], "the copy of a drained node stays"

    nodes.patch("execution", "copy", {"spec": {"desiredState": "Terminated"}})
    assert outcome(nodes.finished("copy")) == ("True", "Terminated")
    for kind, name in (("execution", "copy"), ("checkpoint", "saved")):
        nodes.kubectl("delete", kind, name, "--timeout=60s")
    no_copy_left(nodes)
    nodes.nothing_left()


def test_checkpoint_restore_checkpoint_restore(nodes: World) -> None:
    a_session(nodes, **on("node-0"))
    inside(nodes, "draft", TREE)
    a_checkpoint(nodes, "first")
    taken(nodes, "first")
    a_restore(nodes, "second", "first", **on("node-1"))
    ready(nodes, "second")
    inside(nodes, "second", EDIT)
    between = inside(nodes, "second", LOOK)
    a_checkpoint(nodes, "third", "second")
    taken(nodes, "third")
    a_restore(nodes, "fourth", "third", **on("node-0"))
    ready(nodes, "fourth")
    assert inside(nodes, "fourth", LOOK) == between
    # What was kept first is as it was.
    a_restore(nodes, "fifth", "first", **on("node-0"))
    ready(nodes, "fifth")
    assert "edited" not in inside(nodes, "fifth", "cat tree/plain")
    assert {x["name"] for n in ("first", "third") for x in taken(nodes, n)["locations"]} == {
        "node-0",
        "node-1",
    }


def test_a_disk_is_taken_after_its_command_has_ended(nodes: World) -> None:
    nodes.execution(
        "draft", "sh", "-c", "echo done > result", workspace={**DISK, "retainSeconds": 120}
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


def test_what_cannot_be_taken_says_so_in_seconds(nodes: World) -> None:
    began = time.monotonic()
    a_checkpoint(nodes, "nothing", "nobody")
    nodes.execution("short", "true", workspace={"medium": "Memory", "retainSeconds": 60})
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
    assert time.monotonic() - began < 60
    told = eventually(lambda: events(nodes, "of-short"), "an Event")
    assert (told[0]["type"], told[0]["reason"]) == ("Warning", "NotRetained")
    described = nodes.kubectl("describe", "checkpoint", "of-short")
    assert "NotRetained" in described
    for name in ("nothing", "of-short", "of-gone", "of-never"):
        nodes.kubectl("delete", "checkpoint", name, "--timeout=30s")


def uid(world: World, name: str) -> str:
    return str((world.get("execution", name) or {})["metadata"]["uid"])


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


def test_a_restore_waits_for_its_checkpoint_and_for_a_copy_that_can_be_reached(
    nodes: World,
) -> None:
    a_restore(nodes, "early", **on("node-1"))
    assert "Checkpoint saved is not there" in scheduled(nodes, "early", "AwaitingCheckpoint")
    a_session(nodes, **on("node-0"))
    inside(nodes, "draft", "echo kept > file")
    a_checkpoint(nodes)
    taken(nodes)
    ready(nodes, "early")
    assert inside(nodes, "early", "cat file") == "kept\n"
    nodes.stack.kill("agent-node-0")
    node_is(nodes, "node-0", "Reachable", "False")
    a_restore(nodes, "late", **on("node-1"))
    said = scheduled(nodes, "late", "CheckpointUnavailable")
    assert "node-0 (does not answer)" in said
    nodes.stack.start_agent("node-0")
    ready(nodes, "late")
    assert inside(nodes, "late", "cat file") == "kept\n"


def test_a_checkpoint_is_not_deleted_under_a_restore(nodes: World) -> None:
    a_session(nodes, **on("node-0"))
    inside(nodes, "draft", "echo kept > file")
    a_checkpoint(nodes)
    taken(nodes)
    agent = nodes.stack.process("agent-node-1")
    assert agent is not None
    agent.signal(signal.SIGSTOP)
    try:
        a_restore(nodes, "copy", **on("node-1"))
        nodes.until("execution", "copy", lambda o: o and o["spec"].get("nodeName"))
        nodes.delete("checkpoint", "saved")
        waits = nodes.until(
            "checkpoint",
            "saved",
            lambda o: condition(o, "Stalled").get("reason") == "CheckpointInUse",
        )
        assert "start from it: copy" in condition(waits, "Stalled")["message"]
        assert any(left(nodes)["node-0"])
    finally:
        agent.signal(signal.SIGCONT)
    ready(nodes, "copy")
    assert inside(nodes, "copy", "cat file") == "kept\n"
    nodes.gone("checkpoint", "saved")
    no_copy_left(nodes)


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
    assert any(left(nodes)["node-0"])
    nodes.stack.start_agent("node-0")
    no_copy_left(nodes)


def test_the_example(nodes: World) -> None:
    nodes.kubectl("apply", "-f", str(ROOT / "examples" / "class-standard.yaml"))
    example = str(ROOT / "examples" / "checkpoint.yaml")
    wait = ("wait", "--timeout=90s")
    nodes.kubectl("apply", "-f", example, "-l", "step=1")
    nodes.kubectl(*wait, "--for=condition=Finished", "process/write")
    nodes.kubectl("apply", "-f", example, "-l", "step=2")
    nodes.kubectl(*wait, "--for=condition=Ready", "checkpoint/draft-1")
    nodes.kubectl("delete", "execution", "draft", "--timeout=60s")
    nodes.kubectl("apply", "-f", example, "-l", "step=3")
    nodes.kubectl(*wait, "--for=condition=Finished", "process/read")
    told = nodes.kubectl("get", "process", "read", "-o", "jsonpath={.status.output.stdoutTail}")
    assert told == "first line\nsecond line\n"
    nodes.kubectl("delete", "-f", example, "--ignore-not-found", "--timeout=60s")
    nodes.kubectl("delete", "-f", str(ROOT / "examples" / "class-standard.yaml"))
