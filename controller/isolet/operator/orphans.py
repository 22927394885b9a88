"""The orphan loop: what agents hold and no object stands for. The decisions are `plan.orphans`'.

Works on lists and inventories, never on events, and only after two complete lists by this leader.
One node that fails holds up no other.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.apply import Applier
from isolet.operator.cache import ObjectCache
from isolet.operator.kube import NODES, WORK, uid_of
from isolet.operator.nodes import Nodes
from isolet.operator.relist import Relist
from isolet.operator.tombstones import Tombstones
from isolet.plan import actions as act
from isolet.plan import orphans
from isolet.plan.model import Held, OrphanPass, OrphanPolicy

_log = log.get("operator.orphans")

RETRY = 10.0
SETTLE = 0.5
"""Agents that come back together are looked at together."""


@dataclass
class OrphanLoop:
    """Runs for as long as this process leads."""

    applier: Applier
    cache: ObjectCache
    nodes: Nodes
    relist: Relist
    tombstones: Tombstones
    clock: Clock
    policy: OrphanPolicy
    suspects: Mapping[Held, float] = field(default_factory=dict)
    found: Mapping[str, int] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._bell = asyncio.Event()

    def wake(self) -> None:
        """An agent or its node's object changed: what was given up there may wait to be removed."""
        self._bell.set()

    async def run(self) -> None:
        """Pass after pass."""
        while True:
            self._bell.clear()
            try:
                delay = await self.step()
            except errors.IsoletError as error:
                _log.warning("orphan pass failed", extra={"detail": str(error)})
                delay = RETRY
            except Exception:
                _log.exception("orphan pass broke off")
                delay = RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._bell.wait()
            await asyncio.sleep(SETTLE)

    async def step(self) -> float:
        """One pass; returns the seconds until the next."""
        if not self.tombstones.complete:
            await self.tombstones.load()
        plan = orphans.plan(
            OrphanPass(
                lists=self.relist.lists,
                nodes=self.nodes.orphan_view(),
                nodes_complete=self.cache.complete(NODES) and self.nodes.readable,
                tombstones=self.tombstones.all(),
                tombstones_complete=self.tombstones.complete,
                suspects=self.suspects,
                policy=self.policy,
                monotonic=self.clock.monotonic(),
                now=self.clock.now(),
            )
        )
        self.suspects, self.found, self.stopped = plan.suspects, plan.orphans, plan.stopped
        delay = plan.look_again_in
        for actions in _by_node(plan.actions):
            outcome = await self.applier.apply(actions)
            if outcome.failure is not None:
                delay = min(delay, RETRY)
                _log.warning("orphan not removed", extra={"detail": outcome.failure.message})
        self._list_again()
        return delay

    def _list_again(self) -> None:
        """Have a list that is younger than the suspicion, where the watch knows of no object."""
        known = {uid_of(obj) for kind in WORK for obj in self.cache.all(kind)}
        doubtful = [since for held, since in self.suspects.items() if held.uid not in known]
        newest = self.relist.lists[-1].started_at if self.relist.lists else 0.0
        if any(since >= newest for since in doubtful):
            self.relist.at_once()


def _by_node(actions: Sequence[act.Action]) -> list[list[act.Action]]:
    """The actions of each node, in order."""
    groups: dict[str, list[act.Action]] = {}
    for action in actions:
        groups.setdefault(str(getattr(action, "node", "")), []).append(action)
    return list(groups.values())
