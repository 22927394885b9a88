"""One agent as this leader follows it: its account, its records, and when it was last heard.

A link lists the agent's records, then follows its changes; whatever breaks, it begins again. What
it holds is kept while the agent is away, since nobody but this leader gives the agent work: absence
of a record means absence only once a snapshot of the agent's present epoch has been read
(`synced`).
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from isolet.base import errors, log
from isolet.base.clock import Clock
from isolet.plan.model import Absent, Contact, Fact, Known, Unknown
from isolet.plan.objects import AnyRecord, Record
from isolet.wire.agent_api import AgentAPI, Change, Snapshot
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.node import NodeObserved
from isolet.wire.pool import PoolsObserved

_log = log.get("operator.nodes")

NODE_BUSY = "NodeBusy"
"""Reason of a call that found no turn: said to the queue, and to nobody else."""


class Agent(AgentAPI, Protocol):
    """An agent and the connections to it."""

    async def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """Where an agent is, and whom its certificate must name."""

    endpoint: str
    server_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Seconds."""

    account_every: float = 10.0
    """The account is read again after so long, or when the agent says that it changed."""
    request: float = 10.0
    snapshot: float = 30.0
    silence: float = 20.0
    """A watch without a line for so long is taken for dead; bookmarks come every few seconds."""
    turn: float = 1.0
    """A call waits so long for one of the node's turns: a hung node must not hold up the passes of
    others, who wait for the same workers."""
    backoff: float = 0.5
    backoff_cap: float = 5.0


class BeginAgain(Exception):
    """The agent is another than the one that was followed: read everything anew."""


@dataclass
class Link:
    """The state and the task of one node. Used from the main loop only."""

    name: str
    endpoint: NodeEndpoint
    agent: Agent
    clock: Clock
    changed: Callable[[AnyRecord], None]
    """A record is new, different, or gone (then it is the last one)."""
    accounted: Callable[[str], None]
    """The account of the node of this name differs from before, or contact came or went."""
    times: LinkTimes = field(default_factory=LinkTimes)
    calls: int = 8
    """How many calls of the operator may be under way at once."""

    report: NodeObserved | None = None
    records: dict[str, AnyRecord] = field(default_factory=dict)
    synced: bool = False
    epoch: str = ""
    heard_at: float | None = None
    problem: str = ""
    problem_reason: str = ""

    def __post_init__(self) -> None:
        self.watched_since = self.clock.monotonic()
        self._turns = asyncio.Semaphore(self.calls)
        self._ask = asyncio.Event()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One of the calls to this agent that may be under way at once.

        Raises:
            Unavailable: there was none in time (`NodeBusy`).
        """
        try:
            async with asyncio.timeout(self.times.turn):
                await self._turns.acquire()
        except TimeoutError:
            raise errors.Unavailable(
                f"node {self.name} is busy", reason=NODE_BUSY, retry_after=0.2
            ) from None
        try:
            yield
        finally:
            self._turns.release()

    def contact(self) -> Contact:
        """How the agent is heard, as of now."""
        return Contact(
            watched_since=self.watched_since,
            heard_at=self.heard_at,
            problem=self.problem,
            reason=self.problem_reason,
            now=self.clock.monotonic(),
        )

    def record(self, uid: str) -> Fact[Record]:
        """What is known of the agent's record of a piece of work."""
        known = self.records.get(uid)
        if known is None or isinstance(known, CheckpointObserved):
            return self._nothing()
        return Known(known)

    def checkpoint(self, uid: str) -> Fact[CheckpointObserved]:
        """What is known of the agent's record of a Checkpoint."""
        known = self.records.get(uid)
        return Known(known) if isinstance(known, CheckpointObserved) else self._nothing()

    def _nothing(self) -> Absent | Unknown:
        if self.synced:
            return Absent()
        return Unknown(self.problem or f"the agent of node {self.name} was not read yet")

    def learn(self, record: AnyRecord) -> bool:
        """Take in an answer or a change unless a newer one is known; returns whether it was."""
        self._hear()
        known = self.records.get(record.uid)
        if known is not None and known.sequence >= record.sequence:
            return False
        self.records[record.uid] = record
        self.changed(record)
        return True

    def learn_pools(self, pools: PoolsObserved) -> None:
        """Take in which wish for pools is obeyed, so that it is not sent again meanwhile."""
        self._hear()
        if self.report is not None:
            news = {"pools": pools.pools, "pools_digest": pools.digest}
            self.report = self.report.model_copy(update=news)

    def forget(self, uid: str) -> None:
        """The agent says that it knows no such uid, or the record is of no more use."""
        self.records.pop(uid, None)

    async def run(self) -> None:
        """Follow the agent until cancelled."""
        failures = 0
        try:
            while True:
                heard_before = self.heard_at
                try:
                    await self._follow()
                except BeginAgain:
                    self.problem = self.problem_reason = ""
                except errors.IsoletError as error:
                    self._lost(error.message, error.reason)
                except TimeoutError:
                    self._lost("no answer in time")
                except Exception as error:
                    _log.exception("link broke off", extra={"node": self.name})
                    self._lost(f"unexpected {type(error).__name__}")
                failures = 0 if self.heard_at != heard_before else failures + 1
                await asyncio.sleep(self._delay(failures))
        finally:
            with contextlib.suppress(Exception):
                await self.agent.close()

    async def _follow(self) -> None:
        await self._account()
        async with asyncio.timeout(self.times.snapshot):
            snapshot = await self.agent.snapshot()
        self._install(snapshot)
        self._found()
        watching = asyncio.create_task(self._watch(snapshot.sequence))
        asking = asyncio.create_task(self._ask_for_ever())
        try:
            done, _ = await asyncio.wait({watching, asking}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (watching, asking):
                task.cancel()
            await asyncio.gather(watching, asking, return_exceptions=True)

    async def _watch(self, after: int) -> None:
        changes = self.agent.watch(after)
        try:
            while True:
                async with asyncio.timeout(self.times.silence):
                    change = await anext(changes, None)
                if change is None:
                    raise errors.Unavailable("the agent ended its stream of changes")
                self._take(change)
        finally:
            close = getattr(changes, "aclose", None)
            if close is not None:
                await close()

    def _take(self, change: Change) -> None:
        if change.epoch != self.epoch:
            raise BeginAgain
        self._hear()
        for record in (change.execution, change.process, change.checkpoint):
            if record is not None:
                self.learn(record)
        if change.node_changed:
            self._ask.set()

    async def _ask_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.times.account_every):
                    await self._ask.wait()
            self._ask.clear()
            await self._account()
            # A node that changes all the time is not asked all the time.
            await asyncio.sleep(min(0.2, self.times.account_every))

    async def _account(self) -> None:
        async with asyncio.timeout(self.times.request):
            report = await self.agent.node()
        first = self.report is None or not self._is_followed()
        differs = first or _essence(report) != _essence(self.report)
        self.report = report
        self._hear()
        if report.epoch != self.epoch:
            began = bool(self.epoch)
            self._restart(report.epoch)
            if began:
                _log.warning("the agent's store is another one", extra={"node": self.name})
                raise BeginAgain
        if differs:
            self.accounted(self.name)

    def _restart(self, epoch: str) -> None:
        """Another epoch: nothing that was known of the agent's records holds any more."""
        gone = list(self.records.values())
        self.epoch, self.synced = epoch, False
        self.records.clear()
        for record in gone:
            self.changed(record)
        self.accounted(self.name)

    def _install(self, snapshot: Snapshot) -> None:
        """Replace what is known by a snapshot, except for answers that are newer than it."""
        self._hear()
        if snapshot.epoch != self.epoch:
            raise BeginAgain
        old = self.records
        new: dict[str, AnyRecord] = {}
        new |= {record.uid: record for record in snapshot.executions}
        new |= {record.uid: record for record in snapshot.processes}
        new |= {record.uid: record for record in snapshot.checkpoints}
        for uid, record in old.items():
            listed = new.get(uid)
            if record.sequence > (snapshot.sequence if listed is None else listed.sequence):
                new[uid] = record
        first, self.records, self.synced = not self.synced, new, True
        for uid in {*old, *new}:
            if old.get(uid) != new.get(uid):
                self.changed(new.get(uid) or old[uid])
        if first:
            self.accounted(self.name)

    def _hear(self) -> None:
        self.heard_at = self.clock.monotonic()

    def _is_followed(self) -> bool:
        return not self.problem

    def _lost(self, why: str, reason: str = "Unavailable") -> None:
        first = not self.problem
        self.problem, self.problem_reason = why, reason
        if first:
            _log.warning("lost contact", extra={"node": self.name, "detail": why})
            self.accounted(self.name)

    def _found(self) -> None:
        """The agent is followed; what waited for that need not wait any longer."""
        lost, self.problem, self.problem_reason = bool(self.problem), "", ""
        if lost:
            self.accounted(self.name)

    def _delay(self, failures: int) -> float:
        nominal = min(self.times.backoff_cap, self.times.backoff * 2.0 ** min(failures, 8))
        return nominal * (0.5 + random.random() / 2)


def _essence(report: NodeObserved | None) -> NodeObserved | None:
    """An account without what differs every time."""
    if report is None:
        return None
    return report.model_copy(update={"now": None, "sequence": 0})
