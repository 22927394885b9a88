"""Isolet on the cluster of hack/test: operator, two agents, two gVisor daemons, all real."""

import os
from collections.abc import Iterator

import pytest

from isolet_stack.stack import Stack
from tests.e2e.faults_arena import SEED
from tests.e2e.world import World, a_class


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seed of the fault tests' choices; ISOLET_FAULT_SEED makes the same ones again."""
    terminalreporter.write_line(f"ISOLET_FAULT_SEED={SEED}")
