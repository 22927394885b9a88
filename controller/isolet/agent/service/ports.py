"""The host's facilities as the service needs them; `agent.workspace` has the real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from isolet.agent.workspace.disk import Disk
from isolet.agent.workspace.ext4 import Usage
from isolet.agent.workspace.mirrors import Remote
from isolet.agent.workspace.trees import Bounds, Exported


class Disks(Protocol):
    """Bounded workspaces on disk."""

    async def make(self, uid: str, size_bytes: int, user: int, group: int) -> str:
        """The block device of `uid`'s workspace, made if it is not there.

        Raises:
            Unavailable: the host has no room (reason `NodeStorageFull`) or no loop device.
        """
        ...

    async def device_of(self, uid: str) -> str | None:
        """The device whose backing file is `uid`'s image now, or None."""
        ...

    async def release(self, uid: str) -> None:
        """Detach and delete; gone is not an error. Raises Unavailable while it is in use."""
        ...

    async def usage(self, uid: str) -> Usage | None:
        """How full it is; None when it is not there."""
        ...

    async def is_full(self, uid: str) -> bool:
        """Whether no block or no inode is free in it."""
        ...

    async def list(self) -> Sequence[Disk]:
        """All that are here, whole or not."""
        ...

    async def usable(self) -> str | None:
        """None if a workspace could be made and released just now, else why not."""
        ...


class Trees(Protocol):
    """Git trees on their way into sandboxes, each a file in a folder that only one of them has."""

    def folder(self, uid: str) -> Path:
        """Path of `uid`'s folder, made if it is not there."""
        ...

    def is_ready(self, uid: str) -> bool:
        """Whether `uid`'s tree is there, whole."""
        ...

    def list(self) -> Sequence[str]:
        """The uids of which something is here."""
        ...

    def unpacked(self, uid: str) -> None:
        """Drop the tree; its folder stays."""
        ...

    def remove(self, uid: str) -> None:
        """Drop all of it; gone is not an error."""
        ...

    async def usable(self) -> str | None:
        """None if Git can be run here, else why not and what to do."""
        ...

    async def resolve(self, repository: str, revision: str, *, seconds: float) -> str:
        """The full id of the commit that a revision names in the repository at this path.

        Raises:
            Refused: it names none or several, or the repository cannot be used; for good.
            Unavailable: it could not be found out.
        """
        ...

    async def export(self, uid: str, repository: str, commit: str, bounds: Bounds) -> Exported:
        """Have the tree of a commit at hand, whole or not at all.

        Raises:
            Refused: it is over its bounds, or has what no workspace may hold; for good.
            Unavailable: it could not be read, or there is no room for it.
        """
        ...


class Mirrors(Protocol):
    """Mirrors of Git repositories that lie elsewhere."""

    async def path(self, remote: Remote, *, fresh: bool, seconds: float) -> str:
        """Where the mirror lies; fetched just now where it is missing or, for `fresh`, too old.

        Raises:
            Refused: it cannot be fetched (`RepositoryUnavailable`).
        """
        ...


class Launches(Protocol):
    """Folders on host memory that carry a launch into a sandbox, mounted read-only."""

    def folder(self, uid: str) -> Path:
        """Path of `uid`'s folder, made if it is not there."""
        ...

    def write(self, uid: str, name: str, content: bytes) -> Path:
        """Put a file into it, whole or not at all."""
        ...

    def hand_over(self, slot: str, uid: str) -> None:
        """Give a slot's folder to `uid`, under whose id it is from then on."""
        ...

    def remove_file(self, uid: str, name: str) -> None:
        """Take the file away; gone is not an error."""
        ...

    def remove(self, uid: str) -> None:
        """Remove the folder; gone is not an error."""
        ...

    def list(self) -> Sequence[str]:
        """The uids that have a folder."""
        ...
