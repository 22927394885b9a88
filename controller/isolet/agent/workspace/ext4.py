"""How full an ext4 file system is, read from its own tables; it need not be mounted.

While it is mounted the superblock on disk is out of date. The group descriptors are not (the kernel
changes them in the device's own cache, which a read of the device returns), but lack what is
written and has no blocks yet; so a mount that we can see is asked instead.
"""

import os
import re
import stat
import struct
from dataclasses import dataclass

from isolet.base import errors

_SUPERBLOCK_AT = 1024
_MAGIC = 0xEF53
_64BIT = 0x80
_META_BG = 0x10
_EXTENTS = 0x40

# The kernel keeps back a fiftieth of the blocks, at most this many, for its own tables.
_MOST_RESERVED = 4096

# A write that finds too little room for all of its (large) page fails whole and gives back what it
# had reserved: 100 blocks of 262144 were seen to be left after ENOSPC.
_NEARLY_NONE_BYTES = 2 << 20
_NEARLY_NONE_SHARE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Room in a file system."""

    total_bytes: int
    free_bytes: int
    """What a program could still write."""
    total_inodes: int
    free_inodes: int

    @property
    def full(self) -> bool:
        """Whether no file can be made, or nothing worth mentioning written."""
        nearly_none = min(_NEARLY_NONE_BYTES, self.total_bytes // _NEARLY_NONE_SHARE)
        return self.free_bytes < nearly_none or self.free_inodes == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Super:
    """What is used of the superblock."""

    inodes: int
    blocks: int
    kept: int
    first_block: int
    block_size: int
    per_group: int
    incompat: int
    descriptor_size: int


def usage(path: str) -> Usage:
    """Usage of the file system in an image or a device, by its mount if we see one.

    Raises:
        Unavailable: see `tables`.
    """
    try:
        mountpoint = _mountpoint(path)
        if mountpoint is None:
            return tables(path)
        found = os.statvfs(mountpoint)
    except OSError as error:
        raise errors.Unavailable(f"{path}: {error.strerror}") from error
    return Usage(
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        total_inodes=found.f_files,
        free_inodes=found.f_ffree,
    )


def block_bytes(path: str) -> int:
    """Size of a block of the file system in an image.

    Raises:
        Unavailable: see `tables`.
    """
    try:
        with open(path, "rb") as file:
            file.seek(_SUPERBLOCK_AT)
            return _superblock(file.read(1024), path).block_size
    except OSError as error:
        raise errors.Unavailable(f"{path}: {error.strerror}") from error


def tables(path: str) -> Usage:
    """Usage by the file system's own tables.

    Raises:
        Unavailable: it cannot be read, or is no ext4 that we make.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.Unavailable(f"{path}: {error.strerror}") from error
    try:
        found = _superblock(os.pread(descriptor, 1024, _SUPERBLOCK_AT), path)
        groups = -(-(found.blocks - found.first_block) // found.per_group)
        at = (found.first_block + 1) * found.block_size
        table = os.pread(descriptor, groups * found.descriptor_size, at)
    except OSError as error:
        raise errors.Unavailable(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    free_blocks, free_inodes = _free(table, found.descriptor_size)
    available = max(0, free_blocks - found.kept)
    return Usage(
        total_bytes=found.blocks * found.block_size,
        free_bytes=available * found.block_size,
        total_inodes=found.inodes,
        free_inodes=free_inodes,
    )


def _mountpoint(path: str) -> str | None:
    """Where a device is mounted in our mount namespace."""
    at = os.stat(path)
    if not stat.S_ISBLK(at.st_mode):
        return None
    number = f"{os.major(at.st_rdev)}:{os.minor(at.st_rdev)}"
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            words = line.split()
            if words[2] == number.encode():
                # Blanks and the like are written as octal escapes.
                return os.fsdecode(re.sub(rb"\\([0-7]{3})", _unescaped, words[4]))
    return None


def _unescaped(match: re.Match[bytes]) -> bytes:
    """The byte of an octal escape."""
    return bytes([int(match.group(1), 8)])


def _superblock(raw: bytes, path: str) -> _Super:
    """Read the superblock; sizes are checked, since a disk may have been damaged."""
    if len(raw) < 1024 or struct.unpack_from("<H", raw, 0x38)[0] != _MAGIC:
        raise errors.Unavailable(f"{path} holds no ext4 file system")
    inodes, low, reserved = struct.unpack_from("<III", raw, 0)
    first_block, log_size = struct.unpack_from("<II", raw, 0x14)
    (per_group,) = struct.unpack_from("<I", raw, 0x20)
    (incompat,) = struct.unpack_from("<I", raw, 0x60)
    (size,) = struct.unpack_from("<H", raw, 0xFE)
    wide = bool(incompat & _64BIT)
    (high,) = struct.unpack_from("<I", raw, 0x150) if wide else (0,)
    blocks = low | high << 32
    if incompat & _META_BG or log_size > 6 or not per_group or (wide and not 64 <= size <= 1024):
        raise errors.Unavailable(f"{path} holds an ext4 file system of a form that is not ours")
    kept = min(blocks // 50, _MOST_RESERVED) if incompat & _EXTENTS else 0
    return _Super(
        inodes=inodes,
        blocks=blocks,
        kept=kept + reserved,
        first_block=first_block,
        block_size=1024 << log_size,
        per_group=per_group,
        incompat=incompat,
        descriptor_size=size if wide else 32,
    )


def _free(table: bytes, size: int) -> tuple[int, int]:
    """Free blocks and inodes, summed over the group descriptors."""
    blocks = inodes = 0
    for at in range(0, len(table) - size + 1, size):
        low_blocks, low_inodes = struct.unpack_from("<HH", table, at + 0x0C)
        high_blocks, high_inodes = (0, 0)
        if size >= 64:
            high_blocks, high_inodes = struct.unpack_from("<HH", table, at + 0x2C)
        blocks += low_blocks | high_blocks << 16
        inodes += low_inodes | high_inodes << 16
    return blocks, inodes
