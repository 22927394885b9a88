"""When a node is looked at again."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isolet.agent.service import node as node_module
from isolet.agent.service.node import Node
from isolet.agent.service.qualify import Qualification, next_round_in, verdict


def found(*, serving: bool = True, disk: bool = True) -> Qualification:
    problem = None if disk else "no loop device"
    conditions = (verdict("DiskWorkspaces", problem, "LoopDevicesMissing", "a disk was made"),)
    return Qualification(conditions=conditions, runtimes=("runsc",) if serving else ())


ROUNDS = {
    "all is well": (found(), 0, 600.0),
    "an optional part failed": (found(disk=False), 1, 10.0),
    "it failed again": (found(disk=False), 3, 40.0),
    "it is not there for good": (found(disk=False), 1000, 600.0),
    "nothing can be started": (found(serving=False, disk=False), 1000, 10.0),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_what_fails_is_looked_at_soon_again(name: str) -> None:
    seen, failed, seconds = ROUNDS[name]
    assert next_round_in(seen, failed) == seconds


async def test_a_part_that_failed_once_is_given_without_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def at_once(_: Qualification, failed: int) -> float:
        asked.append(failed)
        return 0.0 if failed else 60.0

    monkeypatch.setattr(node_module, "next_round_in", at_once)
    changed = asyncio.Event()
    node = Node(cast(Any, SimpleNamespace()), lambda: changed.set() if asked else None)
    rounds = iter([found(disk=False), found(disk=False), found()])

    async def run() -> Qualification:
        return next(rounds)

    monkeypatch.setattr(node._qualifier, "run", run)
    looking = asyncio.create_task(node.qualify_loop())
    await asyncio.wait_for(changed.wait(), 60)
    looking.cancel()
    assert node.qualification == found()
    assert asked[:2] == [1, 2]
