"""What kind of file system a folder is on: statfs(2), which Python does not wrap."""

import ctypes
import os
from pathlib import Path

from isolet.base import errors

TMPFS = 0x01021994

LOCAL = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0x794C7630: "overlayfs",
    TMPFS: "tmpfs",
    0x858458F6: "ramfs",
    0x3153464A: "jfs",
    0x52654973: "reiserfs",
    0x3434: "nilfs",
}
"""Kinds that live in this machine alone, so that their locks and syncs mean what they say."""

SHARED = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x65735546: "fuse",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
}
"""Kinds whose locks or syncs are somebody else's promise. FUSE covers virtiofs too."""

# struct statfs is 120 bytes on 64-bit Linux and begins with f_type, a long; the rest is not read.
_ROOM = 512


def magic(folder: Path) -> int:
    """The f_type of the file system that holds `folder`."""
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(_ROOM)
    if libc.statfs(os.fsencode(folder), room) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(folder))
    return ctypes.c_long.from_buffer(room).value & 0xFFFFFFFF


def require_local(folder: Path, found: int) -> None:
    """Refuse a folder on a file system that is not known to be local.

    Raises:
        Refused: `found` is a network kind, or one that nobody has vouched for.
    """
    if found in LOCAL:
        return
    kind = SHARED.get(found, f"of unknown kind {found:#x}")
    raise errors.Refused(
        f"{folder} is on a file system ({kind}) that is not known to be local; locks and syncs "
        "cannot be trusted there: choose a folder on a local disk",
        reason="NotLocal",
    )
