"""Checkpoints on two real nodes: taken on one, restored on the other, the same to the last byte."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.transfer.conftest import KEY, SECRET, s3_server
from tests.e2e.checkpoints import (
    a_checkpoint,
    a_restore,
    a_session,
    copies,
    drain,
    inside,
    on,
    ready,
    taken,
)
from tests.e2e.looks import eventually, node_is, outcome, scheduled, writes
from tests.e2e.world import World, condition
from tests.git_repo import Repo
from tests.ports import free_port

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


@pytest.fixture
def repo(nodes: World) -> Iterator[Repo]:
    """`samples/project` of every node, with tag v1."""
    folder = nodes.stack.repositories / "project"
    made = Repo(folder)
    made.commit({"README": "the first\n", "src/tool.py": "print(6 * 7)\n"})
    made.git("tag", "v1")
    yield made
    shutil.rmtree(folder)


def look(world: World, session: str, medium: str = "Disk") -> str:
    """Names, modes, owners, links, sizes, times and digests of all that is in a workspace.

    A workspace in memory is filled by the image's own tar: times are whole seconds there, and
    busybox has those of files alone.
    """
    told = inside(world, session, LOOK)
    if medium == "Disk":
        return told
    told = re.sub(r"(?m)^([^|\n]*\|8.*:\d\d)\.\d{9} ", r"\1 ", told)
    return re.sub(r"(?m)^([^|\n]*\|[^8].*)\|[^|]*$", r"\1", told)


@pytest.mark.parametrize("medium", ["Disk", "Memory"])
def test_the_story_from_an_edit_on_one_node_to_the_same_files_on_the_other(
    nodes: World, repo: Repo, medium: str
) -> None:
    bounds = {"cpu": "500m", "memory": "128Mi", "workspace": "32Mi"}
    tag = {"git": {"repository": "samples/project", "revision": "v1"}}
    a_session(nodes, workspace={"medium": medium, **tag}, resources=bounds, **on("node-0"))
    inside(nodes, "draft", TREE)
    inside(nodes, "draft", f"{EDIT}; echo edited >> ../README")
    if medium == "Memory":
        # busybox's tar does not set modes that deny writing to folders.
        inside(nodes, "draft", "chmod 700 tree/empty")
    before = look(nodes, "draft", medium)
    assert before.count("\n") > 15
    began = len(list(nodes.audit()))
    a_checkpoint(nodes, reason="handoff")
    status = taken(nodes)
    assert [(x["type"], x["name"]) for x in status["locations"]] == [("Node", "node-0")]
    assert (status["medium"], status["resources"]["workspace"]) == (medium, "32Mi")
    assert status["commit"] == repo.git("rev-parse", "v1^{commit}")
    assert len(writes(nodes, began, nodes.namespace)) <= 3
    row = nodes.kubectl("get", "checkpoint", "saved", "--no-headers").split()
    assert row[:5] == ["saved", "True", "CheckpointReady", "draft", "node-0"]

    nodes.kubectl("delete", "execution", "draft", "--timeout=120s")
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
    assert look(nodes, "copy", medium) == before
    assert taken(nodes)["locations"] == status["locations"], "the copy of a drained node stays"

    nodes.patch("execution", "copy", {"spec": {"desiredState": "Terminated"}})
    assert outcome(nodes.finished("copy")) == ("True", "Terminated")
    for kind, name in (("execution", "copy"), ("checkpoint", "saved")):
        nodes.kubectl("delete", kind, name, "--timeout=120s")
    nodes.nothing_left()


def test_checkpoint_restore_checkpoint_restore(nodes: World) -> None:
    a_session(nodes, **on("node-0"))
    inside(nodes, "draft", TREE)
    a_checkpoint(nodes, "first")
    taken(nodes, "first")
    a_restore(nodes, "second", "first", **on("node-1"))
    ready(nodes, "second")
    inside(nodes, "second", EDIT)
    between = look(nodes, "second")
    a_checkpoint(nodes, "third", "second")
    taken(nodes, "third")
    a_restore(nodes, "fourth", "third", **on("node-0"))
    ready(nodes, "fourth")
    assert look(nodes, "fourth") == between
    # What was kept first is as it was.
    a_restore(nodes, "fifth", "first", **on("node-0"))
    ready(nodes, "fifth")
    assert "edited" not in inside(nodes, "fifth", "cat tree/plain")
    assert {x["name"] for n in ("first", "third") for x in taken(nodes, n)["locations"]} == {
        "node-0",
        "node-1",
    }


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
        assert copies(nodes, "node-0")
    finally:
        agent.signal(signal.SIGCONT)
    ready(nodes, "copy")
    assert inside(nodes, "copy", "cat file") == "kept\n"
    nodes.gone("checkpoint", "saved")
    eventually(lambda: not copies(nodes, "node-0"), "the copy removed")


@pytest.fixture
def bucket(nodes: World, tmp_path: Path) -> Iterator[Path]:
    """Every node has the same object store; its objects are files below this folder."""
    stack = nodes.stack
    with s3_server(tmp_path, free_port()) as server:
        access = server.access
        stack.agent_config.write_text(
            f'[checkpointStore]\nname = "{access.name}"\nendpoint = "{access.endpoint}"\n'
            f'bucket = "{access.bucket}"\ncredentialsFile = "{access.credentials}"\n'
        )
        restart_agents(nodes)
        yield server.data / access.bucket
        stack.agent_config.unlink()
        restart_agents(nodes)


def restart_agents(world: World) -> None:
    for node in world.stack.nodes():
        world.stack.end(f"agent-{node}")
        world.stack.start_agent(node)
    for node in world.stack.nodes():
        node_is(world, node, "Ready", "True")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_copy_in_an_object_store_outlives_its_node(nodes: World, bucket: Path) -> None:
    a_session(nodes, **on("node-0"))
    inside(nodes, "draft", "echo kept > file")
    a_checkpoint(nodes)
    stored = nodes.until(
        "checkpoint",
        "saved",
        lambda o: len((o or {}).get("status", {}).get("locations", [])) == 2,
    )
    assert [x["type"] for x in stored["status"]["locations"]] == ["Node", "ObjectStore"]
    assert len(files(bucket)) == 3
    assert KEY not in json.dumps(stored)
    assert SECRET not in json.dumps(stored)
    nodes.stack.kill("agent-node-0")
    nodes.delete("executionnode", "node-0")
    lost = nodes.until("checkpoint", "saved", lambda o: len((o or {})["status"]["locations"]) == 1)
    assert condition(lost, "Ready")["message"] == "whole in object store main"
    a_restore(nodes, "copy")
    ready(nodes, "copy")
    assert (nodes.get("execution", "copy") or {})["spec"]["nodeName"] == "node-1"
    assert inside(nodes, "copy", "cat file") == "kept\n"
    nodes.delete("checkpoint", "saved")
    nodes.gone("checkpoint", "saved")
    assert files(bucket) == []
    nodes.kubectl("delete", "executions", "--all", "--timeout=120s")
    nodes.stack.start_agent("node-0")
    nodes.stack.register("node-0")
    eventually(lambda: not copies(nodes, "node-0"), "what came back with the node is removed")
