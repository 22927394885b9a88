"""One pass over one key: observe, plan, apply, publish. Called by the queue's workers.

A pass remembers nothing but the failure of the one before; it looks at what is, does what the plan
says up to the first failure, writes the status the plan derived, and says when to look again.
"""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

import pydantic

from isolet.api.checkpoint import CheckpointStatus
from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.operator.apply import Applier, Outcome
from isolet.operator.cache import ObjectCache
from isolet.operator.index import Index
from isolet.operator.kube import (
    CHECKPOINTS,
    EXECUTIONS,
    NODES,
    PROCESSES,
    WORK,
    Cluster,
    Key,
    Kind,
    Object,
    uid_of,
)
from isolet.operator.nodes import Nodes
from isolet.operator.observe import Observer
from isolet.operator.publish import publish
from isolet.operator.queue import Again
from isolet.operator.steps import Effect
from isolet.plan import actions as act
from isolet.plan import binding, checkpoint_object, execution, model, node, pools
from isolet.plan.objects import AnyStatus
from isolet.plan.status import decided

_log = log.get("operator.pass")

Pass = Callable[[Key, Object], Awaitable[Again]]

SOON = 0.01

INPUT_LOOK = 10.0
"""Secrets and ConfigMaps are not watched: an object that waits for one looks this often."""


@dataclass
class Memory:
    """What is kept of an object between passes; lost without harm."""

    failures: dict[Key, tuple[str, model.Failure]] = field(default_factory=dict)
    """The last pass's failure, with the uid it is about."""
    flags: dict[Key, frozenset[act.Flag]] = field(default_factory=dict)
    """For metrics."""
    grants: dict[Key, tuple[str, datetime]] = field(default_factory=dict)
    """When an Execution's node last got the right to read its Checkpoint; with its uid."""

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self.failures.pop(key, None)
        self.flags.pop(key, None)
        self.grants.pop(key, None)

    def granted_at(self, key: Key, uid: str) -> datetime | None:
        """When that was, unless it was a namesake's."""
        known = self.grants.get(key)
        return known[1] if known is not None and known[0] == uid else None

    def failure(self, key: Key, uid: str) -> model.Failure | None:
        """What failed last time, unless that was a namesake's."""
        known = self.failures.get(key)
        return known[1] if known is not None and known[0] == uid else None


@dataclass
class Reconciler:
    """Makes passes."""

    cluster: Cluster
    cache: ObjectCache
    index: Index
    nodes: Nodes
    observer: Observer
    applier: Applier
    clock: Clock
    installation: str
    contact: Callable[[str], None]
    """Told of a node whose pass begins: whether its agent is heard may have changed."""
    memory: Memory = field(default_factory=Memory)

    async def work(self, key: Key) -> Again:
        """One pass."""
        match key.kind:
            case EXECUTIONS.kind:
                return await self._guarded(EXECUTIONS, key, self._execution)
            case PROCESSES.kind:
                return await self._guarded(PROCESSES, key, self._process)
            case NODES.kind:
                return await self._guarded(NODES, key, self._node)
            case CHECKPOINTS.kind:
                return await self._guarded(CHECKPOINTS, key, self._checkpoint)
            case _:
                return Again()

    async def _guarded(self, kind: Kind, key: Key, run: Pass) -> Again:
        obj = self.cache.get(key)
        if obj is None:
            self.memory.forget(key)
            return Again()
        try:
            return await run(key, obj)
        except (errors.Conflict, errors.Unconfirmed) as error:
            if not isinstance(error, errors.Fenced):
                await self._refresh(kind, key, obj)
            return Again(failed=True)
        except errors.IsoletError as error:
            _log.warning(
                "pass failed", extra={"key": str(key), "reason": error.reason, "detail": str(error)}
            )
            return Again(failed=True, after=_retry_after(error))

    async def _refresh(self, kind: Kind, key: Key, obj: Object) -> None:
        """Read an object that is not what the cache says, or may have been written."""
        try:
            self.cache.put(kind, await self.cluster.get(kind, key.namespace, key.name))
        except errors.NotFound:
            self.cache.forget(kind, key, obj)
        except errors.IsoletError as error:
            _log.debug("not read again", extra={"key": str(key), "detail": str(error)})

    async def _execution(self, key: Key, obj: Object) -> Again:
        return await self._work(EXECUTIONS, key, obj)

    async def _process(self, key: Key, obj: Object) -> Again:
        return await self._work(PROCESSES, key, obj)

    async def _work(self, kind: Kind, key: Key, obj: Object) -> Again:
        fetched = await self.observer.read(kind, obj)
        obj = self.cache.get(key) or obj  # what came while that was read
        uid = uid_of(obj)
        # From here to the first write nothing waits: what a plan promises is counted before any
        # other pass looks.
        seen = self.observer.observe(
            kind,
            obj,
            fetched,
            self.memory.failure(key, uid),
            self.memory.granted_at(key, uid),
        )
        return await self._carry_out(kind, key, obj, execution.plan(seen))

    async def _checkpoint(self, key: Key, obj: Object) -> Again:
        await self.observer.read_for_checkpoint(obj)
        obj = self.cache.get(key) or obj
        seen = self.observer.observe_checkpoint(obj, self.memory.failure(key, uid_of(obj)))
        return await self._carry_out(CHECKPOINTS, key, obj, checkpoint_object.plan(seen))

    async def _carry_out(self, kind: Kind, key: Key, obj: Object, plan: act.Plan) -> Again:
        """Do what a plan says and write its status; nothing waits before the first effect."""
        uid = uid_of(obj)
        self._assume(uid, plan)
        try:
            outcome = await self.applier.apply(plan.actions)
        finally:
            # A binding that was stored has come back through the cache by now.
            self.index.unassume(uid)
        self._remember(key, uid, plan, outcome)
        if outcome.error is not None and self.applier.is_transient(outcome):
            raise outcome.error
        ended = False
        if plan.write_status and not outcome.released:
            current = outcome.obj or obj
            wrote = await publish(self.cluster, self.cache, kind, current, plan.status)
            # From here on the plan is another: what comes after the end has times of its own.
            ended = wrote and _is_over(plan.status)
        if outcome.failure is not None:
            return Again(failed=True, after=outcome.failure.retry_after)
        return Again(after=SOON if outcome.learned or ended else self._delay(plan))

    def _assume(self, uid: str, plan: act.Plan) -> None:
        for action in plan.actions:
            if not isinstance(action, act.Bind):
                continue
            # An annotation that cannot be read is being put back as it was; it holds no room.
            with contextlib.suppress(pydantic.ValidationError):
                bound = binding.Binding.model_validate_json(action.annotation)
                self.index.assume(uid, action.node, bound)

    def _remember(self, key: Key, uid: str, plan: act.Plan, outcome: Outcome) -> None:
        self.memory.flags[key] = plan.flags
        if outcome.failure is None:
            self.memory.failures.pop(key, None)
        elif not self.applier.is_transient(outcome):
            self.memory.failures[key] = uid, outcome.failure
        for action in outcome.done:
            if isinstance(action, act.Put) and action.source is not None:
                self.memory.grants[key] = uid, self.clock.now()
            if not isinstance(action, act.Emit):
                _log.info("done", extra={"key": str(key), "uid": uid, "action": _told(action)})
        if outcome.failure is not None:
            _log.warning(
                "action failed",
                extra={
                    "key": str(key),
                    "uid": uid,
                    "action": outcome.failure.action,
                    "reason": outcome.failure.reason,
                    "detail": outcome.failure.message,
                },
            )

    def _delay(self, plan: act.Plan) -> float | None:
        delay = None
        if plan.look_again_at is not None:
            delay = max(0.05, (plan.look_again_at - self.clock.now()).total_seconds())
        if act.Flag.AWAITING_INPUTS in plan.flags:
            delay = min(delay or INPUT_LOOK, INPUT_LOOK)
        return delay

    async def _node(self, key: Key, obj: Object) -> Again:
        parsed, contact = self.nodes.object(key.name), self.nodes.contact(key.name)
        if parsed is None or contact is None:
            return Again()
        link = self.nodes.link(key.name)
        draining = parsed.spec.drain is not None and all(map(self.cache.complete, WORK))
        plan = node.plan(
            model.NodePass(
                object=parsed,
                contact=contact,
                report=link.report if link is not None else None,
                installation=self.installation,
                remaining=self.index.remaining(key.name) if draining else None,
                now=self.clock.now(),
            )
        )
        self.contact(key.name)
        if plan.write_status:
            await publish(self.cluster, self.cache, NODES, obj, plan.status, Effect.NODE_STATUS)
        outcome = await self.applier.apply((*plan.actions, *self._pools(key.name)))
        if outcome.failure is not None:
            return Again(failed=True, after=outcome.failure.retry_after)
        return Again(after=plan.look_again_in)

    def _pools(self, name: str) -> tuple[act.PutPools, ...]:
        """What the node's agent is still to be told of warm pools, once every class was listed."""
        classes, facts = self.observer.classes.all(), self.nodes.one(name)
        if facts is None or not isinstance(classes, model.Known):
            return ()
        return pools.actions(classes.value, facts, self.installation)


def _is_over(status: AnyStatus) -> bool:
    if isinstance(status, CheckpointStatus):
        return status.completion_time is not None
    return decided(status)


def _retry_after(error: errors.IsoletError) -> float | None:
    return error.retry_after if isinstance(error, errors.Unavailable) else None


def _told(action: act.Action) -> str:
    node_name = getattr(action, "node", "")
    return f"{type(action).__name__} {node_name}".strip()
