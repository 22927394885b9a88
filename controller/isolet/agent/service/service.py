"""The agent's interface, put together: what is asked goes into the store, workers do the rest."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Literal

from isolet.agent import deadlines
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.engine.base import EngineEvent, Stream
from isolet.agent.policy import checks
from isolet.agent.service import records, starts
from isolet.agent.service.admission import Admission
from isolet.agent.service.checkpoint_door import CheckpointDoor
from isolet.agent.service.checkpointer import CheckpointDriver
from isolet.agent.service.checkpoints import Checkpoints
from isolet.agent.service.commands import Commands
from isolet.agent.service.context import Context
from isolet.agent.service.copies import NearestCopies
from isolet.agent.service.dispatches import RunDriver, RunnerSlots
from isolet.agent.service.door import ProcessDoor
from isolet.agent.service.due import deadline_entry
from isolet.agent.service.events import EventLog
from isolet.agent.service.facts import oldest, with_output
from isolet.agent.service.imports import Imports
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.inside import InsideDriver
from isolet.agent.service.inside_look import is_inside
from isolet.agent.service.live_files import LiveFiles
from isolet.agent.service.loops import kept
from isolet.agent.service.node import Node
from isolet.agent.service.output import OutputFiles
from isolet.agent.service.pools import Pools
from isolet.agent.service.processes import Processes
from isolet.agent.service.restorer import Restorer
from isolet.agent.service.tombstones import buried, purge_loop
from isolet.agent.service.turns import Turns
from isolet.agent.service.watchers import Observed, Watchers
from isolet.agent.service.worker import Driver, SandboxDriver, SlotDriver, Worker, Workers
from isolet.base import errors, log, names
from isolet.plan.sandbox_model import Kind, SandboxRecord, Stop
from isolet.wire.agent_api import Change, OutputChunk, Snapshot
from isolet.wire.base import Fence
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecResult,
    ExecutionObserved,
    ExecutionWanted,
    Step,
)
from isolet.wire.node import NodeObserved, Stray
from isolet.wire.pool import PoolsObserved, PoolsWanted

MAX_CHUNK_BYTES = 1 << 20

_TELLING = frozenset({"start", "die", "oom", "pause", "unpause", "destroy"})
"""Events after which a sandbox is another. The rest only announces those, or is about one exec:
three events that would each cost a look, for every command in a session."""

_log = log.get("agent.service")


class Service(ProcessDoor, CheckpointDoor):
    """Implements `isolet.wire.agent_api.AgentAPI` on one node."""

    def __init__(self, context: Context, book: DeadlineBook) -> None:
        self._context = context
        self._book = book
        self._events = EventLog(context, on_event=self._on_event, on_connect=self._on_connect)
        self._inputs = Inputs(context)
        self._imports = Imports(context, self._wake)
        copies = NearestCopies(
            context.checkpoints, files=context.certificate, store=context.object_store
        )
        self._restorer = Restorer(context, copies)
        self._watchers = Watchers(context.store, self._seen, buried, context.calm)
        self._turns = Turns(self._wake)
        self._commands = Commands(context, self._watchers, self._turns, self._touch, self._end_host)
        self._node = Node(context, self._watchers.node_changed)
        self._admission = Admission(context, self._node)
        self._workers = Workers(lambda uid: Worker(uid, context, self._driver, self._told_of))
        self._pools = Pools(
            context, self._inputs, self._node, self._workers.ensure, self._watchers.node_changed
        )
        sources = (self._inputs, self._restorer, self._imports)
        made = starts.assemble(context, book, self._events, sources, self._pools, self._wake)
        self._facts, self._effects, self._assigner = made.facts, made.effects, made.assigner
        self._inside = InsideDriver(
            context, book, self._turns, self._wake, self._end_host, self._touch
        )
        self._checkpointer = CheckpointDriver(context, self._turns, self._touch)
        self._own = SandboxDriver(context, self._facts, self._effects, self._pools, self._turns)
        self._slots = SlotDriver(context, self._facts, self._effects, self._pools)
        runners = RunnerSlots(
            context, book, self._pools, self._assigner, self._admission, self._facts, self._told
        )
        self.runs = RunDriver(context, runners, self._own)
        self._checkpoints = Checkpoints(context, self._admission, self._told)
        super().__init__(
            Processes(
                context, self._admission, self._inputs, self._facts, self._inside, self._told
            ),
            LiveFiles(context),
            self._turns,
        )
        self._background: list[asyncio.Task[None]] = []
        self._was_connected = False

    # Life of the agent.

    async def start(self, journal: Sequence[deadlines.Ended] = ()) -> None:
        """Take up every record where it was left, before anything new is admitted.

        `journal` is what the watchdog has done while no agent was here.
        """
        self._context.checkpoints.prepare()
        records = list(await self._context.store.list())
        for record in records:
            if not record.checkpoint and deadlines.ended_by_watchdog(
                journal, record.container_name, self._context.boot_id
            ):
                self._facts.watchdog_ended(record.uid)
                self._inside.watchdog_ended(record)
        self._imports.start({record.uid for record in records})
        await self._book.replace(list(filter(None, map(deadline_entry, records))))
        self._checkpointer.take_up_all(records)
        await self._pools.start(records)
        await self.runs.service.recover()
        for record in records:
            self._workers.ensure(record.uid)
        self._background = [
            asyncio.create_task(kept(loop))
            for loop in (
                partial(self._events.run, oldest(records, self._context.clock.now())),
                self._node.qualify_loop,
                self._node.refresh_loop,
                partial(purge_loop, self._context),
                self._pools.run,
                self.runs.service.prune_loop,
            )
        ]

    async def qualified(self) -> None:
        """Wait until the first round of qualification is over, however it went."""
        await self._node.first_round.wait()

    def stop_admitting(self) -> None:
        """Take no new Execution from now on; what runs goes on."""
        self._admission.stop()
        self._pools.stop()

    async def close(self) -> None:
        """Let go of everything; sandboxes run on."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._workers.close()
        await self.runs.service.close()
        await self._pools.close()
        await self._inside.close()
        await self._imports.close()
        await self._facts.close()
        await self._restorer.close()

    # What callers ask.

    async def put(self, wanted: ExecutionWanted, fence: Fence | None) -> ExecutionObserved:
        """See AgentAPI."""
        await self._obey(fence)
        digest = wanted.spec.digest(self._context.key)
        record = await self._context.store.get(wanted.uid)
        if record is None:
            record = await self._admit(wanted, digest)
        if record.spec_digest != digest or record.kind is not Kind.EXECUTION:
            raise errors.Conflict(f"{wanted.uid} is known here with another spec")
        records.require_not_over(record)
        if record.step is Step.RECORDED and record.outcome is None:
            self._keep(wanted)
        record = await self._apply(record, records.mutable(wanted))
        self._workers.ensure(wanted.uid)
        return self._observed(record)

    async def amend(self, uid: str, change: Amendment, fence: Fence | None) -> ExecutionObserved:
        """See AgentAPI."""
        await self._obey(fence)
        record = await self._apply(await self._record(uid), change)
        return self._observed(record)

    async def remove(self, uid: str, fence: Fence | None) -> ExecutionObserved:
        """See AgentAPI."""
        await self._obey(fence)
        store = self._context.store
        while (record := await store.get(uid)) is not None:
            self._an_execution(record)
            if record.removing:
                break
            try:
                record = await store.update(record.with_(removing=True))
                break
            except errors.Conflict:
                continue
        if record is None:
            try:
                return await self._never_here(uid)
            except errors.Conflict:  # It has just come.
                return await self.remove(uid, fence)
        self._told(record)
        return self._observed(record)

    async def _never_here(self, uid: str) -> ExecutionObserved:
        """Nothing of it is here; a tombstone keeps a delayed request from starting it later."""
        store = self._context.store
        if await store.tombstone(uid) is None:
            await store.fence(uid, at=self._context.moment())
        tombstone = await store.tombstone(uid)
        assert tombstone is not None
        return records.buried(tombstone, 0)

    async def get(self, uid: str) -> ExecutionObserved:
        """See AgentAPI."""
        record = await self._context.store.get(uid)
        if record is not None:
            return self._observed(self._an_execution(record))
        tombstone = await self._context.store.tombstone(uid)
        if tombstone is None:
            raise errors.NotFound(f"no Execution {uid} on this node")
        return records.buried(tombstone, 0)

    async def snapshot(self) -> Snapshot:
        """See AgentAPI."""
        # Tombstones are left out: there may be a day's worth. Ask `get` about one uid.
        records, newest = await self._context.store.present()
        return Snapshot(
            epoch=self._context.store.epoch,
            sequence=newest,
            executions=tuple(self._observed(r) for r in records if r.kind is Kind.EXECUTION),
            processes=tuple(self._processes.observed(r) for r in records if r.process),
            checkpoints=tuple(self._checkpoints.observed(r) for r in records if r.checkpoint),
        )

    def watch(self, after: int) -> AsyncIterator[Change]:
        """See AgentAPI."""
        return self._watchers.stream(after)

    async def output(
        self, uid: str, stream: Literal["stdout", "stderr"], offset: int, limit: int
    ) -> OutputChunk:
        """See AgentAPI."""
        record = await self._record(uid)
        files = OutputFiles(self._context.output_folder(uid))
        start, data, total = files.read(Stream(stream), offset, min(limit, MAX_CHUNK_BYTES))
        return OutputChunk(
            offset=start, data=data, total_bytes=total, complete=record.outcome is not None
        )

    async def exec(self, uid: str, request: ExecRequest) -> ExecResult:
        """See AgentAPI."""
        record = await self._record(uid)
        problems = checks.exec_violations(request)
        if problems:
            raise errors.Invalid("; ".join(map(str, problems)))
        if not record.spec.session:
            raise errors.Conflict(f"{uid} runs one command and is no session", reason="NotASession")
        if record.step is not Step.RUNNING or record.stop is not None:
            raise errors.Conflict(f"{uid} is not running", reason="NotRunning")
        return await self._commands.run(record, request, leave=lambda: self._admission.stopped)

    async def node(self) -> NodeObserved:
        """See AgentAPI."""
        records, newest = await self._context.store.present()
        return self._node.account(newest, records, self._pools.account(records))

    async def put_pools(self, wanted: PoolsWanted, fence: Fence | None) -> PoolsObserved:
        """See AgentAPI."""
        await self._obey(fence)
        await self._pools.put(wanted)
        return self._pools.account(await self._context.store.list())

    async def remove_strays(self, names_: Sequence[str], fence: Fence | None) -> Sequence[Stray]:
        """See AgentAPI."""
        await self._obey(fence)
        return await self._node.remove_strays(names_)

    # How it is done.

    async def _obey(self, fence: Fence | None) -> None:
        if fence is not None:
            await self._context.store.check_fence(fence)

    async def _record(self, uid: str) -> SandboxRecord:
        record = await self._context.store.get(uid)
        if record is None:
            raise errors.NotFound(f"no Execution {uid} on this node")
        return self._an_execution(record)

    def _an_execution(self, record: SandboxRecord) -> SandboxRecord:
        if record.kind is not Kind.EXECUTION:
            raise errors.NotFound(f"{record.uid} is a {record.kind.value}, no Execution")
        return record

    async def _admit(self, wanted: ExecutionWanted, digest: str) -> SandboxRecord:
        """The first time a uid is heard of."""
        names_ = self._admission.image_names(wanted.spec.image)
        context = self._context
        return await self._admission.sandbox(
            wanted.spec,
            checks.wanted_violations(wanted, context.policy, image_names=names_),
            lambda: self._keep(wanted),
            lambda: records.new(wanted, digest, context.installation, context.clock.now()),
            lambda record: self._assigner.begin(record, wanted.spec),
        )

    def _keep(self, wanted: ExecutionWanted) -> None:
        """Have at hand what the start needs and no record holds."""
        self._inputs.keep(wanted.uid, wanted.spec)
        if wanted.spec.restore is not None:
            self._restorer.keep(wanted.uid, wanted.restore_from)

    async def _apply(self, record: SandboxRecord, change: Amendment) -> SandboxRecord:
        """Write what is mutable, if it differs; Terminated is one-way."""
        while True:
            changed = records.amended(record, change)
            if changed == record:
                return record
            try:
                stored = await self._context.store.update(changed)
            except errors.Conflict:
                record = await self._record(record.uid)
                continue
            await self._effects.guard_again(stored)
            self._told(stored)
            return stored

    async def _touch(self, uid: str) -> None:
        """Note that the session is in use, for its idle timeout."""
        await self._edit(uid, last_activity_boottime=self._context.clock.boottime())

    async def _edit(self, uid: str, **changes: object) -> None:
        """Change a live record; one that has ended or been stopped keeps what it has."""
        while True:
            record = await self._context.store.get(uid)
            if record is None or record.outcome is not None or record.stop is not None:
                return
            try:
                self._told(await self._context.store.update(record.with_(**changes)))
                return
            except errors.Conflict:
                continue

    def _observed(self, record: SandboxRecord) -> ExecutionObserved:
        return records.observed(with_output(self._context, self._facts, record))

    def _driver(self, record: SandboxRecord) -> Driver:
        if record.checkpoint:
            return self._checkpointer
        if record.dispatch:
            return self.runs
        if record.kind is Kind.SLOT:
            return self._slots
        return self._inside if is_inside(record) else self._own

    def _seen(self, record: SandboxRecord) -> Observed:
        if record.checkpoint:
            return self._checkpoints.observed(record)
        return self._processes.observed(record) if record.process else self._observed(record)

    def _told(self, record: SandboxRecord) -> None:
        self._watchers.changed()
        self._workers.ensure(record.uid)

    def _told_of(self) -> None:
        """A worker has changed a record: those that run inside of it or wait for it look too."""
        self._watchers.changed()
        for uid in (*self._inside.live(), *self._checkpointer.waiting()):
            self._workers.wake(uid)

    async def _end_host(self, uid: str, stop: Stop) -> None:
        """Have a session ended for what a Process in it did."""
        await self._edit(uid, stop=stop)

    def _wake(self, uid: str) -> None:
        self._workers.wake(uid)

    def _on_event(self, event: EngineEvent) -> None:
        if event.action in _TELLING:
            self._workers.wake(self._pools.owner(event.labels.get(names.LABEL_UID, "")))

    def _on_connect(self) -> None:
        """Events may have been missed: everyone looks."""
        if self._was_connected:
            self._node.engine_back()
        # At the start of the agent the first qualification is under way already.
        self._was_connected = True
        self._workers.wake_all()
