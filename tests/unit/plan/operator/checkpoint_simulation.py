"""A tiny world for the laws of Checkpoints: one object, its Execution, agents, a store, troubles.

Its API server and its shell are those of `simulation`; what agents do about a Checkpoint is here.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from isolet.base import errors
from isolet.plan import checkpoint_object
from isolet.plan.actions import Plan
from isolet.plan.model import Absent, Cause, CheckpointPass, Fact, Host, Known, NodeFacts, Unknown
from isolet.plan.objects import read_checkpoint
from isolet.wire.checkpoint import CheckpointObserved, CheckpointStep, CheckpointWanted
from isolet.wire.execution import Medium, Outcome, Step
from isolet.wire.node import NodeObserved
from tests.unit.plan.operator import checkpoint_worlds as cw
from tests.unit.plan.operator import simulation, worlds


@dataclass
class Copy:
    """An agent's record of the Checkpoint."""

    step: CheckpointStep = CheckpointStep.RECORDED
    outcome: Outcome | None = None
    on_node: bool = False
    in_store: bool = False
    removing: bool = False
    ended_at: datetime | None = None
    sequence: int = 0


@dataclass
class Source:
    """The Execution whose workspace is taken."""

    node: str | None = "n1"
    running: bool = True
    medium: Medium = Medium.DISK
    ended: Outcome | None = None
    disposed: bool = False
    gone: bool = False


@dataclass
class Agent:
    """A node's agent, as far as Checkpoints go."""

    name: str
    clock: Callable[[], datetime]
    store: set[str]
    """Nodes whose copy is in the one object store."""
    has_store: bool = False
    epoch: str = "e1"
    boot: str = "b1"
    reachable: bool = True
    engine_up: bool = True
    takeable: bool = True
    refuses: str = ""
    source: Source | None = None
    copy: Copy | None = None
    buried: bool = False
    takes: int = 0
    sequence: int = 0
    box: None = None
    """Nothing of a sandbox: for the checks that simulations share."""

    def put(self, wanted: CheckpointWanted) -> None:
        if self.buried:
            raise errors.Conflict("has ended here before", reason="AlreadyEnded")
        if self.refuses:
            raise errors.Refused("no", reason=self.refuses)
        if self.copy is None:
            if self.source is None or self.source.gone:
                raise errors.NotFound("no such Execution here")
            self.copy = Copy()
            self._changed()

    def remove(self, kind: str) -> None:
        assert kind == "Checkpoint"
        if self.copy is None:
            self.buried = True
            if self.has_store:
                self.store.clear()
        else:
            self.copy.removing = True
        self._changed()

    def tick(self) -> bool:
        copy = self.copy
        if copy is None or not self.engine_up:
            return False
        if copy.removing:
            self._dispose(copy)
        elif copy.outcome is None:
            self._take(copy)
        else:
            return False
        self._changed()
        return True

    def _dispose(self, copy: Copy) -> None:
        if copy.in_store:
            self.store.discard(self.name)
        self.copy, self.buried = None, True

    def _take(self, copy: Copy) -> None:
        if copy.step is CheckpointStep.RECORDED:
            copy.step = CheckpointStep.TAKING
            return
        source = self.source
        possible = source is not None and not source.gone and not source.disposed
        copy.step, copy.ended_at = CheckpointStep.ENDED, self.clock()
        if possible and self.takeable:
            self.takes += 1
            copy.outcome, copy.on_node, copy.in_store = cw.READY, True, self.has_store
            if self.has_store:
                self.store.add(self.name)
        else:
            copy.outcome = cw.FAILED

    def _changed(self) -> None:
        self.sequence += 1
        if self.copy is not None:
            self.copy.sequence = self.sequence

    def next_event(self) -> datetime | None:
        return None

    def lose_everything(self) -> None:
        self.epoch, self.boot = self.epoch + "x", self.boot + "x"
        self.copy, self.buried, self.source, self.sequence = None, False, None, 0

    def observed(self) -> CheckpointObserved | None:
        copy = self.copy
        if copy is None:
            if not self.buried:
                return None
            return cw.a_record(
                sequence=self.sequence,
                step=CheckpointStep.DISPOSED,
                removing=True,
                nothing_left=True,
            )
        whole = copy.outcome is cw.READY
        return cw.a_record(
            sequence=copy.sequence,
            step=copy.step,
            removing=copy.removing,
            outcome=copy.outcome,
            manifest=cw.a_manifest() if whole else None,
            manifest_digest=cw.MANIFEST if whole else None,
            on_node=copy.on_node,
            in_store=cw.COPY if copy.in_store else None,
            ended_at=copy.ended_at,
        )


@functools.cache
def _report(name: str, epoch: str, boot: str, stores: tuple[str, ...]) -> NodeObserved:
    return worlds.a_report(name, epoch=epoch, boot_id=boot, object_stores=stores)


@functools.cache
def _host(step: Step, outcome: Outcome | None, medium: Medium, node: str | None) -> Host:
    return cw.a_host(step=step, outcome=outcome, medium=medium, node=node)


@dataclass
class World(simulation.World):
    """Everything there is."""

    object: dict[str, Any] | None = field(default_factory=cw.checkpoint_object)
    source: Source = field(default_factory=Source)
    store: set[str] = field(default_factory=set)
    restoring: tuple[str, ...] = ()
    decide: Callable[[Any], Plan] = checkpoint_object.plan

    def add_node(self, name: str, **changes: Any) -> Any:
        self.nodes[name] = changes
        agent = Agent(name, lambda: self.now, self.store)
        if name == self.source.node:
            agent.source = self.source
        self.agents[name] = agent  # type: ignore[assignment]
        return agent

    def observe(self) -> Any:
        assert self.object is not None
        return CheckpointPass(
            object=read_checkpoint(self.object),
            source=self._source(),
            restoring=self.restoring,
            nodes=tuple(self._node(name) for name in self.nodes),
            nodes_complete=True,
            leader_since=self.leader_since,
            installation="isolet",
            failure=self.failure,
            now=self.now,
        )

    def _source(self) -> Fact[Host]:
        found = self.source
        if found.gone:
            return Absent()
        agent = self.agents.get(found.node or "")
        heard = agent is not None and agent.reachable
        step = Step.RUNNING if found.running else Step.RECORDED
        if found.ended is not None:
            step = Step.DISPOSED if found.disposed else Step.ENDED
        host = _host(step, found.ended, found.medium, found.node)
        return Known(host if heard else replace(host, record=Unknown()))

    def _node(self, name: str) -> NodeFacts:
        agent: Any = self.agents[name]
        if agent.reachable:
            self.views[name] = (agent.epoch, agent.observed())
        view: Any = self.views.get(name)
        report = None
        if view is not None:
            stores = ("s3",) if agent.has_store else ()
            report = _report(name, view[0], agent.boot, stores)
        known = Unknown() if view is None else Known(view[1]) if view[1] else Absent()
        return NodeFacts(
            object=simulation._node_object(name, json.dumps(self.nodes[name])),
            report=report,
            reachable=agent.reachable,
            synced=view is not None,
            checkpoint=known,
        )

    def _let_go(self) -> None:
        """The object is gone: no copy may be left, but on a node it was given up on."""
        given_up = {stone.node for stone in self.tombstones.values()}
        forced = any(s.cause is Cause.FORCED for s in self.tombstones.values())
        left = {name for name, agent in self.agents.items() if getattr(agent, "copy", None)}
        assert left <= given_up, f"released while {left} still had it"
        if not forced and (self._was_told() or self._could_be_emptied(given_up)):
            assert not self.store, "released while a store still had it"

    def _was_told(self) -> bool:
        """Whether a status ever spoke of a copy in the store."""
        return any("ObjectStore" in str(past.get("status")) for past in self.past)

    def _could_be_emptied(self, given_up: set[str]) -> bool:
        """A copy that only a lost node knew of is removed where another node has that store."""
        others = set(self.nodes) - given_up
        off = {name for name in others if "outOfService" in str(self.nodes[name])}
        agents = [self.agents[name] for name in others - off]
        return any(a.reachable and getattr(a, "has_store", False) for a in agents)

    @property
    def copies(self) -> int:
        return sum(1 for agent in self.agents.values() if getattr(agent, "copy", None))
