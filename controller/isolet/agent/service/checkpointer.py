"""Checkpoints, driven: taken when it is their turn, kept whole, removed when nobody reads them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from isolet.agent.engine.base import Status
from isolet.agent.service.context import Context
from isolet.agent.service.take import CannotBeTaken, Taker
from isolet.agent.service.turns import Turns
from isolet.agent.steps import AgentStep
from isolet.base import errors, steps
from isolet.plan import checkpoint, reasons, sandbox_model
from isolet.plan.checkpoint import CheckpointFacts, part_of
from isolet.plan.sandbox_model import (
    Action,
    CheckpointAction,
    Decision,
    Kind,
    SandboxRecord,
    Seen,
)
from isolet.wire.checkpoint import Manifest
from isolet.wire.execution import Outcome, Step

Performer = Callable[[SandboxRecord, Any], Awaitable[SandboxRecord | None]]


class CheckpointDriver:
    """Looks, decides and performs for Checkpoints."""

    def __init__(
        self, context: Context, turns: Turns, touch_host: Callable[[str], Awaitable[None]]
    ) -> None:
        """`touch_host` notes that a session is in use."""
        self._context = context
        self._turns = turns
        self._touch_host = touch_host
        self._taker = Taker(context)
        self._waiting: dict[str, str] = {}
        self._performers: dict[type[CheckpointAction], Performer] = {
            sandbox_model.Dispatch: self._dispatch,
            sandbox_model.Thaw: self._thaw,
            sandbox_model.Take: self._take,
            sandbox_model.RecordEnd: self._record_end,
            sandbox_model.Save: self._save,
            sandbox_model.Dispose: self._dispose,
            sandbox_model.Bury: self._bury,
        }

    def waiting(self) -> list[str]:
        """Those that have not ended, as far as they were looked at."""
        return list(self._waiting)

    async def decide(self, record: SandboxRecord) -> Decision:
        """Look, then ask the plan."""
        store = self._context.object_store
        facts = CheckpointFacts(
            readers=self._context.checkpoints.readers(record.uid),
            store=None if store is None else store.name,
        )
        if record.outcome is None:
            facts = await self._look(record)
        retain = self._context.policy.checkpoints.retain_seconds
        return checkpoint.decide(record, facts, self._context.moment(), retain_seconds=retain)

    def take_up_all(self, records: Sequence[SandboxRecord]) -> None:
        """At the start: before anything else may begin in a session that stands still."""
        for record in records:
            if record.checkpoint is not None and record.outcome is None:
                self.take_up(record)

    def take_up(self, record: SandboxRecord) -> bool:
        """Have its place in the queue; whether it is its turn, as far as commands go."""
        uid = part_of(record).execution_uid
        self._waiting[record.uid] = uid
        return self._turns.claim(uid, record.uid)

    async def _look(self, record: SandboxRecord) -> CheckpointFacts:
        turn, uid = self.take_up(record), part_of(record).execution_uid
        host = await self._context.store.get(uid)
        engine = Seen.UNKNOWN
        if host is not None and host.outcome is None and host.step is Step.RUNNING:
            engine = await self._engine_answers(host)
        turn = turn and not await self._process_runs_in(uid)
        return CheckpointFacts(host=host, engine=engine, turn=turn)

    async def _engine_answers(self, host: SandboxRecord) -> Seen:
        try:
            seen = await self._context.engine.inspect(host.engine_name)
        except errors.NotFound:
            return Seen.ABSENT
        except errors.Unavailable:
            return Seen.UNKNOWN
        alive = seen.status in (Status.RUNNING, Status.PAUSED)
        return Seen.PRESENT if alive else Seen.ABSENT

    async def _process_runs_in(self, uid: str) -> bool:
        return any(
            r.process is not None
            and r.process.host_uid == uid
            and r.outcome is None
            and r.step is not Step.RECORDED
            for r in await self._context.store.list()
        )

    async def perform(
        self, action: Action | CheckpointAction, record: SandboxRecord
    ) -> SandboxRecord | None:
        """Do one action; returns the record afterwards, None once it is buried."""
        performer = self._performers[type(action)]  # type: ignore[index]
        return await performer(record, action)

    async def drop(self, uid: str) -> None:
        """Forget one that is buried."""
        host = self._waiting.pop(uid, None)
        if host is not None:
            await self._turns.release(host, uid)

    async def _dispatch(self, record: SandboxRecord, _: object) -> SandboxRecord:
        """Intent: from here on the sandbox may stand still and files may lie aside."""
        part, now = part_of(record), self._context.moment()
        host = await self._context.store.get(part.execution_uid)
        assert host is not None
        steps.reach(AgentStep.CHECKPOINT_RECORD_BEFORE)
        stored = await self._context.store.update(
            record.with_(
                step=Step.DISPATCHED,
                boot_id=now.boot_id,
                dispatched_at=record.dispatched_at or now.wall,
                dispatched_boottime=now.boottime,
                container_id=host.container_id,
                image_id=host.image_id,
                git=host.git,
                checkpoint=replace(part, attempts=part.attempts + 1),
                waiting=None,
            )
        )
        steps.reach(AgentStep.CHECKPOINT_RECORD_AFTER)
        return stored

    async def _thaw(self, record: SandboxRecord, _: object) -> SandboxRecord:
        """After a crash. What was moved into place and not recorded was seen by nobody: it goes."""
        await self._taker.thaw(record)
        steps.reach(AgentStep.CHECKPOINT_THAW_AFTER)
        await asyncio.to_thread(self._context.checkpoints.remove, record.uid)
        return await self._context.store.update(record.with_(step=Step.RECORDED))

    async def _take(self, record: SandboxRecord, _: object) -> SandboxRecord:
        host = await self._context.store.get(part_of(record).execution_uid)
        if host is None:
            raise errors.Unavailable("its Execution went away while it was taken")
        try:
            manifest, digest = await self._taker.take(record, host)
        except CannotBeTaken as error:
            await asyncio.to_thread(self._context.checkpoints.remove, record.uid)
            outcome = Outcome(
                succeeded=False, reason=reasons.CHECKPOINT_FAILED, message=error.message
            )
            return await self._ended(record, outcome)
        await self._touch_host(host.uid)
        part = replace(part_of(record), manifest=manifest, manifest_digest=digest)
        return await self._ended(record.with_(checkpoint=part), _ready(manifest))

    async def _record_end(
        self, record: SandboxRecord, action: sandbox_model.RecordEnd
    ) -> SandboxRecord:
        return await self._ended(record, action.outcome)

    async def _ended(self, record: SandboxRecord, outcome: Outcome) -> SandboxRecord:
        now = self._context.moment()
        steps.reach(AgentStep.CHECKPOINT_OUTCOME_BEFORE)
        stored = await self._context.store.update(
            record.with_(
                step=Step.ENDED,
                outcome=outcome,
                waiting=None,
                updated_at=now.wall,
                ended_at=now.wall,
                ended_boottime=now.boottime,
            )
        )
        steps.reach(AgentStep.CHECKPOINT_OUTCOME_AFTER)
        await self.drop(record.uid)
        return stored

    async def _save(self, record: SandboxRecord, _: object) -> SandboxRecord:
        """To be cut off anywhere and done again: the key follows from the uid."""
        store, folders = self._context.object_store, self._context.checkpoints
        assert store is not None
        with folders.reading(record.uid):
            copy = await store.save(record.uid, folders.folder(record.uid))
        newest = await self._context.store.get(record.uid) or record
        part = replace(part_of(newest), in_store=copy)
        return await self._context.store.update(newest.with_(checkpoint=part, waiting=None))

    async def _dispose(self, record: SandboxRecord, _: object) -> SandboxRecord:
        steps.reach(AgentStep.CHECKPOINT_DISPOSE_BEFORE)
        await self._remove_stored(record)
        await asyncio.to_thread(self._context.checkpoints.remove, record.uid)
        steps.reach(AgentStep.CHECKPOINT_DISPOSE_AFTER)
        return await self._context.store.update(
            record.with_(step=Step.DISPOSED, nothing_left=True, waiting=None)
        )

    async def _remove_stored(self, record: SandboxRecord) -> None:
        """Also where nobody was told of a copy: one may have been written and not recorded."""
        store, copy = self._context.object_store, part_of(record).in_store
        if copy is not None and (store is None or store.name != copy.store):
            raise errors.Unavailable(
                f"a copy is in object store {copy.store}, which this node does not have any more",
                reason=reasons.OBJECT_STORE_UNAVAILABLE,
            )
        if store is not None:
            await store.remove(record.uid)

    async def _bury(self, record: SandboxRecord, _: object) -> None:
        context = self._context
        await context.store.bury(record.uid, at=context.moment(), kind=Kind.CHECKPOINT)


def _ready(manifest: Manifest) -> Outcome:
    return Outcome(
        succeeded=True,
        reason=reasons.CHECKPOINT_READY,
        message=f"{manifest.entries} entries with {manifest.size_bytes} bytes",
    )
