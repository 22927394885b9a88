"""The nodes: one link for each ExecutionNode, and what a plan is told of them.

A link is made, replaced and ended as its object comes, changes its endpoint and goes. Only the
leader has links. Used from the main loop only.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pydantic

from isolet.api import executionnode
from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.index import Index
from isolet.operator.kube import Object, version_of
from isolet.operator.links import Agent, Link, LinkTimes, NodeEndpoint
from isolet.plan import node, placement
from isolet.plan.model import Contact, NodeFacts, OrphanNode, Unknown
from isolet.plan.objects import AnyRecord
from isolet.wire.node import Amounts

_log = log.get("operator.nodes")

Connect = Callable[[NodeEndpoint], Agent]


@dataclass(slots=True)
class _Entry:
    version: int
    object: executionnode.ExecutionNode | None
    """None: it cannot be read by this version."""
    link: Link | None = None
    task: asyncio.Task[None] | None = None
    since: float = 0.0
    problem: str = ""
    """Why there is no link though there should be one."""


@dataclass
class Nodes:
    """All nodes that have an object."""

    connect: Connect
    clock: Clock
    index: Index
    changed: Callable[[AnyRecord], None]
    accounted: Callable[[str], None]
    times: LinkTimes = field(default_factory=LinkTimes)
    calls: int = 8
    leading: bool = False
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def put(self, name: str, obj: Object | None) -> None:
        """Take in the newest state of a node's object; None: it is gone."""
        entry = self._entries.get(name)
        if obj is None:
            if entry is not None:
                self._end(entry)
                del self._entries[name]
            return
        parsed = _parse(name, obj)
        if entry is None:
            self._entries[name] = entry = _Entry(version_of(obj), parsed)
        else:
            entry.version, entry.object = version_of(obj), parsed
        self._follow(name, entry)

    def lead(self) -> None:
        """This process is leader: follow every agent."""
        self.leading = True
        for name, entry in self._entries.items():
            self._follow(name, entry)

    async def close(self) -> None:
        """End all links."""
        self.leading = False
        for entry in self._entries.values():
            self._end(entry)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def names(self) -> tuple[str, ...]:
        """Nodes with an object."""
        return tuple(self._entries)

    def link(self, name: str) -> Link | None:
        """The link of a node, if it is followed."""
        entry = self._entries.get(name)
        return None if entry is None else entry.link

    def object(self, name: str) -> executionnode.ExecutionNode | None:
        """A node's object, if it is there and can be read."""
        entry = self._entries.get(name)
        return None if entry is None else entry.object

    @property
    def readable(self) -> bool:
        """Whether every object could be read: else a missing one may only look missing."""
        return all(entry.object is not None for entry in self._entries.values())

    def contact(self, name: str) -> Contact | None:
        """How the agent is heard; None if nobody follows it, or its object cannot be read."""
        entry = self._entries.get(name)
        if entry is None or entry.object is None or not self.leading:
            return None
        if entry.link is not None:
            return entry.link.contact()
        return Contact(
            watched_since=entry.since,
            problem=entry.problem,
            reason="Invalid",
            now=self.clock.monotonic(),
        )

    def is_heard(self, name: str) -> bool:
        """Whether the agent is there now."""
        link = self.link(name)
        return link is not None and node.is_heard(link.contact())

    def facts(
        self, uid: str, *, placing: bool = False, checkpoint: str = ""
    ) -> tuple[NodeFacts, ...]:
        """Every node, as a pass over an object sees it.

        Args:
            uid: of the work; empty in a pass over a Checkpoint.
            placing: whether a node may be chosen: only then is counted what is promised.
            checkpoint: uid of the Checkpoint in question, if there is one.
        """
        return tuple(
            self._facts(uid, entry.object, entry.link, placing=placing, checkpoint=checkpoint)
            for entry in self._entries.values()
            if entry.object is not None
        )

    def one(self, name: str) -> NodeFacts | None:
        """A node as its own pass sees it; None if its object cannot be read."""
        entry = self._entries.get(name)
        if entry is None or entry.object is None:
            return None
        return self._facts("", entry.object, entry.link, placing=False, checkpoint="")

    def orphan_view(self) -> tuple[OrphanNode, ...]:
        """Every node, as the orphan pass sees it."""
        return tuple(
            OrphanNode(
                object=entry.object,
                report=entry.link.report if entry.link else None,
                reachable=self.is_heard(name),
                synced=entry.link.synced if entry.link else False,
                records=tuple(entry.link.records.values()) if entry.link else (),
            )
            for name, entry in self._entries.items()
            if entry.object is not None
        )

    def _facts(
        self,
        uid: str,
        obj: executionnode.ExecutionNode,
        link: Link | None,
        *,
        placing: bool,
        checkpoint: str,
    ) -> NodeFacts:
        if link is None:
            return NodeFacts(object=obj)
        promised = Amounts()
        if placing:
            bound = self.index.unfinished(obj.metadata.name)
            promised = placement.promised(bound, link.records, link.report)
        return NodeFacts(
            object=obj,
            report=link.report,
            reachable=node.is_heard(link.contact()),
            synced=link.synced,
            record=link.record(uid),
            checkpoint=link.checkpoint(checkpoint) if checkpoint else Unknown(),
            promised=promised,
        )

    def _follow(self, name: str, entry: _Entry) -> None:
        """Have the link that the object asks for."""
        if not self.leading or entry.object is None:
            return
        spec = entry.object.spec
        endpoint = NodeEndpoint(spec.endpoint, spec.server_name or name)
        if entry.link is not None and entry.link.endpoint == endpoint:
            return
        self._end(entry)
        try:
            agent = self.connect(endpoint)
        except errors.IsoletError as error:
            entry.since, entry.problem = self.clock.monotonic(), error.message
            _log.warning("no link to the agent", extra={"node": name, "detail": error.message})
            return
        entry.link = Link(
            name=name,
            endpoint=endpoint,
            agent=agent,
            clock=self.clock,
            changed=self.changed,
            accounted=self.accounted,
            times=self.times,
            calls=self.calls,
        )
        entry.task = asyncio.create_task(entry.link.run(), name=f"link-{name}")

    def _end(self, entry: _Entry) -> None:
        if entry.task is not None:
            entry.task.cancel()
            self._closing.add(entry.task)
            entry.task.add_done_callback(self._closing.discard)
        entry.link = entry.task = None


def _parse(name: str, obj: Object) -> executionnode.ExecutionNode | None:
    try:
        return executionnode.ExecutionNode.model_validate(obj)
    except pydantic.ValidationError:
        _log.warning("an ExecutionNode that this version cannot read", extra={"node": name})
        return None
