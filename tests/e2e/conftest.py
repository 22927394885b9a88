"""Isolet on the cluster of hack/test: operator, two agents, two gVisor daemons, all real."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolet_stack.stack import Stack
from tests.e2e.faults_arena import SEED
from tests.e2e.world import World, a_class

WHOLE = {"unschedulable": False, "drain": None, "outOfService": None}


HANG_SECONDS = 900
"""A test here waits for many things in turn; on a busy machine each may take its time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ours = Path(__file__).parent in item.path.parents
        if ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANG_SECONDS))


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    name = os.environ.get("ISOLET_CLUSTER")
    if not name or "ISOLET_IMAGE_SHELL" not in os.environ:
        pytest.fail('no cluster: run hack/test e2e, or eval "$(hack/cluster env)"', pytrace=False)
    stack = Stack.of(name)
    stack.up()
    yield stack
    stack.down()


@pytest.fixture(scope="session")
def whole(stack: Stack) -> World:
    world = World(stack)
    world.apply(a_class())
    return world


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    """A namespace of the test's own; what was killed runs again, and nothing may be left after."""
    whole.stack.start_missing()
    whole.stack.wait_ready()
    with whole.in_namespace() as mine:
        yield mine
    whole.nothing_left()


@pytest.fixture
def nodes(world: World) -> Iterator[World]:
    """A world in which a test may do anything to the nodes; they are whole again afterwards."""
    yield world
    world.stack.start_missing()
    for name in world.stack.nodes():
        world.stack.register(name)
        world.patch("executionnode", name, {"spec": WHOLE})
        world.stack.kube("label", "executionnode", name, "zone-", "size-")
    world.stack.wait_ready()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seed of the fault tests' choices; ISOLET_FAULT_SEED makes the same ones again."""
    terminalreporter.write_line(f"ISOLET_FAULT_SEED={SEED}")
