"""What wakes which key: the one place that knows how a change somewhere concerns an object.

A bell that is not rung is no error, only a delay until the next resync. Used from the main loop.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isolet.operator.index import Index
from isolet.operator.kube import CLASSES, EXECUTIONS, NODES, WORK, Key, Kind, Object
from isolet.operator.nodes import Nodes
from isolet.operator.observe import ClassShelf
from isolet.operator.queue import WorkQueue
from isolet.plan import node, placement
from isolet.plan.objects import Record, kind_of

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
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self) -> None:
        """Something changed that may let a waiting object go on."""
        if self.index.waiting:
            self._wanted.set()

    async def run(self) -> None:
        """Sweep for ever, once for any number of wishes that came before it began."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            keys = self.order()
            for start in range(0, len(keys), self.chunk):
                for key in keys[start : start + self.chunk]:
                    if key in self.index.waiting:
                        self.ring(key)
                await asyncio.sleep(self.pause)

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

    def object_changed(self, kind: Kind, key: Key, obj: Object | None) -> None:
        """The cache has a new state of an object."""
        if kind in WORK:
            self.index.put(key, obj)
            self._ring_inside(key)
        elif kind is CLASSES:
            self.classes.changed()
            self.sweep.want()
        elif kind is NODES:
            self._node_object(key, obj)
        self.ring(key)

    def record_changed(self, record: Record) -> None:
        """An agent's record of an object is new, different or gone."""
        if record.name:
            key = Key(kind_of(record), record.namespace, record.name)
            self.ring(key)
            self._ring_inside(key)
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
        spec = None if obj is None else obj.get("spec")
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

    def _ring_beside(self, key: Key) -> None:
        """A Process has ended: another may have its turn in their Execution."""
        for sibling in itertools.islice(self.index.beside(key), TURNS):
            self.ring(sibling)

    def _ring_bound(self, name: str) -> None:
        for key in self.index.on(name):
            self.ring(key)
            self._ring_inside(key)
