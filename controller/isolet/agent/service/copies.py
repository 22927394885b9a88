"""Where a workspace comes from: a folder with the three files of a Checkpoint, while it is held."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from isolet.agent.workspace.checkpoints import CheckpointFolders
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import Outcome
from isolet.wire.restore import Restore, RestoreFrom


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


class LocalCopies:
    """The copies on this node."""

    def __init__(self, folders: CheckpointFolders) -> None:
        self._folders = folders

    def is_here(self, checkpoint_uid: str) -> bool:
        """See `Copies`."""
        return self._folders.is_whole(checkpoint_uid)

    @asynccontextmanager
    async def fetch(self, restore: Restore, source: RestoreFrom | None) -> AsyncIterator[Path]:
        """See `Copies`."""
        uid = restore.checkpoint_uid
        if not self.is_here(uid):
            raise CannotRestore(
                f"no copy of Checkpoint {uid} lies on this node",
                reason=reasons.CHECKPOINT_NOT_FOUND,
            )
        with self._folders.reading(uid):
            yield self._folders.folder(uid)
