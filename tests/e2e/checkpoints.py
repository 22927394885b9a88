"""What the tests of Checkpoints do with kubectl, and what they look at on the nodes."""

import time
from typing import Any

from tests.e2e.looks import node_is, outcome
from tests.e2e.world import World, condition

DISK = {"medium": "Disk"}


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
    world.until("execution", name, lambda o: condition(o, "Ready").get("status") == "True")


def inside(world: World, session: str, script: str) -> str:
    """What a shell command says inside a session."""
    name = f"{session}-{time.monotonic_ns()}"
    tail = {"statusTailBytes": 4096}
    world.process(name, executionRef={"name": session}, shell=script, output=tail)
    status = world.finished(name, kind="process")
    assert outcome(status) == ("True", "Succeeded"), status
    world.delete("process", name, wait=True)
    return str((status.get("output") or {}).get("stdoutTail", ""))


def taken(world: World, name: str = "saved", seconds: float = 150) -> dict[str, Any]:
    """Wait until a Checkpoint is ready; returns its status."""
    found = world.until(
        "checkpoint", name, lambda o: condition(o, "Ready").get("status") == "True", seconds
    )
    return dict(found["status"])


def refused(world: World, name: str, reason: str, seconds: float = 150) -> dict[str, Any]:
    """Wait until a Checkpoint has failed; returns its condition."""
    found = world.until(
        "checkpoint", name, lambda o: condition(o, "Ready").get("status") == "False", seconds
    )
    said = condition(found, "Ready")
    assert said["reason"] == reason, said
    return said


def copies(world: World, node: str) -> list[str]:
    """Copies on a node, whole or half made, as its folders have them."""
    return world.left_on(node)["copies"]


def drain(world: World, node: str) -> None:
    world.patch("executionnode", node, {"spec": {"drain": {"onDeadline": "Wait"}}})
    node_is(world, node, "Drained", "True")


def uid(world: World, name: str) -> str:
    return str((world.get("execution", name) or {})["metadata"]["uid"])
