"""An agent in memory: `AgentAPI` with a store, a watch, fences, and a tenant driven by the test.

It starts what it is told to at once (`auto`), or as far as the test lets it. It can be unreachable,
slow, replaced (another epoch), and it counts what would be sandboxes.
"""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from isolet.base import errors
from isolet.wire.agent_api import Change, Snapshot
from isolet.wire.checkpoint import (
    CheckpointObserved,
    CheckpointStep,
    Grant,
    Manifest,
    Source,
    StoreCopy,
)
from isolet.wire.execution import (
    ExecutionObserved,
    Outcome,
    State,
    Step,
    Waiting,
)
from isolet.wire.node import Amounts, Image, NodeCondition, NodeObserved
from isolet.wire.pool import PoolsObserved, PoolsWanted
from isolet.wire.process import ProcessObserved, ProcessState

STATES = {ProcessState.RUNNING: State.RUNNING, ProcessState.CANCELLED: State.TERMINATED}
IMAGE = "sha256:" + "a" * 64
KINDS = {
    ExecutionObserved: "execution",
    ProcessObserved: "process",
    CheckpointObserved: "checkpoint",
}


class FakeAgent:
    def __init__(self, name="node-a", *, installation="test", auto=True, bookmark=1.0):
        self.name = name
        self.installation = installation
        self.auto = auto
        self.bookmark = bookmark
        self.epoch = "epoch-1"
        self.boot_id = "boot-1"
        self.sequence = 0
        self.records = {}
        self.starts = []
        """Every sandbox ever started, by uid: a double start shows here."""
        self.puts = []
        self.calls = []
        self.removed = set()
        self.fences = {}
        self.reachable = True
        self.hang = False
        self.conditions = ("EngineReady", "RuntimeQualified", "StateUsable", "DiskWorkspaces")
        self.images = (Image(id=IMAGE, tags=("python:3",), digests=(f"python@{IMAGE}",)),)
        self.capacity = Amounts(
            cpu_millis=64_000, memory_bytes=256 << 30, disk_bytes=1 << 40, executions=1000
        )
        self.strays = ()
        self.refuse = None
        """An error that `put` raises."""
        self.refuse_checkpoint = None
        """An error that `put_checkpoint` raises."""
        self.untakeable = False
        """Whether Checkpoints fail from now on."""
        self.stores = {}
        """Object stores by name: uids that have a copy in each. Agents may share them."""
        self.grants_hold = True
        """Whether a grant of another agent lets this one read."""
        self.sources = []
        """Every `restore_from` that came with a message, as (uid, restore_from)."""
        self.pools = PoolsWanted()
        self._bell = asyncio.Condition()
        self.connections = 0

    # what a test does

    async def lose(self):
        """Cut every stream; nothing gets through until `return_`."""
        self.reachable = False
        await self._ring()

    async def return_(self):
        self.reachable = True
        await self._ring()

    async def replace(self, *, boot=True):
        """The node comes back with an empty store."""
        self.epoch += "'"
        if boot:
            self.boot_id += "'"
        self.records.clear()
        self.sequence = 0
        await self._ring()

    async def account_changes(self):
        self.sequence += 1
        self._node_changed = self.sequence
        await self._ring()

    async def run(self, uid):
        now = datetime.now(UTC).replace(microsecond=0)
        known = self.records[uid]
        await self._store(
            known,
            step=Step.RUNNING,
            started_at=now,
            deadline_at=now + timedelta(seconds=600),
            image_id=IMAGE,
        )
        self.starts.append(uid)

    async def end(self, uid, reason="Succeeded", succeeded=True, exit_code=0, message="exit 0"):
        known = self.records[uid]
        await self._store(
            known,
            step=Step.ENDED,
            ended_at=datetime.now(UTC).replace(microsecond=0),
            outcome=Outcome(
                succeeded=succeeded, reason=reason, message=message, exit_code=exit_code
            ),
        )
        if self.auto:
            await self.dispose(uid)

    async def dispose(self, uid):
        await self._store(self.records[uid], step=Step.DISPOSED, nothing_left=True)

    @property
    def live(self):
        """Uids with a sandbox now."""
        return {u for u, r in self.records.items() if r.step is Step.RUNNING}

    # AgentAPI

    async def put(self, wanted, fence):
        return await self._put(wanted, fence, ExecutionObserved)

    async def put_process(self, wanted, fence):
        return await self._put(wanted, fence, ProcessObserved)

    async def _put(self, wanted, fence, observed):
        await self._enter("put", wanted.uid, fence)
        if self.refuse is not None:
            raise self.refuse
        known = self.records.get(wanted.uid)
        digest = wanted.spec.digest(b"key")
        if known is not None:
            if known.spec_digest != digest:
                raise errors.Conflict("known with another spec")
            self._note_source(wanted)
            if known.waiting is not None and self.auto:
                await self._begin(wanted)
                known = self.records[wanted.uid]
            return await self._wish(known, wanted.state, wanted.generation)
        if wanted.uid in self.removed:
            raise errors.Conflict("has ended here before")
        self.puts.append(wanted)
        self._note_source(wanted)
        self.sequence += 1
        record = observed(
            uid=wanted.uid,
            namespace=wanted.namespace,
            name=wanted.name,
            sequence=self.sequence,
            spec_digest=digest,
            generation=wanted.generation,
            step=Step.RECORDED,
        )
        self.records[wanted.uid] = record
        await self._ring()
        if self.auto:
            await self._begin(wanted)
        return self.records[wanted.uid]

    def _note_source(self, wanted):
        if getattr(wanted, "restore_from", None) is not None:
            self.sources.append((wanted.uid, wanted.restore_from))

    async def _begin(self, wanted):
        """Run it, unless it starts from a Checkpoint that cannot be had."""
        restore = getattr(wanted.spec, "restore", None)
        if restore is not None and not self._can_restore(restore, wanted.restore_from):
            why = Waiting(reason="CheckpointUnavailable", message="no copy can be read")
            await self._store(self.records[wanted.uid], waiting=why)
            return
        if self.records[wanted.uid].waiting is not None:
            await self._store(self.records[wanted.uid], waiting=None)
        await self.run(wanted.uid)

    def _can_restore(self, restore, found):
        own = self.records.get(restore.checkpoint_uid)
        if own is not None and own.on_node:
            return True
        if found is None:
            return False
        token = f"{restore.checkpoint_uid}/{self.name}"
        if found.peer is not None and found.peer.grant.token == token and self.grants_hold:
            return True
        copy = found.in_store
        return copy is not None and restore.checkpoint_uid in self.stores.get(copy.store, ())

    async def amend(self, uid, change, fence):
        await self._enter("amend", uid, fence)
        return await self._wish(self._known(uid), change.state, change.generation)

    async def amend_process(self, uid, change, fence):
        await self._enter("amend", uid, fence)
        return await self._wish(self._known(uid), STATES[change.state], change.generation)

    async def remove_process(self, uid, fence):
        return await self.remove(uid, fence, ProcessObserved)

    async def remove(self, uid, fence, observed=ExecutionObserved):
        await self._enter("remove", uid, fence)
        self.removed.add(uid)
        known = self.records.get(uid)
        if known is None:
            self.sequence += 1
            known = observed(
                uid=uid,
                namespace="",
                name="",
                sequence=self.sequence,
                spec_digest="",
                step=Step.DISPOSED,
            )
        if self.auto or known.step is Step.DISPOSED:
            return await self._store(known, step=Step.DISPOSED, removing=True, nothing_left=True)
        return await self._store(known, removing=True)

    async def get(self, uid):
        await self._enter("get", uid)
        return self._known(uid)

    async def put_checkpoint(self, wanted, fence):
        await self._enter("put_checkpoint", wanted.uid, fence)
        if self.refuse_checkpoint is not None:
            raise self.refuse_checkpoint
        known = self.records.get(wanted.uid)
        if known is not None:
            if known.execution_uid != wanted.spec.execution_uid:
                raise errors.Conflict("known with another spec")
            return known
        if wanted.uid in self.removed:
            raise errors.Conflict("has ended here before", reason="AlreadyEnded")
        self._known(wanted.spec.execution_uid)
        self.puts.append(wanted)
        self.sequence += 1
        self.records[wanted.uid] = CheckpointObserved(
            uid=wanted.uid,
            namespace=wanted.namespace,
            name=wanted.name,
            sequence=self.sequence,
            generation=wanted.generation,
            execution_uid=wanted.spec.execution_uid,
            step=CheckpointStep.TAKING,
            started_at=datetime.now(UTC).replace(microsecond=0),
        )
        await self._ring()
        if self.untakeable:
            await self.fail_to_take(wanted.uid)
        elif self.auto:
            await self.take(wanted.uid)
        return self.records[wanted.uid]

    async def take(self, uid, *, commit=None):
        """What is being taken is whole."""
        known, now = self.records[uid], datetime.now(UTC).replace(microsecond=0)
        store = next(iter(sorted(self.stores)), None)
        if store is not None:
            self.stores[store].add(uid)
        host = next(w for w in self.puts if w.uid == known.execution_uid)
        spec = host.spec
        manifest = Manifest(
            checkpoint_uid=uid,
            namespace=known.namespace,
            name=known.name,
            taken_at=now,
            source=Source(
                execution_uid=host.uid,
                namespace=host.namespace,
                name=host.name,
                class_name=host.class_name,
                image=spec.image,
                image_id=IMAGE,
                user=spec.user,
                resources=spec.resources,
                medium=spec.workspace.medium,
                commit=commit,
            ),
            entries=3,
            entries_bytes=300,
            content_digest="sha256:" + "c" * 64,
            content_bytes=4096,
            size_bytes=1000,
        )
        await self._end_checkpoint(
            uid,
            Outcome(succeeded=True, reason="CheckpointReady", message="3 entries"),
            manifest=manifest,
            manifest_digest="sha256:" + "d" * 64,
            on_node=True,
            in_store=StoreCopy(store=store, key=f"copies/{uid}") if store else None,
        )

    async def fail_to_take(self, uid, message="the workspace would not stand still"):
        outcome = Outcome(succeeded=False, reason="CheckpointFailed", message=message)
        await self._end_checkpoint(uid, outcome)

    async def _end_checkpoint(self, uid, outcome, **changes):
        ended_at = datetime.now(UTC).replace(microsecond=0)
        step = CheckpointStep.ENDED
        known = self.records[uid]
        await self._store(known, step=step, outcome=outcome, ended_at=ended_at, **changes)

    async def remove_checkpoint(self, uid, fence):
        await self._enter("remove_checkpoint", uid, fence)
        self.removed.add(uid)
        known = self.records.get(uid)
        gone = {"step": CheckpointStep.DISPOSED, "on_node": False, "nothing_left": True}
        gone |= {"in_store": None}
        if known is None:
            self.sequence += 1
            known = CheckpointObserved(
                uid=uid,
                namespace="",
                name="",
                sequence=self.sequence,
                execution_uid="",
                step=CheckpointStep.DISPOSED,
            )
        elif not self.auto or known.readers:
            gone = {}
        if gone:
            for copies in self.stores.values():
                copies.discard(uid)
        return await self._store(known, removing=True, **gone)

    async def get_checkpoint(self, uid):
        await self._enter("get_checkpoint", uid)
        return self._known(uid)

    async def grant_checkpoint(self, uid, reader, seconds, fence):
        await self._enter("grant_checkpoint", (uid, reader), fence)
        if not self._known(uid).on_node:
            raise errors.NotFound("no copy here")
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
        return Grant(token=f"{uid}/{reader}", expires_at=until)

    async def read_checkpoint(self, uid, part, *, offset=0, reader=None, token=None):
        raise NotImplementedError
        yield b""

    async def snapshot(self):
        await self._enter("snapshot")
        return Snapshot(
            epoch=self.epoch,
            sequence=self.sequence,
            executions=[r for r in self.records.values() if isinstance(r, ExecutionObserved)],
            processes=[r for r in self.records.values() if isinstance(r, ProcessObserved)],
            checkpoints=[r for r in self.records.values() if isinstance(r, CheckpointObserved)],
        )

    async def watch(self, after):
        await self._enter("watch")
        epoch = self.epoch
        self.connections += 1
        try:
            while True:
                if not self.reachable:
                    raise errors.Unavailable("connection lost")
                if epoch != self.epoch:
                    yield Change(epoch=self.epoch, sequence=self.sequence)
                    return
                # What changes while the reader is at this news is news of the next round.
                newest = max(after, self.sequence)
                node_changed = getattr(self, "_node_changed", 0) > after
                news = sorted(
                    (r for r in self.records.values() if r.sequence > after),
                    key=lambda r: r.sequence,
                )
                for record in news:
                    sequence = record.sequence
                    yield Change(epoch=epoch, sequence=sequence, **{KINDS[type(record)]: record})
                after = newest
                yield Change(epoch=epoch, sequence=after, node_changed=node_changed)
                async with self._bell:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.bookmark):
                            while self.sequence <= after and self.reachable and epoch == self.epoch:
                                await self._bell.wait()
        finally:
            self.connections -= 1

    async def output(self, uid, stream, offset, limit):
        raise NotImplementedError

    async def exec(self, uid, request):
        raise NotImplementedError

    async def node(self):
        await self._enter("node")
        return NodeObserved(
            name=self.name,
            installation=self.installation,
            agent_version="0.1.0",
            epoch=self.epoch,
            boot_id=self.boot_id,
            sequence=self.sequence,
            now=datetime.now(UTC),
            architecture="amd64",
            pools_digest=self.pools.digest(),
            conditions=tuple(
                NodeCondition(type=type_, status="True", reason="Fine", message="")
                for type_ in self.conditions
            ),
            runtimes=("runsc",),
            media=("Memory", "Disk"),
            images=self.images,
            object_stores=tuple(sorted(self.stores)),
            capacity=self.capacity,
            allocated=Amounts(executions=len(self.live)),
            strays=self.strays,
        )

    async def remove_strays(self, names, fence):
        await self._enter("remove_strays", tuple(names), fence)
        self.strays = tuple(s for s in self.strays if s.name not in names)
        return self.strays

    async def put_pools(self, wanted, fence):
        await self._enter("put_pools", wanted, fence)
        self.pools = wanted
        return PoolsObserved(digest=wanted.digest(), at=datetime.now(UTC))

    async def close(self):
        pass

    async def _enter(self, call, subject=None, fence=None):
        self.calls.append((call, subject))
        await asyncio.sleep(0)
        if self.hang:
            await asyncio.Event().wait()
        if not self.reachable:
            raise errors.Unavailable("no route to the agent")
        if fence is not None:
            if fence.transitions < self.fences.get(fence.lease_uid, 0):
                raise errors.Fenced("an older leader")
            self.fences[fence.lease_uid] = fence.transitions

    def _known(self, uid):
        try:
            return self.records[uid]
        except KeyError:
            raise errors.NotFound(f"no record of {uid}") from None

    async def _wish(self, known, state, generation):
        changes = {"generation": generation}
        if state is State.TERMINATED and known.outcome is None:
            changes |= {
                "step": Step.DISPOSED,
                "nothing_left": True,
                "ended_at": datetime.now(UTC).replace(microsecond=0),
                "outcome": Outcome(succeeded=False, reason="Cancelled", message="as asked"),
            }
        if all(getattr(known, key) == value for key, value in changes.items()):
            return known
        return await self._store(known, **changes)

    async def _store(self, known, **changes):
        self.sequence += 1
        record = known.model_copy(update={**changes, "sequence": self.sequence})
        self.records[known.uid] = record
        await self._ring()
        return record

    async def _ring(self):
        async with self._bell:
            self._bell.notify_all()
