"""Where a workspace comes from: a folder with the three files of a Checkpoint, while it is held."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from isolet.agent.transfer.objectstore import ObjectStore
from isolet.agent.transfer.peer import PeerSource
from isolet.agent.transfer.receive import Pace, Source, Unusable, receive
from isolet.agent.workspace.checkpoints import PARTS, CheckpointFolders
from isolet.base import errors, log, tls
from isolet.plan import reasons
from isolet.wire.execution import Outcome
from isolet.wire.restore import Restore, RestoreFrom

_log = log.get("agent.copies")


class CannotRestore(errors.Refused):
    """The workspace is not restored; what stands against it is an outcome."""

    @property
    def outcome(self) -> Outcome:
        """How an Execution ends that was to begin so."""
        return Outcome(succeeded=False, reason=self.reason, message=self.message)


class Copies(Protocol):
    """Finds a copy. It is believed nothing: whoever asked checks what it gets."""

    def is_here(self, checkpoint_uid: str) -> bool:
        """Whether a copy lies on this node, so that nobody needs to say where it is."""
        ...

    def fetch(
        self, restore: Restore, source: RestoreFrom | None
    ) -> AbstractAsyncContextManager[Path]:
        """A folder with `manifest`, `entries` and `content`, which stay for as long as it is held.

        Raises:
            CannotRestore: nobody has one (`CheckpointNotFound`), or who has cannot be reached
                (`CheckpointUnavailable`).
        """
        ...


class NearestCopies:
    """The copies on this node, then those of the node that is named, then those in the store."""

    def __init__(
        self,
        folders: CheckpointFolders,
        *,
        files: tls.TLSFiles | None = None,
        store: ObjectStore | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`files`: this node's certificate; without it no other node is asked."""
        self._folders = folders
        self._files = files
        self._store = store
        self._pace = pace

    def is_here(self, checkpoint_uid: str) -> bool:
        """See `Copies`."""
        return self._folders.is_whole(checkpoint_uid)

    @asynccontextmanager
    async def fetch(self, restore: Restore, source: RestoreFrom | None) -> AsyncIterator[Path]:
        """See `Copies`. What comes from elsewhere is gone again when it is let go of."""
        uid = restore.checkpoint_uid
        if self.is_here(uid):
            with self._folders.reading(uid):
                yield self._folders.folder(uid)
            return
        aside = f"fetch-{secrets.token_hex(8)}"
        try:
            async with AsyncExitStack() as stack:
                sources = await self._sources(stack, uid, source or RestoreFrom())
                yield await self._bring(sources, restore, aside)
        finally:
            await asyncio.to_thread(self._folders.drop_aside, aside)

    async def _sources(
        self, stack: AsyncExitStack, uid: str, told: RestoreFrom
    ) -> Sequence[Source | errors.IsoletError]:
        """Who may have it, in the order in which they are asked, or why one cannot be."""
        found: list[Source | errors.IsoletError] = []
        if told.peer is not None:
            try:
                found.append(await self._peer(stack, uid, told))
            except errors.IsoletError as error:
                found.append(error)
        if told.in_store is not None:
            if self._store is None:
                found.append(errors.Unavailable("this node has no object store"))
                return found
            try:
                found.append(self._store.source(told.in_store))
            except errors.NotFound as error:
                found.append(error)
        return found

    async def _peer(self, stack: AsyncExitStack, uid: str, told: RestoreFrom) -> Source:
        assert told.peer is not None
        if self._files is None:
            raise errors.Unavailable("this node has no certificate to ask another one with")
        return await stack.enter_async_context(PeerSource.open(told.peer, uid, self._files))

    async def _bring(
        self, sources: Sequence[Source | errors.IsoletError], restore: Restore, aside: str
    ) -> Path:
        failures: list[errors.IsoletError] = []
        for source in sources:
            if isinstance(source, errors.IsoletError):
                failures.append(source)
                continue
            folder = self._folders.begin(aside)
            try:
                room = self._folders.room_bytes()
                await receive(source, restore, folder, room_bytes=room, pace=self._pace)
            except errors.IsoletError as error:
                failures.append(error)
                _log.warning("no copy", extra={"source": source.name, "reason": error.reason})
                continue
            except OSError as error:  # Not the source's: it would be that of `errors`.
                failures.append(
                    errors.Unavailable(f"it cannot be kept on this node: {error.strerror}")
                )
                continue
            for name in PARTS:
                (folder / name).chmod(0o444)
            return folder
        raise _cannot(restore.checkpoint_uid, failures)


def _cannot(uid: str, failures: Sequence[errors.IsoletError]) -> CannotRestore:
    """Why nobody brought it: what is wrong with a copy, else what may pass, else absence."""
    said = "; ".join(error.message for error in failures)
    for error in failures:
        if isinstance(error, Unusable):
            return CannotRestore(f"nothing was restored: {said}", reason=error.reason)
    if any(not isinstance(error, errors.NotFound) for error in failures):
        return CannotRestore(
            f"no copy of Checkpoint {uid} can be reached: {said}",
            reason=reasons.CHECKPOINT_UNAVAILABLE,
        )
    where = f" ({said})" if said else ""
    return CannotRestore(
        f"no copy of Checkpoint {uid} lies on this node{where}",
        reason=reasons.CHECKPOINT_NOT_FOUND,
    )
