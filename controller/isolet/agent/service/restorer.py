"""Fills workspaces from Checkpoints: fetched and checked before there is a sandbox, loaded once.

A disk is filled before its sandbox is made; what a crash left on one goes with that disk. A
workspace in memory is filled by the image's own tar once the sandbox is there, while its program
waits. Loading is recorded when it is whole, and until then nothing of the user's runs.
"""

import asyncio
import hashlib
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isolet.agent.archive.refusal import Reason
from isolet.agent.archive.refusal import Refused as Unfit
from isolet.agent.engine.base import ExecStream
from isolet.agent.service import archiver, config
from isolet.agent.service.archiver import Bounds
from isolet.agent.service.context import Context
from isolet.agent.service.copies import CannotRestore as CannotRestore
from isolet.agent.service.copies import Copies
from isolet.agent.service.exits import exit_code
from isolet.agent.workspace.checkpoints import CONTENT, ENTRIES, MANIFEST
from isolet.base import errors, names
from isolet.plan import reasons
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.checkpoint import MAX_MANIFEST_BYTES, Manifest
from isolet.wire.execution import Medium
from isolet.wire.restore import Restore, RestoreFrom

FILL_SECONDS = 1800.0
"""The longest that loading takes."""

_PIECE = 1 << 20
_PAGE = 4096
_TOO_LARGE = frozenset({Reason.TOO_LARGE, Reason.TOO_MANY_ENTRIES, Reason.NO_SPACE})
_UNPACK = "umask 0 && cd /workspace && exec tar -xpf - >/dev/null 2>&1"
"""busybox makes folders with their modes and never sets them: the mask must not take any away."""


@dataclass
class _Held:
    """A copy that is at hand, checked."""

    folder: Path
    manifest: Manifest
    aside: Path
    """Beside it, what belongs to this restore alone."""
    stack: AsyncExitStack


class Restorer:
    """Restores; holds the copies of those sandboxes that are being made."""

    def __init__(self, context: Context, copies: Copies) -> None:
        self._context = context
        self._copies = copies
        self._aside = context.checkpoints
        self._asked: dict[str, RestoreFrom | None] = {}
        self._held: dict[str, _Held] = {}

    def keep(self, uid: str, source: RestoreFrom | None) -> None:
        """Have at hand where the content may come from. In memory: it may hold a grant."""
        self._asked[uid] = source

    def is_known(self, record: SandboxRecord) -> bool:
        """Whether it can be said where the content is, or that it is nowhere."""
        restore = record.spec.restore
        return (
            restore is None
            or record.uid in self._asked
            or self._copies.is_here(restore.checkpoint_uid)
        )

    async def fetch(self, record: SandboxRecord) -> None:
        """Have the copy at hand, checked in full but for the content of a disk.

        Raises:
            CannotRestore: why it cannot be restored.
            Unavailable: a helper could not be run; worth another try.
        """
        restore = _restore(record)
        await self._let_go(record.uid)
        stack = AsyncExitStack()
        try:
            folder = await stack.enter_async_context(
                self._copies.fetch(restore, self._asked.get(record.uid))
            )
            manifest = await asyncio.to_thread(_checked, folder, record)
            aside = self._aside.begin(record.uid)
            stack.callback(self._aside.drop_aside, record.uid)
            if record.spec.medium is Medium.MEMORY:
                # The image's tar is not asked to judge: it is given what has been checked.
                user = config.user_ids(record.spec.user)
                # What it writes beside it are some of the content's headers once more.
                bounds = replace(_bounds(record), file_bytes=manifest.content_bytes)
                await self._judged(archiver.verify(folder, aside, user, bounds))
        except BaseException:
            await stack.aclose()
            raise
        self._held[record.uid] = _Held(folder, manifest, aside, stack)

    async def fill(self, record: SandboxRecord) -> None:
        """Load it. May be repeated: what is there of a disk is dropped first.

        Raises:
            CannotRestore: why it cannot be restored.
            Unavailable: as `fetch`, or the engine went away.
        """
        held = self._held.get(record.uid)
        if held is None:
            raise errors.Unavailable("the Checkpoint is not at hand any more")
        if record.spec.medium is Medium.DISK:
            await self._fill_disk(record, held)
        else:
            await self._fill_memory(record, held)

    async def _fill_disk(self, record: SandboxRecord, held: _Held) -> None:
        disks, uid = self._context.disks, record.uid
        user = config.user_ids(record.spec.user)
        await disks.release(uid)
        device = await disks.make(uid, record.spec.resources.workspace_bytes, *user)
        usage = await disks.usage(uid)
        # The workspace itself is an entry and has its inode already.
        if usage is not None and held.manifest.entries - 1 > usage.free_inodes:
            raise _too_large(f"{held.manifest.entries} entries, for {usage.free_inodes} inodes")
        await self._judged(archiver.unpack(device, held.folder, user, _bounds(record)))

    async def _fill_memory(self, record: SandboxRecord, held: _Held) -> None:
        try:
            async with asyncio.timeout(FILL_SECONDS):
                code = await self._feed_tar(record, held.folder / CONTENT)
                # Some tars make links last, and so touch folders that they had finished.
                folders = held.aside / archiver.FOLDERS
                code = code or await self._feed_tar(record, folders)
        except TimeoutError:
            raise CannotRestore(
                f"it was not loaded within {FILL_SECONDS:.0f} s", reason=reasons.START_FAILED
            ) from None
        if not code:
            return
        needed = held.manifest.size_bytes + _PAGE * held.manifest.entries
        if needed > record.spec.resources.workspace_bytes:
            raise _too_large(f"up to {needed} bytes in memory")
        raise CannotRestore(
            f"the image's tar could not load it (code {code})", reason=reasons.START_FAILED
        )

    async def _feed_tar(self, record: SandboxRecord, content: Path) -> int:
        engine = self._context.engine
        async with engine.exec(
            record.container_name,
            ("/bin/sh", "-c", _UNPACK),
            user=record.spec.user,
            working_dir="/",
            stdin=True,
        ) as running:
            # Both at once: a tar that ends early reads no more, and its output alone tells its end.
            feeder = asyncio.create_task(_feed(running, content))
            try:
                async for _ in running.output():
                    pass
            finally:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)
            return await exit_code(engine, running.id)

    async def _judged(self, work: Coroutine[Any, Any, object]) -> None:
        """What a helper has against it, as an outcome."""
        try:
            async with self._context.archives:
                await work
        except Unfit as error:
            if error.reason in _TOO_LARGE:
                raise _too_large("what is in it") from None
            raise _invalid(error.message) from None

    async def drop(self, uid: str) -> None:
        """It has been loaded, or never will be."""
        self._asked.pop(uid, None)
        await self._let_go(uid)

    async def close(self) -> None:
        """Let go of everything."""
        for uid in list(self._held):
            await self._let_go(uid)

    async def _let_go(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            await held.stack.aclose()


async def _feed(running: ExecStream, content: Path) -> None:
    with content.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            await running.write(piece)
    await running.close_stdin()


def _restore(record: SandboxRecord) -> Restore:
    assert record.spec.restore is not None
    return record.spec.restore


def _bounds(record: SandboxRecord) -> Bounds:
    size = record.spec.resources.workspace_bytes
    return Bounds(size_bytes=size, file_bytes=size, seconds=FILL_SECONDS)


def _checked(folder: Path, record: SandboxRecord) -> Manifest:
    """The manifest, once it and the entries are what the digests say and fit the workspace."""
    restore = _restore(record)
    with (folder / MANIFEST).open("rb") as file:
        raw = file.read(MAX_MANIFEST_BYTES + 1)
    _require(names.digest(raw) == restore.manifest_digest, "the manifest is not the one named")
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError:
        raise _invalid("the manifest is of a version or form that is not known here") from None
    _require(manifest.to_json() == raw, "the manifest holds what this version does not know")
    _require(manifest.checkpoint_uid == restore.checkpoint_uid, "it is another Checkpoint's")
    _require(manifest.content_digest == restore.content_digest, "it names another content")
    if manifest.namespace != record.namespace:
        # Not a word about what other namespaces have.
        raise CannotRestore(
            f"no Checkpoint {restore.checkpoint_uid} of this namespace",
            reason=reasons.CHECKPOINT_NOT_FOUND,
        )
    size = record.spec.resources.workspace_bytes
    if manifest.size_bytes > size:
        raise _too_large(f"{manifest.size_bytes} bytes, for a workspace of {size}")
    if manifest.entries > archiver.MOST_ENTRIES:
        raise _too_large(f"{manifest.entries} entries")
    sizes = tuple((folder / name).stat().st_size for name in (ENTRIES, CONTENT))
    told = (manifest.entries_bytes, manifest.content_bytes)
    _require(sizes == told, "entries or content are cut short or go on")
    with (folder / ENTRIES).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _require(f"sha256:{digest}" == manifest.content_digest, "the entries are not those named")
    return manifest


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _invalid(otherwise)


def _invalid(why: str) -> CannotRestore:
    return CannotRestore(f"nothing was restored: {why}", reason=reasons.CHECKPOINT_INVALID)


def _too_large(what: str) -> CannotRestore:
    return CannotRestore(
        f"the Checkpoint does not fit into the workspace: {what}",
        reason=reasons.CHECKPOINT_TOO_LARGE,
    )
