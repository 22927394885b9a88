"""A tiny world for the laws: one object, some agents, an API server, and what happens to them.

It performs what plans ask for, as the operator's shell does: in order, up to the first failure. A
call can be made to fail before it has an effect, or after. It counts what must never happen twice.
"""

import copy
import functools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from isolet.api import meta
from isolet.api.executionnode import ExecutionNode
from isolet.base import errors
from isolet.plan import actions as act
from isolet.plan import binding, execution, objects, reasons, values
from isolet.plan.actions import Plan
from isolet.plan.model import (
    Absent,
    Cause,
    Fact,
    Failure,
    Host,
    Input,
    InputRef,
    Known,
    NodeFacts,
    Observed,
    Tombstone,
    Unknown,
    failure_of,
)
from isolet.plan.objects import Record
from isolet.wire.execution import (
    Amendment,
    ExecutionObserved,
    ExecutionWanted,
    Outcome,
    State,
    Step,
    Waiting,
)
from isolet.wire.node import Amounts, NodeObserved
from isolet.wire.process import ProcessAmendment, ProcessObserved, ProcessState, ProcessWanted
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.worlds import UID, merge

STATES = {ProcessState.RUNNING: State.RUNNING, ProcessState.CANCELLED: State.TERMINATED}


@dataclass
class Sandbox:
    """An agent's record, and whether a container of it lives."""

    generation: int
    deadline: int
    session: bool
    hosted: bool = False
    state: State = State.RUNNING
    stop_reason: str | None = None
    values: bool = True
    step: Step = Step.RECORDED
    live: bool = False
    removing: bool = False
    nothing_left: bool = False
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    sequence: int = 0


@dataclass
class Session:
    """The Execution that a Process is to run in, on a node that has it from the start."""

    node: str
    uid: str = "0d0d"
    running: bool = True
    ended: Outcome | None = None
    deleted: bool = False


@dataclass
class Agent:
    """A node's agent and its engine."""

    name: str
    clock: Callable[[], datetime]
    epoch: str = "e1"
    boot: str = "b1"
    reachable: bool = True
    engine_up: bool = True
    runs_for: float = 3.0
    kind: str = "Execution"
    session: Session | None = None
    box: Sandbox | None = None
    buried: bool = False
    starts: int = 0
    sequence: int = 0

    def put(self, wanted: ExecutionWanted | ProcessWanted) -> Record | None:
        if self.buried:
            raise errors.Conflict("has ended here before", reason="AlreadyEnded")
        assert isinstance(wanted, ProcessWanted) is (self.kind == "Process")
        hosted = isinstance(wanted, ProcessWanted) and wanted.spec.execution_uid is not None
        if self.box is None:
            if isinstance(wanted, ProcessWanted) and hosted:
                self._join(wanted.spec.execution_uid or "")
            session = isinstance(wanted, ExecutionWanted) and not wanted.spec.command
            self.box = Sandbox(wanted.generation, 0, session=session, hosted=hosted)
        self.box.values = True
        if isinstance(wanted, ProcessWanted):
            seconds, state = wanted.spec.lifetime_seconds(), STATES[wanted.state]
        else:
            seconds, state = wanted.active_deadline_seconds, wanted.state
        self._amend(wanted.generation, seconds, state, None)
        return self.observed()

    def _join(self, uid: str) -> None:
        found = self.session
        if found is None or found.uid != uid:
            raise errors.NotFound("no such Execution on this node")
        if found.ended is not None or not found.running:
            raise errors.Conflict("it is not running", reason="NotRunning")

    def amend(self, change: Amendment | ProcessAmendment) -> Record | None:
        if self.box is None:
            raise errors.NotFound("no such object")
        assert isinstance(change, ProcessAmendment) is (self.kind == "Process")
        if isinstance(change, ProcessAmendment):
            seconds, state = None, STATES[change.state]
        else:
            seconds, state = change.active_deadline_seconds, change.state
        self._amend(change.generation, seconds, state, change.stop_reason)
        return self.observed()

    def _amend(self, generation: int, deadline: int | None, state: State, why: str | None) -> None:
        box = self.box
        assert box is not None
        box.generation = max(box.generation, generation)
        box.deadline = box.deadline if deadline is None else deadline
        if box.state is not State.TERMINATED:
            box.state, box.stop_reason = state, why
        self._changed()

    def remove(self, kind: str) -> Record | None:
        assert kind == self.kind
        if self.box is None:
            self.buried = True
        else:
            self.box.removing = True
        self._changed()
        return self.observed()

    def _changed(self) -> None:
        self.sequence += 1
        if self.box is not None:
            self.box.sequence = self.sequence

    def tick(self) -> bool:
        """One step of the agent's own work; whether anything changed."""
        box, now = self.box, self.clock()
        if box is None or not self.engine_up:
            return False
        before = replace(box)
        if box.outcome is None:
            self._advance(box, now)
        elif box.removing:
            box.step, box.nothing_left = Step.DISPOSED, True
            self.box, self.buried = None, True
        if self.box != before:
            self._changed()
            return True
        return False

    def _advance(self, box: Sandbox, now: datetime) -> None:
        if box.removing or box.state is State.TERMINATED:
            return self._end(box, self._asked(box))
        if box.hosted and (self.session is None or self.session.ended is not None):
            why = Outcome(succeeded=False, reason="ExecutionEnded", message="its sandbox ended")
            return self._end(box, why)
        if box.step is Step.RECORDED:
            if box.values:
                box.step, box.live, box.started_at = Step.RUNNING, True, now
                self.starts += 1
            return None
        assert box.started_at is not None
        ran = (now - box.started_at).total_seconds()
        if ran >= box.deadline:
            why = Outcome(succeeded=False, reason="DeadlineExceeded", message="ran too long")
            return self._end(box, why)
        if not box.session and ran >= self.runs_for:
            return self._end(box, worlds.SUCCEEDED)
        return None

    def _asked(self, box: Sandbox) -> Outcome:
        if box.stop_reason == reasons.DRAINED:
            return Outcome(succeeded=False, reason="Drained", message="drained")
        if box.session:
            return Outcome(succeeded=True, reason="Terminated", message="terminated as asked")
        return Outcome(succeeded=False, reason="Cancelled", message="cancelled before its end")

    def _end(self, box: Sandbox, outcome: Outcome) -> None:
        box.live, box.step, box.outcome, box.ended_at = False, Step.ENDED, outcome, self.clock()

    def next_event(self) -> datetime | None:
        box = self.box
        if box is None or box.started_at is None or box.outcome is not None:
            return None
        seconds = box.deadline if box.session else min(box.deadline, self.runs_for)
        return box.started_at + timedelta(seconds=seconds)

    def restart(self) -> None:
        """The agent process dies and comes back: what it held in memory is gone."""
        if self.box is not None:
            self.box.values = False
            self._changed()

    def lose_everything(self) -> None:
        """The node comes back empty, after a boot."""
        self.session = None
        self.epoch, self.boot = self.epoch + "x", self.boot + "x"
        self.box, self.buried, self.sequence = None, False, 0

    def observed(self) -> Record | None:
        box = self.box
        if box is None and not self.buried:
            return None
        base = {"uid": UID, "namespace": "team", "name": "hello", "spec_digest": "d"}
        observed = ProcessObserved if self.kind == "Process" else ExecutionObserved
        if box is None:
            return observed(
                **base, sequence=self.sequence, step=Step.DISPOSED, removing=True, nothing_left=True
            )
        waits = box.step is Step.RECORDED and not box.values and box.outcome is None
        ends = box.started_at and box.started_at + timedelta(seconds=box.deadline)
        return observed(
            **base,
            sequence=box.sequence,
            generation=box.generation,
            step=box.step,
            removing=box.removing,
            outcome=box.outcome,
            waiting=Waiting(reason=reasons.AWAITING_INPUTS, message="send it") if waits else None,
            image_id=worlds.IMAGE_ID,
            started_at=box.started_at,
            deadline_at=ends,
            ended_at=box.ended_at,
            nothing_left=box.nothing_left,
        )


@functools.cache
def _node_object(name: str, changes: str) -> ExecutionNode:
    return worlds.a_node_object(name, **json.loads(changes))


@dataclass
class World:
    """Everything there is."""

    now: datetime = worlds.NOW
    object: dict[str, Any] | None = field(default_factory=worlds.execution_object)
    classes: tuple[Any, ...] = field(default_factory=lambda: (worlds.a_class(),))
    inputs: dict[InputRef, Input] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    leader_since: datetime = worlds.LEADER_SINCE
    session: Session | None = None
    views: dict[str, tuple[str, Record | None]] = field(default_factory=dict)
    """What the operator last read of each agent: its epoch and record."""
    failure: Failure | None = None
    tombstones: dict[tuple[str, str], Tombstone] = field(default_factory=dict)
    events: dict[str, act.Emit] = field(default_factory=dict)
    writes: Counter[str] = field(default_factory=Counter)
    calls: list[act.Action] = field(default_factory=list)
    """Every action that was tried."""
    past: list[dict[str, Any]] = field(default_factory=list)
    """Earlier states of the object, as a backup of etcd would have them."""
    restored: bool = False
    wiped: bool = False
    """A node lost its records. With etcd set back as well, nobody could know anything."""
    decide: Callable[[Any], Plan] = execution.plan
    breaks: Callable[[int, act.Action], str | None] = lambda number, action: None
    """Says whether a call fails: "before" its effect, "after" it, or not."""

    def add_node(self, name: str, **changes: Any) -> Agent:
        self.nodes[name] = changes
        self.agents[name] = Agent(name, lambda: self.now, kind=self.kind)
        return self.agents[name]

    def add_session(self, name: str) -> Session:
        """An Execution that runs on a node."""
        self.session = self.agents[name].session = Session(name)
        return self.session

    @property
    def kind(self) -> str:
        return str((self.object or {}).get("kind", "Execution"))

    def terminate(self) -> None:
        state = "Cancelled" if self.kind == "Process" else "Terminated"
        self.edit(desiredState=state)

    # What the operator sees.

    def observe(self) -> Observed:
        assert self.object is not None
        facts = objects.read(self.kind, self.object)
        refs = values.inputs_of(facts.spec)
        return Observed(
            object=facts,
            host=self._host() if facts.host else Unknown(),
            namespace_labels=Known({}),
            classes=Known(self.classes),
            inputs={
                ref: Known(self.inputs[ref]) if ref in self.inputs else Absent() for ref in refs
            },
            nodes=tuple(self._facts(name) for name in self.nodes),
            nodes_complete=True,
            leader_since=self.leader_since,
            installation="isolet",
            failure=self.failure,
            now=self.now,
        )

    def _host(self) -> Fact[Host]:
        session = self.session
        if session is None or session.deleted:
            return Absent()
        agent = self.agents.get(session.node)
        known = agent is not None and agent.reachable and agent.session is session
        return Known(
            worlds.a_host(session.uid, session.node, session.running, session.ended, known)
        )

    def _facts(self, name: str) -> NodeFacts:
        agent = self.agents[name]
        if agent.reachable:
            self.views[name] = (agent.epoch, agent.observed())
        view = self.views.get(name)
        known = None if view is None else view[1]
        return NodeFacts(
            object=_node_object(name, json.dumps(self.nodes[name])),
            report=self._report(agent, view[0]) if view else None,
            reachable=agent.reachable,
            synced=view is not None,
            record=Unknown() if view is None else Known(known) if known else Absent(),
        )

    def _report(self, agent: Agent, epoch: str) -> NodeObserved:
        used = Amounts(memory_bytes=worlds.GI, executions=1) if agent.box else Amounts()
        return worlds.a_report(agent.name, epoch=epoch, boot_id=agent.boot, allocated=used)

    def new_leader(self) -> None:
        """The operator restarts: it remembers nothing."""
        self.leader_since, self.failure, self.views = self.now, None, {}

    # One pass.

    def work(self, plan: Plan | None = None) -> Plan | None:
        """Make a plan, or take one that was just made, and do what it says."""
        if self.object is None:
            return None
        plan = plan or self.decide(self.observe())
        self.past.append(copy.deepcopy(self.object))
        self.failure = self._apply(plan)
        if plan.write_status and self.object is not None:
            self.object["status"] = plan.status.to_object()
            self._wrote("status")
        return plan

    def _apply(self, plan: Plan) -> Failure | None:
        for action in plan.actions:
            broken = self.breaks(len(self.calls), action)
            self.calls.append(action)
            try:
                if broken == "before":
                    raise errors.Unavailable("not now")
                self._do(action)
                if broken == "after":
                    raise errors.Unconfirmed("no answer came")
            except errors.IsoletError as error:
                if isinstance(action, act.Emit):
                    continue
                return failure_of(action, error)
        return None

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Bind():
                self._bind(action)
            case act.Put(node=name):
                self._agent(name).put(action.wanted)
            case act.Amend(node=name):
                self._agent(name).amend(action.change)
            case act.Remove(node=name):
                self._agent(name).remove(action.kind)
            case act.Release():
                self._release(action)
            case act.DeleteObject():
                self._check(action.object)
                self.delete()
            case act.WriteTombstone(tombstone=stone):
                self.tombstones.setdefault((stone.node, stone.uid), stone)
            case act.Emit():
                if action.key not in self.events:
                    self._wrote("event", bump=False)
                self.events[action.key] = action
            case _:
                raise AssertionError(f"not an object's action: {action}")

    def _agent(self, name: str) -> Agent:
        agent = self.agents[name]
        if not agent.reachable:
            raise errors.Unavailable("no connection")
        return agent

    def _check(self, ref: Any) -> dict[str, Any]:
        assert self.object is not None
        if ref.resource_version != self.object["metadata"]["resourceVersion"]:
            raise errors.Conflict("the object has been modified")
        return self.object

    def _bind(self, action: act.Bind) -> None:
        obj = self._check(action.object)
        changed = obj["spec"].get("nodeName") != action.node
        assert changed is False or "nodeName" not in obj["spec"], "bound to another node"
        self.object = merge(
            obj,
            {
                "metadata": {
                    "finalizers": list(action.finalizers),
                    "annotations": {binding.ANNOTATION: action.annotation},
                },
                "spec": {"nodeName": action.node},
            },
        )
        self._wrote("bind", generation=changed)

    def _release(self, action: act.Release) -> None:
        obj = self._check(action.object)
        obj["metadata"]["finalizers"] = list(action.finalizers)
        self._wrote("release")
        if obj["metadata"].get("deletionTimestamp") and not action.finalizers:
            self.object = None
            self._let_go()

    def _let_go(self) -> None:
        """The object is gone: nothing of it may be left, but on a node it was given up on."""
        given_up = {stone.node for stone in self.tombstones.values()}
        left = {agent.name for agent in self.agents.values() if agent.box is not None}
        assert left <= given_up, f"released while {left} still had it"
        for stone in self.tombstones.values():
            if stone.cause is Cause.NODE_REPLACED:
                assert self.agents[stone.node].box is None

    def _wrote(self, what: str, *, generation: bool = False, bump: bool = True) -> None:
        self.writes[what] += 1
        if self.object is None or not bump:
            return
        metadata = self.object["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        metadata["generation"] += 1 if generation else 0

    # What users do.

    def edit(self, **changes: Any) -> None:
        assert self.object is not None
        self.object = merge(self.object, {"spec": changes})
        metadata = self.object["metadata"]
        metadata["generation"] += 1
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def delete(self) -> None:
        assert self.object is not None
        metadata = self.object["metadata"]
        if not metadata.get("finalizers"):
            self.object = None
        elif not metadata.get("deletionTimestamp"):
            metadata["deletionTimestamp"] = meta.format_time(self.now)
            metadata["generation"] += 1
            metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def restore(self, state: dict[str, Any]) -> None:
        """etcd is set back: an older object, at a version nobody has seen, and a new leader."""
        assert self.object is not None
        newest = int(self.object["metadata"]["resourceVersion"])
        self.object = merge(state, {"metadata": {"resourceVersion": str(newest + 1)}})
        self.new_leader()

    # Time.

    def tick(self) -> bool:
        return any([agent.tick() for agent in self.agents.values()])

    def advance(self, plan: Plan | None) -> bool:
        """To the next moment at which anything could happen; False: there is none."""
        times = [agent.next_event() for agent in self.agents.values()]
        times.append(plan.look_again_at if plan else None)
        coming = [t for t in times if t is not None and t > self.now]
        if coming:
            self.now = min(coming)
        return bool(coming)

    def settle(self, most: int = 80) -> int:
        """Run on until nothing changes any more; how many passes that took."""
        still = 0
        for number in range(most):
            plan = self.work()
            worked = self.tick()
            quiet = plan is None or not (plan.actions or plan.write_status)
            if quiet and not worked:
                still += 1
                # Two looks in a row, across every patience there is, and nothing came of them.
                if still > 3 or not self.advance(plan):
                    return number
            else:
                still = 0
        raise AssertionError(f"no rest after {most} passes: {self.calls[-5:]}")

    @property
    def live(self) -> int:
        return sum(1 for agent in self.agents.values() if agent.box and agent.box.live)

    @property
    def starts(self) -> int:
        return sum(agent.starts for agent in self.agents.values())
