"""An agent in memory: the whole contract and no engine behind it.

Executions run at once and go on until the test says otherwise (`finish`); what is removed leaves a
tombstone. `fail_with` makes the next calls fail, which is how a test plays an agent in trouble.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from isolet.base import errors
from isolet.base.clock import Clock, FixedClock
from isolet.plan import reasons
from isolet.wire.agent_api import Change, OutputChunk, Snapshot
from isolet.wire.base import Fence
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecResult,
    ExecutionObserved,
    ExecutionWanted,
    Outcome,
    OutputFacts,
    State,
    Step,
)
from isolet.wire.node import Amounts, NodeCondition, NodeObserved, Stray
from isolet.wire.pool import PoolObserved, PoolsObserved, PoolsWanted
from tests.contract.client.memory_checkpoints import MemoryCheckpoints
from tests.contract.client.memory_processes import MemoryProcesses

Run = Callable[[str, ExecRequest], ExecResult]


@dataclass
class _Held:
    """One Execution in memory."""

    seen: ExecutionObserved
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass
class MemoryAgent(MemoryProcesses, MemoryCheckpoints):
    """An `AgentAPI` over dictionaries."""

    name: str = "node-1"
    clock: Clock = field(default_factory=FixedClock)
    epoch: str = "memory"
    bookmark_seconds: float = 0.2
    run: Run | None = None
    """What a command in a session does; without it, it succeeds and says nothing."""
    conditions: tuple[NodeCondition, ...] = (
        NodeCondition(type="EngineReady", status="True", reason="Qualified", message=""),
        NodeCondition(type="RuntimeQualified", status="True", reason="Qualified", message=""),
    )
    fail_with: Exception | None = None
    """Raised by every call while it is set."""
    strays: list[Stray] = field(default_factory=list)
    sequence: int = 0
    calls: list[str] = field(default_factory=list)
    """Names of the calls that came, in order."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _buried: set[str] = field(default_factory=set)
    _fence: Fence | None = None
    _replaced: set[str] = field(default_factory=set)
    _log: list[Change] = field(default_factory=list)
    _bell: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        MemoryProcesses.__init__(self)
        MemoryCheckpoints.__init__(self)

    async def put(self, wanted: ExecutionWanted, fence: Fence | None) -> ExecutionObserved:
        """See `AgentAPI.put`."""
        self._enter("put", fence)
        digest = wanted.spec.digest(b"memory")
        held = self._held.get(wanted.uid)
        if held is None:
            if wanted.uid in self._buried:
                raise errors.Conflict(f"{wanted.uid} has ended here", reason="AlreadyEnded")
            return self._start(wanted, digest)
        if held.seen.spec_digest != digest:
            raise errors.Conflict(f"{wanted.uid} runs with another spec")
        return self._want(held, wanted.state, wanted.active_deadline_seconds, wanted.generation)

    async def amend(self, uid: str, change: Amendment, fence: Fence | None) -> ExecutionObserved:
        """See `AgentAPI.amend`."""
        self._enter("amend", fence)
        held = self._one(uid)
        return self._want(held, change.state, change.active_deadline_seconds, change.generation)

    async def remove(self, uid: str, fence: Fence | None) -> ExecutionObserved:
        """See `AgentAPI.remove`."""
        self._enter("remove", fence)
        held = self._held.pop(uid, None)
        self._buried.add(uid)
        seen = held.seen if held is not None else _never(uid)
        return self._changed(
            seen.model_copy(update={"removing": True, "nothing_left": True, "step": Step.DISPOSED})
        )

    async def get(self, uid: str) -> ExecutionObserved:
        """See `AgentAPI.get`."""
        self._enter("get")
        return self._one(uid).seen

    async def snapshot(self) -> Snapshot:
        """See `AgentAPI.snapshot`."""
        self._enter("snapshot")
        seen = tuple(held.seen for held in self._held.values())
        return Snapshot(
            epoch=self.epoch,
            sequence=self.sequence,
            executions=seen,
            processes=tuple(self.processes.values()),
            checkpoints=tuple(self.checkpoints.values()),
        )

    async def watch(self, after: int) -> AsyncIterator[Change]:
        """See `AgentAPI.watch`."""
        self._enter("watch")
        while True:
            news = [change for change in self._log if change.sequence > after]
            for change in news:
                after = change.sequence
                yield change
            if not news:
                yield Change(epoch=self.epoch, sequence=self.sequence)
                await self._ring()

    async def output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """See `AgentAPI.output`."""
        self._enter("output")
        held = self._one(uid)
        data = held.stdout if stream == "stdout" else held.stderr
        begin = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        return OutputChunk(
            offset=begin,
            data=data[begin : begin + limit],
            total_bytes=len(data),
            complete=held.seen.outcome is not None,
        )

    async def exec(self, uid: str, request: ExecRequest) -> ExecResult:
        """See `AgentAPI.exec`."""
        self._enter("exec")
        if self._one(uid).seen.step is not Step.RUNNING:
            raise errors.Conflict(f"{uid} does not run", reason="NotRunning")
        if self.run is not None:
            return self.run(uid, request)
        now = self.clock.now()
        return ExecResult(exit_code=0, stdout=b"", stderr=b"", started_at=now, completed_at=now)

    async def node(self) -> NodeObserved:
        """See `AgentAPI.node`."""
        self._enter("node")
        return NodeObserved(
            name=self.name,
            installation="memory",
            agent_version="0",
            epoch=self.epoch,
            boot_id="boot",
            sequence=self.sequence,
            now=self.clock.now(),
            conditions=self.conditions,
            runtimes=("runsc",),
            media=("Memory", "Disk"),
            capacity=Amounts(cpu_millis=8000, memory_bytes=16 << 30, executions=100),
            strays=tuple(self.strays),
        )

    async def remove_strays(self, names: Sequence[str], fence: Fence | None) -> Sequence[Stray]:
        """See `AgentAPI.remove_strays`."""
        self._enter("remove_strays", fence)
        self.strays = [stray for stray in self.strays if stray.name not in names]
        return ()

    async def put_pools(self, wanted: PoolsWanted, fence: Fence | None) -> PoolsObserved:
        """See `AgentAPI.put_pools`."""
        self._enter("put_pools", fence)
        pools = tuple(
            PoolObserved(class_name=p.class_name, generation=p.generation, target=p.minimum)
            for p in wanted.pools
        )
        return PoolsObserved(digest=wanted.digest(), at=self.clock.now(), pools=pools)

    def finish(
        self, uid: str, outcome: Outcome, *, stdout: bytes = b"", stderr: bytes = b""
    ) -> ExecutionObserved:
        """Let an Execution end so."""
        held = self._one(uid)
        held.stdout, held.stderr = stdout, stderr
        facts = OutputFacts(stdout_bytes=len(stdout), stderr_bytes=len(stderr))
        held.seen = self._changed(
            held.seen.model_copy(
                update={
                    "step": Step.ENDED,
                    "outcome": outcome,
                    "ended_at": self.clock.now(),
                    "output": facts,
                }
            )
        )
        return held.seen

    def _start(self, wanted: ExecutionWanted, digest: str) -> ExecutionObserved:
        now = self.clock.now()
        seen = ExecutionObserved(
            uid=wanted.uid,
            namespace=wanted.namespace,
            name=wanted.name,
            sequence=0,
            spec_digest=digest,
            generation=wanted.generation,
            step=Step.RUNNING,
            image_id=wanted.spec.image.rpartition("@")[2],
            started_at=now,
            deadline_at=_deadline(now, wanted.active_deadline_seconds),
        )
        self._held[wanted.uid] = _Held(self._changed(seen))
        return self._held[wanted.uid].seen

    def _want(
        self, held: _Held, state: State, deadline_seconds: int | None, generation: int
    ) -> ExecutionObserved:
        if held.seen.outcome is None and state is State.TERMINATED:
            ended = Outcome(succeeded=True, reason=reasons.TERMINATED, message="ended as asked")
            return self.finish(held.seen.uid, ended)
        deadline = held.seen.deadline_at
        if deadline_seconds is not None:
            deadline = _deadline(held.seen.started_at, deadline_seconds)
        update = {"deadline_at": deadline, "generation": generation}
        if held.seen.outcome is None and held.seen.model_copy(update=update) != held.seen:
            held.seen = self._changed(held.seen.model_copy(update=update))
        return held.seen

    def _enter(self, call: str, fence: Fence | None = None) -> None:
        self.calls.append(call)
        if self.fail_with is not None:
            raise self.fail_with
        if fence is None:
            return
        known = self._fence
        if fence.lease_uid in self._replaced:
            raise errors.Fenced("this Lease has been replaced")
        if known is not None and known.lease_uid != fence.lease_uid:
            self._replaced.add(known.lease_uid)
        elif known is not None and fence.transitions < known.transitions:
            raise errors.Fenced("a newer leader has been obeyed")
        self._fence = fence

    def _one(self, uid: str) -> _Held:
        held = self._held.get(uid)
        if held is None:
            raise errors.NotFound(f"no Execution {uid}")
        return held

    def _changed(self, seen: ExecutionObserved) -> ExecutionObserved:
        self.sequence += 1
        seen = seen.model_copy(update={"sequence": self.sequence})
        self._log.append(Change(epoch=self.epoch, sequence=self.sequence, execution=seen))
        self._bell.set()
        return seen

    async def _ring(self) -> None:
        """Wait for a change, or for the time of a bookmark."""
        self._bell.clear()
        try:
            async with asyncio.timeout(self.bookmark_seconds):
                await self._bell.wait()
        except TimeoutError:
            return


def _deadline(started_at: datetime | None, seconds: int) -> datetime | None:
    return None if started_at is None else started_at + timedelta(seconds=seconds)


def _never(uid: str) -> ExecutionObserved:
    """What is told of a uid that was never here."""
    return ExecutionObserved(
        uid=uid, namespace="", name="", sequence=0, spec_digest="", step=Step.DISPOSED
    )
