"""What wakes which key: the one place that knows how a change somewhere concerns an object.

A bell that is not rung is no error, only a delay until the next resync. Used from the main loop.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isolet.operator.index import Index
from isolet.operator.kube import CLASSES, EXECUTIONS, NODES, WORK, Key, Kind, Object
from isolet.operator.nodes import Nodes
from isolet.operator.observe import ClassShelf
from isolet.operator.queue import WorkQueue
from isolet.plan import node, placement
from isolet.plan.objects import AnyRecord, kind_of

TURNS = 4
"""How many of those that wait for their turn are tried when one is free: some may not wait."""


@dataclass
class Sweep:
    """Looks at everything that waits for a node, fairly between namespaces, without flooding.

    Ten thousand waiting objects must not be looked at each time one Execution ends; but each must
    be looked at some time after room appeared.
    """

    index: Index
    ring: Callable[[Key], None]
    chunk: int = 16
    pause: float = 0.05
    slowest: float = 0.4
    """Pause after a chunk of which nothing was bound: most that follows will not be either."""
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _rest: deque[Key] = field(default_factory=deque)
    _again: bool = False

    def want(self) -> None:
        """Something changed that may let a waiting object go on."""
        if self.index.waiting:
            self._wanted.set()

    async def run(self) -> None:
        """Sweep for ever: at each wish those whose turn it is, and by and by all the others."""
        pause = self.pause
        while True:
            pause = min(2 * pause, self.slowest) if not await self._step() else self.pause
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause if self._rest else None):
                    await self._wanted.wait()
            await asyncio.sleep(self.pause)

    async def _step(self) -> bool:
        """Ring a chunk or two; returns whether something of it was bound in a moment."""
        keys = [self._rest.popleft() for _ in range(min(self.chunk, len(self._rest)))]
        if self._wanted.is_set():
            self._wanted.clear()
            keys += self._begin()
        waiting = [key for key in keys if key in self.index.waiting]
        for key in waiting:
            self.ring(key)
        if not self._rest and self._again:
            self._again = False
            self._rest.extend(self.order())
        if not waiting:
            return True
        await asyncio.sleep(self.pause)
        return any(key not in self.index.waiting for key in waiting)

    def _begin(self) -> list[Key]:
        """The head of the fair order. What a sweep under way has left of its tail is kept."""
        order = self.order()
        if self._rest:
            self._again = True
        else:
            self._rest.extend(order[self.chunk :])
        return order[: self.chunk]

    def order(self) -> list[Key]:
        """The waiting keys in the order in which they should be tried."""
        keys = {item.uid: key for key, item in self.index.waiting.items()}
        fair = placement.fair_order(self.index.pending(), self.index.in_use())
        return [keys[item.uid] for item in fair]


@dataclass
class Bells:
    """Rings the queue once this process leads."""

    queue: WorkQueue[Key]
    index: Index
    nodes: Nodes
    classes: ClassShelf
    sweep: Sweep
    contact_changed: Callable[[], None] = lambda: None
    """An agent came, went, or is another."""
    use_changed: Callable[[], None] = lambda: None
    """What a node may be used for is not what it was."""
    leading: bool = False
    _specs: dict[str, Any] = field(default_factory=dict)
    _contacts: dict[str, tuple[bool, bool, str, bool, bool]] = field(default_factory=dict)

    def ring(self, key: Key) -> None:
        """A key needs a pass now."""
        if self.leading:
            self.queue.add(key)

    def resync(self, key: Key) -> None:
        """A key is due for another look, without hurry."""
        if self.leading:
            self.queue.add_idle(key)

    def object_changed(self, kind: Kind, key: Key, obj: Object | None, own: bool = False) -> None:
        """The cache has a new state of an object.

        A status that its own pass wrote (`own`) is no reason for another one: it was written at the
        version that was looked at, so nothing else is new, and the pass has said when to look.
        """
        if kind in WORK:
            before = self.index.restored_from.named_by(key)
            self.index.put(key, obj)
            self._ring_inside(key)
            self._ring_checkpoints(key, before)
        elif kind is CLASSES:
            self.classes.changed()
            self.sweep.want()
            for name in self.nodes.names():
                self.ring(Key(NODES.kind, "", name))
        elif kind is NODES:
            self._node_object(key, obj)
        if not own:
            self.ring(key)

    def record_changed(self, record: AnyRecord) -> None:
        """An agent's record of an object is new, different or gone."""
        if record.name:
            key = Key(kind_of(record), record.namespace, record.name)
            self.ring(key)
            self._ring_inside(key)
            self._ring_checkpoints(key)
            if record.outcome is not None:
                self._ring_beside(key)

    def node_accounted(self, name: str) -> None:
        """A node's account, or our contact with its agent, is not what it was."""
        self.ring(Key(NODES.kind, "", name))
        self.node_contact(name)
        self.sweep.want()

    def node_contact(self, name: str) -> None:
        """Ring what is bound to a node if the agent came, went, is another or fit for work again.

        What failed while an agent was restarted, or not qualified yet, need not wait its backoff.
        """
        link = self.nodes.link(name)
        contact = (
            self.nodes.is_heard(name),
            link is not None and link.synced,
            link.epoch if link else "",
            link is not None and not link.problem,
            link is not None and link.report is not None and node.unfit(link.report) is None,
        )
        if self._contacts.get(name) == contact:
            return
        self._contacts[name] = contact
        self.contact_changed()
        self._ring_bound(name)
        self.sweep.want()

    def _node_object(self, key: Key, obj: Object | None) -> None:
        self.nodes.put(key.name, obj)
        # What is bound there goes by the spec, and by when its drain was seen.
        spec = None
        if obj is not None:
            spec = obj.get("spec"), (obj.get("status") or {}).get("drain", {}).get("startTime")
        if self._specs.get(key.name) != spec:
            self._specs[key.name] = spec
            self.use_changed()
            self._ring_bound(key.name)
        if obj is None:
            self._specs.pop(key.name, None)
            self._contacts.pop(key.name, None)
        self.sweep.want()

    def _ring_inside(self, host: Key) -> None:
        """Ring the Processes that wait for an Execution: it may run now, or never will."""
        if host.kind == EXECUTIONS.kind:
            for key in self.index.inside(host):
                self.ring(key)

    def _ring_checkpoints(self, key: Key, before: Key | None = None) -> None:
        """Ring across the ties between Executions and Checkpoints, which wait for each other."""
        named = (self.index.restored_from.named_by(key), before)
        found = {*self.index.taken_of.naming(key), *self.index.restored_from.naming(key)}
        for other in found.union(other for other in named if other is not None):
            self.ring(other)

    def _ring_beside(self, key: Key) -> None:
        """A Process has ended: another may have its turn in their Execution."""
        for sibling in itertools.islice(self.index.beside(key), TURNS):
            self.ring(sibling)

    def _ring_bound(self, name: str) -> None:
        for key in self.index.on(name):
            # What has ended is of little interest to a node, and there may be ten thousand.
            ring = self.resync if self.index.bound[key].finished else self.ring
            ring(key)
            self._ring_inside(key)
