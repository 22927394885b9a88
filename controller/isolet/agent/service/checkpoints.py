"""Checkpoints as callers ask for them: admitted, removed, read."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import NoReturn

from isolet.agent.service import checkpoint_records, records
from isolet.agent.service.admission import Admission
from isolet.agent.service.context import Context
from isolet.agent.transfer import grants
from isolet.agent.transfer.grants import Now, Subject
from isolet.base import errors
from isolet.plan.sandbox_model import Kind, Moment, SandboxRecord
from isolet.wire.checkpoint import CheckpointObserved, CheckpointWanted, Grant, Part

PIECE_BYTES = 1 << 20


class Checkpoints:
    """What `Service` does about Checkpoints. `told` is called with each changed record."""

    def __init__(
        self, context: Context, admission: Admission, told: Callable[[SandboxRecord], None]
    ) -> None:
        self._context = context
        self._admission = admission
        self._told = told

    async def put(self, wanted: CheckpointWanted) -> CheckpointObserved:
        """See CheckpointAPI."""
        record = await self._context.store.get(wanted.uid)
        if record is None:
            record = await self._admit(wanted)
        if record.kind is not Kind.CHECKPOINT or record.spec_digest != checkpoint_records.digest(
            wanted.spec
        ):
            raise errors.Conflict(f"{wanted.uid} is known here with another request")
        records.require_not_over(record)
        record = await self._change(record, generation=max(record.generation, wanted.generation))
        return self.observed(record)

    async def _admit(self, wanted: CheckpointWanted) -> SandboxRecord:
        context = self._context
        if await context.store.tombstone(wanted.uid) is not None:
            raise errors.Conflict(f"{wanted.uid} has ended here before", reason="AlreadyEnded")
        uid = wanted.spec.execution_uid
        host = await context.store.get(uid)
        # An Execution of another namespace is no more to be had than one that is not there.
        mine = host is not None and host.namespace == wanted.namespace
        if host is None or not mine or host.kind is not Kind.EXECUTION:
            raise errors.NotFound(f"no Execution {uid} on this node")
        record = checkpoint_records.new(wanted, host, context.clock.now())
        return await self._admission.checkpoint(record)

    async def remove(self, uid: str) -> CheckpointObserved:
        """See CheckpointAPI."""
        store = self._context.store
        record = await store.get(uid)
        if record is None:
            if await store.tombstone(uid) is None:
                # Another node may have written a copy to our store and be gone.
                if self._context.object_store is not None:
                    await self._context.object_store.remove(uid)
                try:
                    await store.fence(uid, at=self._context.moment(), kind=Kind.CHECKPOINT)
                except errors.Conflict:  # It has just come.
                    return await self.remove(uid)
            tombstone = await store.tombstone(uid)
            assert tombstone is not None
            return checkpoint_records.buried(tombstone, 0)
        return self.observed(await self._change(self._mine(record), removing=True))

    async def get(self, uid: str) -> CheckpointObserved:
        """See CheckpointAPI."""
        record = await self._context.store.get(uid)
        if record is not None:
            return self.observed(self._mine(record))
        tombstone = await self._context.store.tombstone(uid)
        if tombstone is None or tombstone.kind is not Kind.CHECKPOINT:
            _unknown(uid)
        return checkpoint_records.buried(tombstone, 0)

    async def grant(self, uid: str, reader: str, seconds: int) -> Grant:
        """See CheckpointAPI."""
        subject, now = await self._subject(uid, reader), self._context.moment()
        token = grants.give(self._context.key, subject, seconds, _boot(now))
        return Grant(token=token, expires_at=now.wall + timedelta(seconds=seconds))

    async def require_grant(self, uid: str, reader: str, token: str) -> None:
        """Refuses a node that was not granted this Checkpoint, or not any more."""
        subject = await self._subject(uid, reader)
        grants.check(self._context.key, token, subject, _boot(self._context.moment()))

    async def _subject(self, uid: str, reader: str) -> Subject:
        """What a grant is about. Raises NotFound where there is nothing to read."""
        record = await self._context.store.get(uid)
        part = None if record is None else record.checkpoint
        digest = None if part is None else part.manifest_digest
        if digest is None or not self._context.checkpoints.is_whole(uid):
            raise errors.NotFound(f"no copy of Checkpoint {uid} lies on this node")
        return Subject(uid, digest, reader)

    async def read(self, uid: str, part: Part, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes of a file of a copy, which stays until they have been read."""
        folders = self._context.checkpoints
        self._mine(await self._context.store.get(uid) or _unknown(uid))
        with folders.reading(uid), folders.part(uid, part.value).open("rb") as file:
            file.seek(offset)
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    def observed(self, record: SandboxRecord) -> CheckpointObserved:
        """As it is told."""
        readers = self._context.checkpoints.readers(record.uid)
        return checkpoint_records.observed(record, readers)

    def _mine(self, record: SandboxRecord) -> SandboxRecord:
        if record.kind is not Kind.CHECKPOINT:
            raise errors.NotFound(f"{record.uid} is no Checkpoint")
        return record

    async def _change(self, record: SandboxRecord, **changes: object) -> SandboxRecord:
        """Write what differs, and have it looked at."""
        while True:
            changed = record.with_(**changes)
            if changed != record:
                try:
                    changed = await self._context.store.update(changed)
                except errors.Conflict:
                    newer = await self._context.store.get(record.uid)
                    if newer is None:
                        raise
                    record = newer
                    continue
            self._told(changed)
            return changed


def _boot(now: Moment) -> Now:
    return Now(now.boot_id, now.boottime)


def _unknown(uid: str) -> NoReturn:
    raise errors.NotFound(f"no Checkpoint {uid} on this node")
