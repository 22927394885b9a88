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
    "it failed in a round that was not counted": (found(disk=False), 0, 10.0),
    "it failed again": (found(disk=False), 3, 40.0),
    "it is not there for good": (found(disk=False), 1000, 600.0),
    "nothing can be started": (found(serving=False, disk=False), 1000, 10.0),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_what_fails_is_looked_at_soon_again(name: str) -> None:
    seen, failed, seconds = ROUNDS[name]
    assert next_round_in(seen, failed) == seconds


DOWN, WITHOUT, WHOLE = found(serving=False), found(disk=False), found()

# Rounds, and how many failed ones are counted after each.
COUNTED = {
    "an optional part": ([WITHOUT, WITHOUT, WHOLE], [1, 2, 0]),
    "an engine that was away for long": ([DOWN] * 10 + [WITHOUT, WHOLE], [0] * 10 + [1, 0]),
}


@pytest.mark.parametrize("name", COUNTED)
async def test_what_failed_is_given_without_a_restart(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rounds, counted = COUNTED[name]
    asked: list[int] = []
    over = asyncio.Event()

    def at_once(_: Qualification, failed: int) -> float:
        asked.append(failed)
        if len(asked) < len(rounds):
            return 0.0
        over.set()
        return 60.0

    monkeypatch.setattr(node_module, "next_round_in", at_once)
    node = Node(cast(Any, SimpleNamespace()), lambda: None)
    left = iter(rounds)

    async def run() -> Qualification:
        return next(left)

    monkeypatch.setattr(node._qualifier, "run", run)
    looking = asyncio.create_task(node.qualify_loop())
    await asyncio.wait_for(over.wait(), 60)
    looking.cancel()
    assert (node.qualification, asked) == (WHOLE, counted)
