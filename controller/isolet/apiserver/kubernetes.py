"""The dispatcher of a cluster: a run is an Execution object and a slot on one node.

The object's name is made of the run's id, so the API server lets one front door have a run and no
other, for as long as the object is kept. It holds the document's size and digest and is made once
a slot is reserved, so a dispatch that finds no room costs no write. Its whole life is three writes:
made here, bound already; its outcome; its deletion.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolet.api import conditions, reasons
from isolet.apiserver import objects
from isolet.apiserver.admission import Dispatch
from isolet.apiserver.agents import Agents
from isolet.apiserver.binding import BindingKey
from isolet.apiserver.dispatcher import NO_CAPACITY, RUN_ID_USED, Cancelled, told
from isolet.apiserver.nodes import Node, Nodes, read
from isolet.apiserver.objects import LABEL_AHEAD, object_name
from isolet.apiserver.served import Served, key_in
from isolet.base import errors, log
from isolet.operator.kube import (
    CLASSES,
    EXECUTIONS,
    Cluster,
    ListOptions,
    Object,
    Precondition,
)
from isolet.wire.dispatch import (
    Budgets,
    DispatchAPI,
    DispatchLine,
    DispatchWanted,
    Reservation,
    ReserveRequest,
)
from isolet.wire.execution import Outcome

_LOOKS = 3
"""How often a cancellation looks at a run whose object comes or goes meanwhile."""
_STALE = 12
"""Refreshes that may fail before the front door is not ready any more."""
_log = log.get("apiserver")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where and as what runs are made."""

    namespace: str
    class_name: str
    refresh_seconds: float = 5.0
    cancelled_ahead: int = 1000
    binding_key: Path | None = None
    """Over that of the class."""


class KubernetesDispatcher:
    """`Dispatcher` over an API server and the agents of its nodes."""

    def __init__(self, cluster: Cluster, agents: Agents, target: Target) -> None:
        self._cluster = cluster
        self._agents = agents
        self._target = target
        self._nodes = Nodes()
        self._missed = _STALE
        self._ahead = 0
        key = None if target.binding_key is None else key_in(target.binding_key)
        self._class = Served(target.class_name, key)
        self._said: tuple[str, str] | None = None
        self._troubles: dict[str, str] = {}
        """What each node said last that had no slot and was not just empty."""
        self._refresher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read nodes and class, and again every few seconds."""
        await self._refreshed()
        self._refresher = asyncio.create_task(self._refresh())

    async def close(self) -> None:
        """See Dispatcher."""
        if self._refresher is not None:
            self._refresher.cancel()
            with suppress(asyncio.CancelledError):
                await self._refresher

    def ready(self) -> bool:
        """See Dispatcher."""
        return not self._closed()

    def budgets(self) -> Budgets:
        """See Dispatcher."""
        return self._class.budgets

    def binding_key(self) -> BindingKey | None:
        """See Dispatcher."""
        return self._class.key

    async def reserve(self, dispatch: Dispatch) -> "ReservedRun":
        """See Dispatcher."""
        node, slot = await self._slot()
        name = object_name(dispatch.run_id)
        body = objects.of_run(self._class, dispatch, node.name)
        try:
            made = await self._cluster.create(EXECUTIONS, self._target.namespace, body)
        except errors.IsoletError as error:
            with suppress(errors.IsoletError):
                await self.agent(node).release(slot)
            raise _not_made(error) from error
        uid = str(made["metadata"]["uid"])
        wanted = self._wanted(uid, name, dispatch)
        run = Run(dispatch.run_id, uid, node, self)
        return ReservedRun(self, run, made, slot, wanted, dispatch.document)

    async def find(self, run_id: str) -> "Run":
        """See Dispatcher."""
        try:
            run = self._run(run_id, await self._get(object_name(run_id)))
        except errors.NotFound:
            run = None
        if run is None:
            raise errors.NotFound("the run was never begun, or its Execution is gone")
        return run

    async def cancel(self, run_id: str) -> Cancelled:
        """See Dispatcher."""
        for _ in range(_LOOKS):
            found = await self._cancelled(run_id, object_name(run_id))
            if found is not None:
                return found
        raise errors.Unavailable("the run comes and goes; ask again", reason="Unconfirmed")

    async def _cancelled(self, run_id: str, name: str) -> Cancelled | None:
        """What came of it; None: its object came or went meanwhile, so one has to look again."""
        try:
            found = await self._get(name)
        except errors.NotFound:
            try:
                return await told(self._cancel_ahead(run_id))
            except errors.Conflict:
                return None
        if _condition(found, conditions.FINISHED).get("status") == "True":
            return Cancelled(confirmed=True)
        try:
            run = self._run(run_id, found)
            if run is None:
                return Cancelled(confirmed=True)
            answer = await told(run.agent.cancel(run.uid))
        except errors.Unavailable:
            await self._ask_for_the_end(name)
            return Cancelled(confirmed=False)
        if not answer.known:
            return await self._kept(run.uid, name)
        ended = answer.dispatch is not None and answer.dispatch.outcome is not None
        return Cancelled(confirmed=ended, removed=1 if ended else 0)

    async def _kept(self, uid: str, name: str) -> Cancelled | None:
        """Confirm the end of a run that was not begun, once its object says so too.

        Whoever made it may be about to take it back, and would have the run tried again.
        """
        try:
            kept = await told(self._ask_for_the_end(name))
        except (errors.NotFound, errors.Conflict):
            return None
        return Cancelled(confirmed=True) if kept["metadata"]["uid"] == uid else None

    async def forget(self, made: Object) -> None:
        """Take back the object of a run that was certainly not begun.

        Raises Conflict: it is not as it was made, so somebody was told that the run has ended.
        """
        found = made["metadata"]
        only_if = Precondition(uid=found["uid"], version=found["resourceVersion"])
        await self._cluster.delete(EXECUTIONS, self._target.namespace, found["name"], only_if)

    async def lost(self, run: "Run") -> Outcome | None:
        """The outcome of a run whose node is gone for good; None where its agent may come back.

        Raises NotFound: its object was deleted, so nobody will tell any more.
        """
        found = await self._get(object_name(run.run_id))
        if found["metadata"]["uid"] != run.uid:
            raise errors.NotFound("the run's object was deleted")
        succeeded = _condition(found, conditions.SUCCEEDED)
        if succeeded.get("reason") != reasons.NODE_LOST:
            return None
        return Outcome(succeeded=False, reason=reasons.NODE_LOST, message="its node is gone")

    def agent(self, node: Node) -> DispatchAPI:
        """The agent of this node where it is now; of one that is gone, where it was."""
        now = self._nodes.find(node.name) or node
        return self._agents.of(now.name, now.endpoint)

    # Within

    async def _get(self, name: str) -> Object:
        """The object of this name. Raises NotFound, Unavailable."""
        return await told(self._cluster.get(EXECUTIONS, self._target.namespace, name))

    async def _slot(self) -> tuple[Node, Reservation]:
        """A slot of whichever node has one; those that should have most are asked first."""
        request = ReserveRequest(class_name=self._target.class_name)
        for node in self._nodes.in_order():
            try:
                slot = await self.agent(node).reserve(request)
            except errors.IsoletError as error:
                self._nodes.had_none(node)
                if error.reason != NO_CAPACITY and self._troubles.get(node.name) != error.message:
                    self._troubles[node.name] = error.message
                    _log.warning("no slot", extra={"node": node.name, "why": error.message})
            else:
                self._troubles.pop(node.name, None)
                self._nodes.took(node)
                return node, slot
        raise errors.Unavailable("no slot is ready", reason=NO_CAPACITY)

    def _wanted(self, uid: str, name: str, dispatch: Dispatch) -> DispatchWanted:
        return DispatchWanted(
            uid=uid,
            namespace=self._target.namespace,
            name=name,
            run_id=dispatch.run_id,
            class_name=self._target.class_name,
            mode=dispatch.mode,
            payload_digest=dispatch.digest,
            payload_bytes=len(dispatch.document),
            budgets=self._class.budgets,
        )

    def _run(self, run_id: str, found: Object) -> "Run | None":
        """The run of an object; None where it never had a node."""
        spec = found["spec"]
        if (spec.get("dispatch") or {}).get("runID") != run_id:
            return None
        name = spec.get("nodeName")
        if name is None or LABEL_AHEAD in (found["metadata"].get("labels") or {}):
            return None
        node = self._nodes.find(name)
        if node is None:
            raise errors.Unavailable(f"node {name} is not known", reason="NodeUnreachable")
        return Run(run_id, str(found["metadata"]["uid"]), node, self)

    async def _cancel_ahead(self, run_id: str) -> Cancelled:
        """Take the run's name, so that nobody can begin it. Raises Conflict: it has just begun."""
        if self._ahead >= self._target.cancelled_ahead:
            raise errors.Unavailable(
                f"{self._ahead} unknown runs are cancelled already", reason="TooManyCancellations"
            )
        body = objects.of_cancelled_ahead(self._class, run_id)
        self._ahead += 1  # Before it is made: many may come at once.
        await self._cluster.create(EXECUTIONS, self._target.namespace, body)
        return Cancelled(confirmed=True)

    async def _ask_for_the_end(self, name: str) -> Object:
        """Have the operator end it once its node is heard again."""
        body = {"metadata": {}, "spec": {"desiredState": "Terminated"}}
        return await self._cluster.patch(EXECUTIONS, self._target.namespace, name, body)

    # What is read every few seconds

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._target.refresh_seconds)
            await self._refreshed()

    async def _refreshed(self) -> None:
        trouble = ""
        try:
            nodes = await read(self._cluster, self._target.class_name)
            self._nodes.take_in(nodes)
            await self._agents.keep_only(nodes)
            self._class.take_in(await self._cluster.get(CLASSES, "", self._target.class_name))
            if self._ahead or self._missed:  # Others, and those before us, have made some as well.
                self._ahead = await self._count_ahead()
            self._missed = 0
        except Exception as error:  # Whatever it is, nobody else would read them again.
            self._missed += 1
            if isinstance(error, errors.NotFound):
                self._class.gone()
            kind = type(error).__name__
            trouble = error.message if isinstance(error, errors.IsoletError) else kind
        self._tell(trouble)

    def _closed(self) -> str:
        """Why nothing is taken; empty: dispatches are."""
        if self._class.closed:
            return self._class.closed
        if self._missed >= _STALE:
            return "the API server could not be read for a while"
        return "" if self._nodes.any_open() else "no ExecutionNode takes new runs"

    def _tell(self, trouble: str) -> None:
        """Log what keeps it from serving or from reading, once for each change."""
        closed = self._closed()
        if self._said == (closed, trouble):
            return
        self._said = (closed, trouble)
        if closed:
            _log.warning("not ready", extra={"why": closed, "error": trouble})
        elif trouble:
            _log.warning("nodes and class cannot be read", extra={"why": trouble})
        else:
            _log.info("ready", extra={"class": self._target.class_name})

    async def _count_ahead(self) -> int:
        count, token = 0, None
        while count < self._target.cancelled_ahead:
            options = ListOptions(token=token, labels=LABEL_AHEAD, namespace=self._target.namespace)
            page = await self._cluster.list(EXECUTIONS, options)
            count, token = count + len(page.items), page.token
            if token is None:
                break
        return count


@dataclass(frozen=True, slots=True)
class Run:
    """A run on one node's agent."""

    run_id: str
    uid: str
    node: Node
    owner: KubernetesDispatcher

    @property
    def agent(self) -> DispatchAPI:
        """Who is asked about it now."""
        return self.owner.agent(self.node)

    async def follow(self, after: int) -> AsyncIterator[DispatchLine]:
        """See Admitted."""
        try:
            async for line in self.agent.follow(self.uid, after):
                yield line
        except errors.Unavailable:
            outcome = await self.owner.lost(self)
            if outcome is None:
                raise
            yield DispatchLine(ended=outcome)


@dataclass(frozen=True, slots=True)
class ReservedRun:
    """A run whose object is made and whose slot is kept."""

    owner: KubernetesDispatcher
    run: Run
    made: Object
    slot: Reservation
    wanted: DispatchWanted
    document: bytes

    async def commit(self) -> Run:
        """See Reserved."""
        try:
            await self.run.agent.begin(self.slot, self.wanted, self.document)
        except (errors.Unconfirmed, errors.Conflict, errors.Corrupt):
            raise
        except errors.IsoletError as error:
            # Certainly not begun. Its name is given free, for it may be tried again.
            try:
                await self.owner.forget(self.made)
            except errors.Conflict:
                raise errors.Conflict("the run was cancelled", reason=RUN_ID_USED) from error
            except errors.IsoletError as problem:
                raise errors.Unconfirmed("the run's object is left") from problem
            raise errors.Unavailable("the slot was not given", reason=error.reason) from error
        return self.run


def _condition(found: Object, kind: str) -> dict[str, Any]:
    given = (found.get("status") or {}).get("conditions") or ()
    return next((one for one in given if one.get("type") == kind), {})


def _not_made(error: errors.IsoletError) -> errors.IsoletError:
    """What it means that the object could not be made."""
    if isinstance(error, errors.Unconfirmed):
        return error
    # There are other conflicts, such as that of a quota which many objects are counted against.
    if isinstance(error, errors.Conflict) and error.reason == "AlreadyExists":
        return errors.Conflict("the run was here before, or was cancelled", reason=RUN_ID_USED)
    _log.warning("an Execution is not taken", extra={"why": error.message})
    return errors.Unavailable("the API server does not take it", reason=error.reason)
