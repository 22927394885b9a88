"""The host's facilities as the service needs them; `agent.workspace` has the real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from isolet.agent.workspace.disk import Disk
from isolet.agent.workspace.ext4 import Usage


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


class Launches(Protocol):
    """Folders on host memory that carry a launch into a sandbox, mounted read-only."""

    def folder(self, uid: str) -> Path:
        """Path of `uid`'s folder, made if it is not there."""
        ...

    def write(self, uid: str, name: str, content: bytes) -> Path:
        """Put a file into it, whole or not at all."""
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
