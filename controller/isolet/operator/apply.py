"""Performs the actions of a plan, in order, up to the first that fails.

Each result is a value; nothing is retried here. What an action needs to be allowed (the lease, the
fence) is asked for at the last moment, right before the bytes leave.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from isolet.api import reasons
from isolet.base import errors
from isolet.operator.cache import ObjectCache
from isolet.operator.events import Recorder
from isolet.operator.kube import (
    CHECKPOINTS,
    EXECUTIONS,
    OURS,
    PROCESSES,
    Cluster,
    Key,
    Kind,
    Object,
    Precondition,
    uid_of,
)
from isolet.operator.leader import NOT_LEADER, Leadership
from isolet.operator.links import NODE_BUSY, Agent, Link
from isolet.operator.nodes import Nodes
from isolet.operator.steps import Effect, at
from isolet.operator.tombstones import Tombstones
from isolet.plan import actions as act
from isolet.plan import binding
from isolet.plan.model import Failure, failure_of
from isolet.plan.objects import AnyRecord, ObjectRef
from isolet.plan.restoring import GRANT_SECONDS
from isolet.wire.base import Fence
from isolet.wire.checkpoint import CheckpointWanted, Peer, RestoreFrom
from isolet.wire.execution import Amendment, ExecutionWanted
from isolet.wire.process import ProcessAmendment, ProcessWanted

T = TypeVar("T")
Wanted = ExecutionWanted | ProcessWanted | CheckpointWanted

_BY_KIND = {kind.kind: kind for kind in OURS}


@dataclass(slots=True)
class Outcome:
    """What came of the actions."""

    obj: Object | None = None
    """The newest state of the pass's own object, if an action wrote it."""
    released: bool = False
    """The finalizer is off or the object deleted: there may be nobody to tell any more."""
    error: errors.IsoletError | None = None
    failure: Failure | None = None
    """The first action that failed, for the next pass."""
    failed: act.Action | None = None
    """That action."""
    done: list[act.Action] = field(default_factory=list)
    learned: bool = False
    """An agent's answer was news: the next pass can already see it."""


@dataclass
class Applier:
    """Does what plans ask for."""

    cluster: Cluster
    cache: ObjectCache
    nodes: Nodes
    leadership: Leadership
    recorder: Recorder
    tombstones: Tombstones
    alert: Callable[[act.Alert], None]

    async def apply(self, actions: Sequence[act.Action]) -> Outcome:
        """Perform the actions; never raises for one that failed."""
        outcome = Outcome()
        for action in actions:
            try:
                await self._perform(action, outcome)
            except errors.IsoletError as error:
                outcome.error = error
                outcome.failure, outcome.failed = failure_of(action, error), action
                break
            outcome.done.append(action)
        return outcome

    @staticmethod
    def is_transient(outcome: Outcome) -> bool:
        """A write of the API server that lost a race or its answer; a lease or turn to wait for.

        There is nothing in it that anybody should be told: read again and repeat.
        """
        error = outcome.error
        if error is not None and error.reason in (NOT_LEADER, NODE_BUSY):
            return True
        ours = isinstance(outcome.failed, act.Bind | act.Release | act.DeleteObject)
        return ours and isinstance(error, errors.Conflict | errors.Unconfirmed)

    async def _perform(self, action: act.Action, outcome: Outcome) -> None:
        match action:
            case act.Bind():
                outcome.obj = await self._bind(action)
            case act.Release():
                await self._release(action)
                outcome.released = True
            case act.DeleteObject():
                await self._delete(action.object)
                outcome.released = True
            case act.Put() | act.Amend() | act.Remove():
                outcome.learned |= await self._ask(action)
            case act.RemoveStrays() | act.PutPools():
                await self._tell_node(action)
            case act.Emit():
                self.recorder.record(
                    action.object, action.type, action.reason, action.message, action.key
                )
            case act.WriteTombstone():
                await self.tombstones.write(action.tombstone)
            case act.DropTombstone():
                await self.tombstones.drop(action.uid, action.node)
            case act.Alert():
                self.alert(action)
            case _:
                assert_never(action)

    async def _bind(self, action: act.Bind) -> Object:
        body = {
            "metadata": {
                "resourceVersion": action.object.resource_version,
                "finalizers": list(action.finalizers),
                "annotations": {binding.ANNOTATION: action.annotation},
            },
            "spec": {"nodeName": action.node},
        }
        return await self._patch(Effect.BIND, action.object, body)

    async def _release(self, action: act.Release) -> None:
        body = {
            "metadata": {
                "resourceVersion": action.object.resource_version,
                "finalizers": list(action.finalizers),
            }
        }
        try:
            obj = await self._patch(Effect.RELEASE, action.object, body)
        except errors.NotFound:
            obj = None  # released before: that answer was lost
        if obj is None or _goes(obj):
            # The event of its end may be a while away: no pass is to release it once more.
            self._forget(action.object)

    def _forget(self, ref: ObjectRef) -> None:
        kind = _kind(ref)
        key = Key(kind.kind, ref.namespace, ref.name)
        known = self.cache.get(key)
        if known is not None and uid_of(known) == ref.uid:
            self.cache.forget(kind, key, known)

    async def _patch(self, effect: Effect, ref: ObjectRef, body: Object) -> Object:
        kind = _kind(ref)
        call = self.cluster.patch(kind, ref.namespace, ref.name, body)
        obj = await at(effect, call)
        self.cache.put(kind, obj)
        return obj

    async def _delete(self, ref: ObjectRef) -> None:
        only_if = Precondition(uid=ref.uid, version=ref.resource_version)
        call = self.cluster.delete(_kind(ref), ref.namespace, ref.name, only_if)
        try:
            await at(Effect.OBJECT_DELETE, call)
        except errors.NotFound:
            return

    async def _ask(self, action: act.Put | act.Amend | act.Remove) -> bool:
        link = self._link(action.node)
        agent = link.agent
        match action:
            case act.Put():
                wanted = await self._with_source(action)
                call = self._fenced(lambda fence: _put(agent, wanted, fence))
                return await _learn(link, wanted.uid, Effect.AGENT_PUT, call)
            case act.Amend(uid=uid, change=change):
                call = self._fenced(lambda fence: _amend(agent, uid, change, fence))
                return await _learn(link, uid, Effect.AGENT_AMEND, call)
            case act.Remove(uid=uid, kind=kind):
                call = self._fenced(lambda fence: _remove(agent, uid, kind, fence))
                return await _learn(link, uid, Effect.AGENT_REMOVE, call)

    async def _with_source(self, action: act.Put) -> Wanted:
        """The message with the right to read its Checkpoint on another node.

        The right is asked for here, so that it is in no plan, and nothing that tells of one.
        """
        wanted, source = action.wanted, action.source
        if source is None or not isinstance(wanted, ExecutionWanted):
            return wanted
        peer = None
        if source.peer:
            try:
                peer = await self._peer(source)
            except errors.IsoletError as error:
                if error.reason in (NOT_LEADER, NODE_BUSY):
                    raise
                if source.in_store is None:
                    raise errors.Unavailable(
                        f"node {source.peer}, which has the Checkpoint: {error.message}",
                        reason=reasons.CHECKPOINT_UNAVAILABLE,
                    ) from error
        found = RestoreFrom(peer=peer, in_store=source.in_store)
        return wanted.model_copy(update={"restore_from": found})

    async def _peer(self, source: act.Source) -> Peer:
        link = self._link(source.peer)
        async with link.turn():
            call = self._fenced(
                lambda fence: link.agent.grant_checkpoint(
                    source.checkpoint_uid, source.reader, GRANT_SECONDS, fence
                )
            )
            grant = await at(Effect.AGENT_GRANT, call)
        return Peer(node=source.peer_name, endpoint=source.endpoint, grant=grant)

    async def _tell_node(self, action: act.RemoveStrays | act.PutPools) -> None:
        link = self._link(action.node)
        async with link.turn():
            match action:
                case act.RemoveStrays(names=names):
                    strays = self._fenced(lambda fence: link.agent.remove_strays(names, fence))
                    await at(Effect.AGENT_REMOVE_STRAYS, strays)
                case act.PutPools(wanted=wanted):
                    pools = self._fenced(lambda fence: link.agent.put_pools(wanted, fence))
                    link.learn_pools(await at(Effect.AGENT_PUT_POOLS, pools))

    async def _fenced(self, call: Callable[[Fence], Awaitable[T]]) -> T:
        """Call an agent with the fence that holds at this moment."""
        return await call(self.leadership.check())

    def _link(self, node: str) -> Link:
        link = self.nodes.link(node)
        if link is None:
            raise errors.Unavailable(f"node {node} is not followed", reason="NodeUnreachable")
        return link


async def _put(agent: Agent, wanted: Wanted, fence: Fence) -> AnyRecord:
    if isinstance(wanted, ProcessWanted):
        return await agent.put_process(wanted, fence)
    if isinstance(wanted, CheckpointWanted):
        return await agent.put_checkpoint(wanted, fence)
    return await agent.put(wanted, fence)


async def _amend(
    agent: Agent, uid: str, change: Amendment | ProcessAmendment, fence: Fence
) -> AnyRecord:
    if isinstance(change, ProcessAmendment):
        return await agent.amend_process(uid, change, fence)
    return await agent.amend(uid, change, fence)


async def _remove(agent: Agent, uid: str, kind: str, fence: Fence) -> AnyRecord:
    if kind == PROCESSES.kind:
        return await agent.remove_process(uid, fence)
    if kind == CHECKPOINTS.kind:
        return await agent.remove_checkpoint(uid, fence)
    return await agent.remove(uid, fence)


async def _learn(
    link: Link, uid: str, effect: Effect, call: Coroutine[Any, Any, AnyRecord]
) -> bool:
    """Make the call when the node has a turn for it; its answer is known before the next pass."""
    try:
        async with link.turn():
            return link.learn(await at(effect, call))
    except errors.NotFound:
        link.forget(uid)
        raise
    finally:
        call.close()


def _goes(obj: Object) -> bool:
    """Whether the server lets an object go with the write that this is the answer to."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")


def _kind(ref: ObjectRef) -> Kind:
    return _BY_KIND.get(ref.kind, EXECUTIONS)
