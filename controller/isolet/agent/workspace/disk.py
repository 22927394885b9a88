"""Disk workspaces: an ext4 image on a loop device, its blocks reserved when it is made.

The identity of a disk is its image file below the root. The device is looked up, and checked
against the file, at every use: loop numbers are reused and do not survive a reboot. An image is
built aside and moved into place when it is whole, so one that is in place can be adopted.

    <root>/making/<uid>.img   being built; worth nothing after a crash
    <root>/ready/<uid>.img    whole
    <root>/probe/             the disk of `usable`, for as long as it takes
"""

import asyncio
import ctypes
import errno
import os
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from isolet.agent.workspace import commands, ext4, loops
from isolet.base import errors, statfs
from isolet.base.wholefile import to_disk

NODE_STORAGE_FULL = "NodeStorageFull"
"""The same word as in `isolet.plan.reasons`, which this package may not import."""

MINIMUM_BYTES = 2 << 20

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_BLOCK = 4096
_TOOL_SECONDS = 60.0
_SETTLE_SECONDS = 2.0
_ATTACH_SECONDS = 5.0
_LONGEST_ATTACH_PAUSE_SECONDS = 0.02
"""Between two tries, chosen by chance. Of three agents that bind and let go all the time, 7 of 100
probes found others faster 32 times in a row without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """A disk that is there, whole or not."""

    uid: str
    size_bytes: int
    device: str | None
    made_at: float
    """Wall time of the file, in seconds: what a grace for strays is measured from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Room on the file system that holds the images."""

    total_bytes: int
    free_bytes: int
    """What disks may still take: the part kept free for others is taken off."""


def volume_options(device: str) -> Mapping[str, str]:
    """Options of the engine's `local` volume over this device.

    There is no `noexec`: under gVisor it does not hold on a volume (a script runs all the same), so
    it is not pretended.
    """
    return {"type": "ext4", "device": device, "o": "nosuid,nodev"}


class DiskWorkspaces:
    """The disks below `root`. One agent at a time (the store's lock sees to that)."""

    def __init__(self, root: Path, *, keep_free_bytes: int = 64 << 20) -> None:
        self._root = root.resolve()  # as the kernel spells the path of a backing file
        self._keep_free = keep_free_bytes
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._attaching = asyncio.Lock()

    async def prepare(self) -> None:
        """Make the folders and throw away what a crash left half made. Once, at the start.

        Raises:
            Refused: the root is not on a local file system.
        """
        for name in ("", "ready", "making", "probe"):
            folder = self._root / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        statfs.require_local(self._root, statfs.magic(self._root))
        for leftover in (self._root / "making").iterdir():
            leftover.unlink()
        for leftover in (self._root / "probe").iterdir():
            with suppress(errors.IsoletError):
                await self._remove(leftover)

    async def make(self, uid: str, size_bytes: int, user: int, group: int) -> str:
        """The device of this disk, which is made if it is not there. May be repeated.

        Raises:
            Unavailable: the file system is full (`NodeStorageFull`; nothing is left behind), or
                the machine's tools or loop devices fail.
            Conflict: it is there with another size.
        """
        image = self._image(uid)
        size = -(-max(size_bytes, MINIMUM_BYTES) // _BLOCK) * _BLOCK
        async with self._lock(uid):
            if not image.exists():
                await self._build(image, size, user, group)
            elif image.stat().st_size != size:
                raise errors.Conflict(
                    f"disk {uid} is there with {image.stat().st_size} bytes, not {size}"
                )
            return await self._attached(image)

    async def device_of(self, uid: str) -> str | None:
        """The device that holds this disk now; None when it is not attached or not there."""
        return await asyncio.to_thread(loops.find, self._image(uid))

    async def release(self, uid: str) -> None:
        """Detach and delete; returns once both are confirmed. Gone is not an error.

        Raises:
            Conflict: it is still mounted (`DiskInUse`); nothing was changed.
            Unavailable: the device was not let go in time; the image is kept.
        """
        image = self._image(uid)
        async with self._lock(uid):
            await self._remove(image)
            (self._root / "making" / image.name).unlink(missing_ok=True)

    async def list(self) -> Sequence[Disk]:
        """All disks: whole ones, half made ones, and devices whose image was deleted."""
        return await asyncio.to_thread(self._list)

    async def usage(self, uid: str) -> ext4.Usage | None:
        """How full the disk is now, mounted or not; None when it is not there."""
        image = self._image(uid)
        device = await self.device_of(uid)
        if device is None and not image.exists():
            return None
        return await asyncio.to_thread(ext4.usage, device or str(image))

    async def is_full(self, uid: str) -> bool:
        """Whether the disk has no room or no inodes left. A disk that is gone is not full.

        Evidence, not proof: that the program failed for it is for the caller to say, or not.
        """
        usage = await self.usage(uid)
        return usage is not None and usage.full

    def space(self) -> Space:
        """Room for disks on the node."""
        found = os.statvfs(self._root)
        return Space(
            total_bytes=found.f_blocks * found.f_frsize,
            free_bytes=max(0, found.f_bavail * found.f_frsize - self._keep_free),
        )

    async def usable(self) -> str | None:
        """Make and release a small disk; None when that works, else why not."""
        image = self._root / "probe" / f"{secrets.token_hex(8)}.img"
        try:
            try:
                await self._build(image, MINIMUM_BYTES, 65532, 65532)
                device = await self._attached(image)
                usage = await asyncio.to_thread(ext4.usage, device)
            finally:
                await self._remove(image)
        except errors.IsoletError as error:
            return error.message
        except OSError as error:
            return f"{self._root}: {error.strerror}"
        return None if not usage.full else "a new disk has no room"

    async def _build(self, image: Path, size: int, user: int, group: int) -> None:
        """Make the image aside, then move it into place."""
        aside = self._root / "making" / image.name
        try:
            await asyncio.to_thread(self._reserve, aside, size)
            await self._format(aside, user, group)
            await asyncio.to_thread(_move, aside, image)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def _reserve(self, aside: Path, size: int) -> None:
        """An image with all its blocks, so that a full node says so now and not as an I/O error."""
        if self.space().free_bytes < size:
            raise _no_room(self._root, size)
        aside.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(aside, flags, 0o600)
        try:
            _fallocate(descriptor, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise _no_room(self._root, size) from error
            raise errors.Unavailable(
                f"{self._root}: blocks cannot be reserved there ({error.strerror})"
            ) from error
        finally:
            os.close(descriptor)

    async def _format(self, aside: Path, user: int, group: int) -> None:
        """An empty file system whose root folder is the sandbox user's.

        `nodiscard`, or mkfs would give the reserved blocks back; lost+found goes because the tenant
        would see a folder in its workspace that it can neither read nor remove.
        """
        extended = f"lazy_itable_init=1,nodiscard,root_owner={user}:{group}"
        options = ["-q", "-m0", "-O", "^has_journal", "-E", extended]
        await commands.run(["mkfs.ext4", *options, str(aside)], timeout=_TOOL_SECONDS)
        removal = ["debugfs", "-w", "-R", "rmdir lost+found", str(aside)]
        await commands.run(removal, timeout=_TOOL_SECONDS)

    async def _attached(self, image: Path) -> str:
        """The image's device, bound now if it is not. One at a time, so never two for one image."""
        loop = asyncio.get_running_loop()
        async with self._attaching:
            until = loop.time() + _ATTACH_SECONDS
            while (device := await asyncio.to_thread(_found_or_attached, image)) is None:
                if loop.time() > until:
                    raise errors.Unavailable(f"no loop device for {image.name}: others are faster")
                await asyncio.sleep(random.uniform(0, _LONGEST_ATTACH_PAUSE_SECONDS))
            return device

    async def _remove(self, image: Path) -> None:
        """Detach, confirm, delete."""
        await asyncio.to_thread(_detach_all, image)
        await self._confirm_detached(image)
        image.unlink(missing_ok=True)

    async def _confirm_detached(self, image: Path) -> None:
        """Wait until no device holds the image (one that was open elsewhere lets go later)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLE_SECONDS
        while (device := await asyncio.to_thread(loops.find, image)) is not None:
            if loop.time() > until:
                raise errors.Unavailable(f"{device} still holds {image.name}", reason="DiskInUse")
            await asyncio.sleep(0.02)

    def _list(self) -> Sequence[Disk]:
        """Read both folders and the kernel's list."""
        found: dict[str, Disk] = {}
        for folder in ("making", "ready"):
            for path in sorted((self._root / folder).glob("*.img")):
                with suppress(FileNotFoundError):
                    at = path.stat()
                    device = loops.find(path)
                    found[path.stem] = Disk(
                        uid=path.stem, size_bytes=at.st_size, device=device, made_at=at.st_mtime
                    )
        for device, text in loops.bound():
            path = Path(text.removesuffix(" (deleted)"))
            if path.parent == self._root / "ready" and path.stem not in found:
                found[path.stem] = Disk(uid=path.stem, size_bytes=0, device=device, made_at=0.0)
        return tuple(found[uid] for uid in sorted(found))

    def _image(self, uid: str) -> Path:
        """Where the image of this uid lies; a uid is never a path of its own."""
        if not _UID.fullmatch(uid):
            raise errors.Invalid(f"uid {uid!r}")
        return self._root / "ready" / f"{uid}.img"

    def _lock(self, uid: str) -> asyncio.Lock:
        """One change at a time for each disk."""
        lock = self._locks.get(uid)
        if lock is None:
            lock = self._locks[uid] = asyncio.Lock()
        return lock


def _found_or_attached(image: Path) -> str | None:
    """Blocks. None: somebody else took the device, try again.

    Direct where the blocks above are as large as those below, or larger. A write of a part of a
    block below waits for its other parts. Small disks have blocks of 1 KiB (mke2fs.conf), so that
    more small files fit.
    """
    if (found := loops.find(image)) is not None:
        return found
    below = os.statvfs(image).f_bsize
    return loops.attach(image, direct=ext4.block_bytes(str(image)) >= below)


def _no_room(root: Path, size: int) -> errors.Unavailable:
    """The error of a node that cannot take another disk."""
    return errors.Unavailable(
        f"{root} has no room for a disk of {size} bytes",
        reason=NODE_STORAGE_FULL,
        retry_after=10.0,
    )


def _detach_all(image: Path) -> None:
    """Unbind what holds the image, or a deleted file of its path."""
    while (device := loops.find(image)) is not None:
        at = image.stat()
        loops.detach(device, (at.st_dev, at.st_ino))
        if loops.find(image) == device:  # open elsewhere: the kernel lets go when that is closed
            return
    if (orphan := loops.orphaned(image)) is not None:
        loops.detach(orphan, None)


def _move(aside: Path, image: Path) -> None:
    """Into place, on disk before it can be seen there: after a crash it is whole or not there."""
    to_disk(aside)
    aside.rename(image)


def _fallocate(descriptor: int, size: int) -> None:
    """fallocate(2) itself: Python's posix_fallocate writes zeros where it is not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
