"""Launch folders: one folder for each sandbox on a host tmpfs, mounted read-only in that one.

They hold env values and arguments, so they may lie in memory only and go with a reboot: where the
root is not on a tmpfs, one is mounted there. The root is closed to everyone but its owner; the
folders and files below it are readable because inside a sandbox they are the non-root user's, who
reaches no other folder.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from isolet.agent.workspace import commands
from isolet.base import errors, statfs, wholefile
from isolet.base.wholefile import Sync

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SIZE_BYTES = 256 << 20
"""Bound of the tmpfs: launches are removed once they have been read, so few lie there at a time."""

MOUNT_SECONDS = 10.0

_STAGING = ".staging"

NODE_STORAGE_FULL = "NodeStorageFull"
"""The same word as in `isolet.plan.reasons`, which this package may not import."""


class LaunchFolders:
    """The launch folders below `root`. All calls are short and in memory, so none is async."""

    def __init__(self, root: Path, magic: Callable[[Path], int] = statfs.magic) -> None:
        self._root = root
        self._magic = magic

    async def prepare(self) -> None:
        """Make the root, once, at the start; a tmpfs of an earlier agent is taken over.

        Raises:
            Refused: the root is a link, or no tmpfs after all.
            Unavailable: it is not on a tmpfs and none can be mounted.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.is_symlink():
            raise errors.Refused(f"launch folder {self._root} is a link: name the folder itself")
        if self._magic(self._root) != statfs.TMPFS:
            await self._mount()
        if self._magic(self._root) != statfs.TMPFS:
            raise errors.Refused(
                f"launch folder {self._root} is not on a tmpfs: it holds values that may not reach "
                "a disk; mount a tmpfs there",
                reason="NotInMemory",
            )
        self._root.chmod(0o700)
        shutil.rmtree(self._root / _STAGING, ignore_errors=True)
        (self._root / _STAGING).mkdir(mode=0o700)

    async def _mount(self) -> None:
        """Mount a tmpfs at the root; one that is never swapped out where the kernel has that."""
        options = f"size={SIZE_BYTES},mode=0700,nosuid,nodev,noexec"
        for extra in (",noswap", ""):
            argv = ("mount", "-t", "tmpfs", "-o", options + extra, "isolet", str(self._root))
            try:
                await commands.run(argv, timeout=MOUNT_SECONDS)
                return
            except errors.Unavailable:
                if not extra:
                    raise

    async def close(self) -> None:
        """Give the memory back, unless a sandbox has a folder of it, to which execs still write."""
        if not self.list() and self._root.is_mount():
            await commands.run(("umount", str(self._root)), timeout=MOUNT_SECONDS)

    def folder(self, uid: str) -> Path:
        """The folder of this sandbox, made if need be: the source of its bind mount."""
        path = self._path(uid)
        path.mkdir(mode=0o755, exist_ok=True)
        path.chmod(0o755)
        return path

    def hand_over(self, slot: str, uid: str) -> None:
        """Give a slot's folder, which its sandbox has mounted already, to `uid`.

        A mount is of the folder and not of its name. Done before is not an error.
        """
        with contextlib.suppress(FileNotFoundError):
            self._path(slot).rename(self._path(uid))

    def write(self, uid: str, name: str, content: bytes) -> Path:
        """Put a file into the folder: the sandbox sees all of it or none.

        Raises:
            Unavailable: the tmpfs is full (`NodeStorageFull`).
        """
        if not _NAME.fullmatch(name):
            raise errors.Invalid(f"launch file name {name!r}")
        target = self.folder(uid) / name
        staged = self._root / _STAGING / f"{uid}.{name}"
        try:
            with wholefile.writing(target, aside=staged, sync=Sync.NOTHING) as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o444)
        except OSError as error:
            raise errors.Unavailable(
                f"launch folder: {error.strerror}", reason=NODE_STORAGE_FULL
            ) from error
        return target

    def remove_file(self, uid: str, name: str) -> None:
        """Take one file away; gone is not an error."""
        if not _NAME.fullmatch(name):
            raise errors.Invalid(f"launch file name {name!r}")
        (self._path(uid) / name).unlink(missing_ok=True)

    def remove(self, uid: str) -> None:
        """Take the folder and all in it away; gone is not an error."""
        path = self._path(uid)
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            raise errors.Unavailable(f"launch folder of {uid} could not be removed")

    def list(self) -> Sequence[str]:
        """The uids that have a folder."""
        if not self._root.exists():
            return ()
        return tuple(sorted(p.name for p in self._root.iterdir() if _UID.fullmatch(p.name)))

    def _path(self, uid: str) -> Path:
        """The folder's place; a uid is never a path of its own."""
        if not _UID.fullmatch(uid):
            raise errors.Invalid(f"uid {uid!r}")
        return self._root / uid
