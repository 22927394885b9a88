"""Warm pools through Kubernetes: a class asks for one, nodes keep it, an Execution gets a slot."""

import os
import time
from collections.abc import Iterator

import pytest

from isolet.base import names
from tests.e2e.looks import outcome
from tests.e2e.world import Object, World, a_class

NODES = ("node-0", "node-1")


@pytest.fixture
def pooled(world: World) -> Iterator[World]:
    image = os.environ["ISOLET_IMAGE_SHELL"]
    images = {"allowed": [image], "default": image}
    pool = {"size": 1, "medium": "Memory"}
    world.apply(a_class("pooled", images=images, warmPool=pool))
    yield world
    world.delete("executionclass", "pooled")


def counted(node: Object | None) -> list[tuple[str, int, int]]:
    """Class, ready and assigned slots of each pool in a node's status."""
    pools = (node or {}).get("status", {}).get("pools") or ()
    return [(pool["className"], pool["ready"], pool["assigned"]) for pool in pools]


def test_an_execution_is_given_a_sandbox_that_runs_already(pooled: World) -> None:
    for node in NODES:
        pooled.until("executionnode", node, lambda o: counted(o) == [("pooled", 1, 0)], 150)
    since = time.time()
    tail = {"statusTailBytes": 64}
    pooled.execution("warm", "sh", "-c", "echo ran", className="pooled", output=tail)
    status = pooled.finished("warm")
    assert (outcome(status)[1], status["output"]["stdoutTail"]) == ("Succeeded", "ran\n")
    seen = pooled.get("execution", "warm")
    assert seen is not None
    own = names.container_name(pooled.stack.installation, seen["metadata"]["uid"])
    assert own not in pooled.starts(since)
    # Positive control: one that asks for other bounds is started on its own.
    bounds = {"cpu": "500m", "memory": "96Mi", "workspace": "16Mi"}
    pooled.execution("cold", "true", className="pooled", resources=bounds)
    pooled.finished("cold")
    seen = pooled.get("execution", "cold")
    assert seen is not None
    own = names.container_name(pooled.stack.installation, seen["metadata"]["uid"])
    assert own in pooled.starts(since)
