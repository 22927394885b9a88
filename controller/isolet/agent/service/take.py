"""Takes a workspace while nothing in its sandbox can change it.

A running sandbox with a disk is paused by the engine, read by a helper through a mount of its own,
and let go on before the copy is forced to disk. One with a workspace in memory is made to stand
still from inside (`standstill`). Whatever happens in between, it is let go on: here, or by the next
agent, which finds in the store that it may stand still.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from isolet.agent.archive.entries import Figures
from isolet.agent.archive.refusal import Refused as Unfit
from isolet.agent.engine.base import Status
from isolet.agent.service import archiver, checkpoint_records, config, standstill
from isolet.agent.service.admission import kept_checkpoints
from isolet.agent.service.archiver import Bounds
from isolet.agent.service.context import Context
from isolet.agent.steps import AgentStep
from isolet.agent.workspace.checkpoints import MANIFEST
from isolet.base import errors, log, names, steps
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.checkpoint import Manifest
from isolet.wire.execution import Medium

STANDSTILL_SECONDS = 120.0
"""The longest that a sandbox stands still for a Checkpoint."""

LET_GO_SECONDS = 120.0
"""For so long the program that lets a sandbox go on may run: its tenant can stop it for ever."""

ENDED_SECONDS = 1800.0
"""The longest that reading the disk of an ended sandbox takes."""

_log = log.get("agent.take")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CannotBeTaken(errors.Refused):
    """What is in the workspace, or around it, stands against it: trying again would not help."""


class Taker:
    """Takes one workspace at a time; holds nothing of it itself."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def thaw(self, record: SandboxRecord) -> None:
        """Let the sandbox go on if it stands still. May be repeated.

        Raises:
            Unavailable, Unconfirmed: the engine does not say that it does.
        """
        engine = self._context.engine
        try:
            seen = await engine.inspect(record.container_name)
            if seen.status is Status.PAUSED:
                await engine.unpause(record.container_name)
        except (errors.NotFound, errors.Conflict):
            return
        if seen.status is not Status.RUNNING or record.spec.medium is not Medium.MEMORY:
            return
        try:
            async with asyncio.timeout(LET_GO_SECONDS):
                await standstill.let_go(engine, record)
        except TimeoutError:
            # Only what runs in there can hold it up, and then it does not stand still.
            _log.warning("held up", extra={"uid": record.uid})

    async def take(self, record: SandboxRecord, host: SandboxRecord) -> tuple[Manifest, str]:
        """Have a whole copy in place; its manifest and the digest of that.

        Raises:
            CannotBeTaken: it cannot be, now or later.
            Conflict, Unavailable, Unconfirmed: the sandbox or the engine changed meanwhile.
        """
        try:
            async with self._context.archives:
                return await self._take(record, host)
        except Unfit as error:
            raise CannotBeTaken(f"the workspace cannot be taken: {error.message}") from None
        except standstill.Failed as error:
            raise CannotBeTaken(f"the workspace cannot be taken: {error}") from None
        except TimeoutError:
            message = f"the copy was not done within {STANDSTILL_SECONDS:.0f} s of standing still"
            raise CannotBeTaken(message) from None
        except OSError as error:
            if error.errno in _FULL:
                raise CannotBeTaken("the node has no room for the copy") from None
            raise errors.Unavailable(f"the copy could not be written: {error.strerror}") from error

    async def _take(self, record: SandboxRecord, host: SandboxRecord) -> tuple[Manifest, str]:
        context = self._context
        bounds = await self._bounds(record)
        aside = context.checkpoints.begin(record.uid)
        taken_at = context.clock.now()
        if host.outcome is not None:
            figures = await self._of_ended(host, aside, bounds)
        else:
            figures = await self._of_running(record, host, aside, bounds)
        manifest = _manifest(record, figures, taken_at=taken_at)
        raw = manifest.to_json()
        steps.reach(AgentStep.CHECKPOINT_KEEP_BEFORE)
        (aside / MANIFEST).write_bytes(raw)
        await asyncio.to_thread(context.checkpoints.keep, record.uid)
        steps.reach(AgentStep.CHECKPOINT_KEEP_AFTER)
        return manifest, names.digest(raw)

    async def _bounds(self, record: SandboxRecord) -> Bounds:
        context = self._context
        kept = kept_checkpoints(await context.store.list(), record.namespace)
        left = context.policy.checkpoints.bytes - kept.bytes
        room = min(left, context.checkpoints.room_bytes())
        if room <= 0:
            raise CannotBeTaken("the node has no room for the copy")
        size = record.spec.resources.workspace_bytes
        return Bounds(size_bytes=size, file_bytes=room, seconds=STANDSTILL_SECONDS)

    async def _of_ended(self, host: SandboxRecord, aside: Path, bounds: Bounds) -> Figures:
        device = await self._device(host)
        longer = Bounds(
            size_bytes=bounds.size_bytes, file_bytes=bounds.file_bytes, seconds=ENDED_SECONDS
        )
        figures = await archiver.pack(device, aside, config.user_ids(host.spec.user), longer)
        steps.reach(AgentStep.CHECKPOINT_COPY_AFTER)
        return figures

    async def _of_running(
        self, record: SandboxRecord, host: SandboxRecord, aside: Path, bounds: Bounds
    ) -> Figures:
        on_disk = host.spec.medium is Medium.DISK
        read = self._of_disk if on_disk else self._of_memory
        try:
            async with asyncio.timeout(STANDSTILL_SECONDS):
                figures = await read(host, aside, bounds)
            steps.reach(AgentStep.CHECKPOINT_COPY_AFTER)
            return figures
        finally:
            await self.thaw(record)
            steps.reach(AgentStep.CHECKPOINT_THAW_AFTER)

    async def _of_disk(self, host: SandboxRecord, aside: Path, bounds: Bounds) -> Figures:
        engine, container = self._context.engine, host.engine_name
        device = await self._device(host)
        await engine.pause(container)
        steps.reach(AgentStep.CHECKPOINT_FREEZE_AFTER)
        figures = await archiver.pack(device, aside, config.user_ids(host.spec.user), bounds)
        if (await engine.inspect(container)).status is not Status.PAUSED:
            raise errors.Unavailable("the sandbox was let go on while its workspace was read")
        return figures

    async def _of_memory(self, host: SandboxRecord, aside: Path, bounds: Bounds) -> Figures:
        pieces = _noted(standstill.stream(self._context.engine, host))
        user = config.user_ids(host.spec.user)
        return await archiver.normalise(pieces, aside, user, bounds)

    async def _device(self, host: SandboxRecord) -> str:
        device = await self._context.disks.device_of(host.place)
        if device is None:
            raise CannotBeTaken("the workspace is not on this node any more")
        return device


async def _noted(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same; the first piece says that all processes stand still."""
    begun = False
    async for piece in pieces:
        if not begun:
            begun = True
            steps.reach(AgentStep.CHECKPOINT_FREEZE_AFTER)
        yield piece


def _manifest(record: SandboxRecord, figures: Figures, *, taken_at: datetime) -> Manifest:
    return Manifest(
        checkpoint_uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        reason=record.checkpoint.reason if record.checkpoint else "",
        taken_at=taken_at,
        source=checkpoint_records.source(record),
        entries=figures.entries,
        entries_bytes=figures.entries_bytes,
        content_digest=figures.content_digest,
        content_bytes=figures.content_bytes,
        size_bytes=figures.size_bytes,
    )
