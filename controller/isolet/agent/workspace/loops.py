"""Loop devices by their ioctls: attach an image, find its device, detach it.

A loop number means nothing by itself: the kernel gives it to another image as soon as it is free.
What a device holds is read from the device (file system and inode of its backing file) over a
descriptor that keeps it bound meanwhile, so that what was checked is what is acted on.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isolet.base import errors

_SYS_BLOCK = Path("/sys/block")
_DELETED = " (deleted)"

_LOOP_SET_FD = 0x4C00
_LOOP_CLR_FD = 0x4C01
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_SET_DIRECT_IO = 0x4C08
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82

_STATUS_BYTES = 232
_FLAGS_AT = 52
_CONFIG = struct.Struct(f"=II{_FLAGS_AT}xI{_STATUS_BYTES - _FLAGS_AT - 4}x64x")
_DIRECT_IO = 16


def attach(image: Path, *, direct: bool = False) -> str | None:
    """Bind a free loop device to the image; returns its path. The caller has looked for one first.

    None: somebody else was faster, try again. The kernel offers the same free device to all who
    ask, and offers one that is just being let go while it cannot be had.

    Args:
        image: the file.
        direct: read and write it past the node's page cache, which would keep each page of the
            file system above a second time. Where its file system cannot, it goes without.

    Raises:
        Unavailable: the machine gives no loop device.
    """
    try:
        descriptor = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise errors.Unavailable(f"{image}: {error.strerror}") from error
    try:
        device = _free_device()
        return device if _bind(device, descriptor, direct=direct) else None
    except OSError as error:
        raise errors.Unavailable(
            f"no loop device for {image.name}: {error.strerror} (is the loop module loaded and "
            "/dev the node's own?)"
        ) from error
    finally:
        os.close(descriptor)


def find(image: Path) -> str | None:
    """The loop device that holds this very file now, or None."""
    try:
        wanted = os.stat(image, follow_symlinks=False)
    except FileNotFoundError:
        return None
    for device, backing in bound():
        # The text is how we find it without opening other people's devices; the inode is the proof.
        if Path(backing).name == image.name and identity(device) == (wanted.st_dev, wanted.st_ino):
            return device
    return None


def orphaned(image: Path) -> str | None:
    """The loop device that holds a file of this path which has been deleted."""
    return next((device for device, text in bound() if text == f"{image}{_DELETED}"), None)


def bound() -> Iterator[tuple[str, str]]:
    """All bound loop devices and the text of their backing file."""
    for entry in sorted(_SYS_BLOCK.glob("loop*/loop/backing_file")):
        try:
            text = entry.read_text(errors="surrogateescape").rstrip("\n")
        except OSError:  # detached since the folder was read
            continue
        yield f"/dev/{entry.parent.parent.name}", text


def identity(device: str) -> tuple[int, int] | None:
    """(device, inode) of the file that backs a loop device; None if it is not bound."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _identity(descriptor)
    finally:
        os.close(descriptor)


def detach(device: str, wanted: tuple[int, int] | None) -> None:
    """Unbind the device if it still holds the wanted file; anything else is left alone.

    `wanted` None means a deleted file, whose identity nobody knows: the caller read its path.

    Raises:
        Conflict: it is mounted somewhere. Nothing was changed.
    """
    try:
        with _exclusive(device) as descriptor:
            held = _identity(descriptor)
            if held is None or (wanted is not None and held != wanted):
                return
            fcntl.ioctl(descriptor, _LOOP_CLR_FD, 0)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return
        if error.errno == errno.EBUSY:
            raise errors.Conflict(f"{device} is still mounted", reason="DiskInUse") from error
        raise errors.Unavailable(f"{device}: {error.strerror}") from error


@contextmanager
def _exclusive(device: str) -> Iterator[int]:
    """A descriptor that nobody can mount the device beside; EBUSY if it is mounted already."""
    descriptor = os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _free_device() -> str:
    """A device that was free a moment ago."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        return f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
    finally:
        os.close(control)


def _bind(device: str, image: int, *, direct: bool) -> bool:
    """Bind it; False if somebody else took the device first."""
    try:
        with _exclusive(device) as descriptor:
            try:
                flags = _DIRECT_IO if direct else 0
                fcntl.ioctl(descriptor, _LOOP_CONFIGURE, _CONFIG.pack(image, 0, flags))
            except OSError as error:
                if error.errno not in (errno.ENOTTY, errno.EINVAL):
                    raise
                _bind_before_5_8(descriptor, image, direct=direct)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _bind_before_5_8(device: int, image: int, *, direct: bool) -> None:
    """In two steps, on a Linux before 5.8."""
    fcntl.ioctl(device, _LOOP_SET_FD, image)
    if direct:
        with suppress(OSError):
            fcntl.ioctl(device, _LOOP_SET_DIRECT_IO, 1)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """(device, inode) of the backing file of an open loop device."""
    status = bytearray(_STATUS_BYTES)
    try:
        fcntl.ioctl(descriptor, _LOOP_GET_STATUS64, status)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    held: tuple[int, int] = struct.unpack_from("=QQ", status)
    return held
