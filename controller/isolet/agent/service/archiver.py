"""Archives of workspaces, written and read by helpers without rights; none is parsed here.

A helper that reads a workspace is its sandbox's user and sees nothing of the node but that disk,
read-only, and a folder for what it writes. One that fills a workspace sees the archive read-only.
"""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolet.agent.archive import program
from isolet.agent.archive.entries import Figures
from isolet.agent.helper.spawn import Limits, Mount, Rights
from isolet.agent.workspace.checkpoints import CONTENT, ENTRIES
from isolet.base import errors

MOST_ENTRIES = 1 << 20
"""Files, folders and links of one workspace; a helper holds what it knows of each in memory."""

FOLDERS = "folders"

_OUT, _IN, _DISK = "/out", "/in", "/disk"
_SPOOL = "spool"
_MEMORY_BYTES = 4 << 30
"""Address space of a helper, of which it uses what the entries take."""

_PROCESSES = 1 << 14
"""The kernel counts all threads on the node of the sandbox's user, who may be a pod's user too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What one archive may come to."""

    size_bytes: int
    """Of all files in it together."""
    file_bytes: int
    """Of the files that are written, together: what the node still has room for."""
    seconds: float

    def limits(self) -> dict[str, int]:
        """As the program is told."""
        return {
            "entries": MOST_ENTRIES,
            "size_bytes": self.size_bytes,
            "written_bytes": self.file_bytes,
        }


async def pack(device: str, out: Path, user: tuple[int, int], bounds: Bounds) -> Figures:
    """Write the archive of a disk into folder `out`.

    Raises:
        Refused (of the archive): there is none of this disk; says why.
        Unavailable: the helper could not be run or took too long.
    """
    os.chown(out, *user)
    request = {"root": _DISK, "limits": bounds.limits(), **_places(_OUT)}
    mounts = (Mount(device, _DISK, kind="ext4"), Mount(str(out), _OUT, writable=True))
    figures = await program.ask(
        "pack", request, _rights(user, mounts, bounds), seconds=bounds.seconds
    )
    _take_over(out)
    return figures


async def normalise(
    pieces: AsyncIterator[bytes], out: Path, user: tuple[int, int], bounds: Bounds
) -> Figures:
    """Write the archive of a foreign tar stream into folder `out`, all of it the user's.

    Nothing in a sandbox can belong to anybody else, and not every tar can write every id. The rest
    is as in `pack`.
    """
    os.chown(out, *user)
    request = {
        "stream": 0,
        "aside": f"{_OUT}/{_SPOOL}",
        "owner": user,
        "limits": bounds.limits(),
        **_places(_OUT),
    }
    rights = _rights(user, (Mount(str(out), _OUT, writable=True),), bounds)
    async with aclosing(pieces) as stream:  # type: ignore[type-var]
        figures = await program.ask(
            "normalise", request, rights, seconds=bounds.seconds, stream=stream
        )
    (out / _SPOOL).unlink()
    _take_over(out)
    return figures


async def unpack(device: str, copy: Path, user: tuple[int, int], bounds: Bounds) -> Figures:
    """Fill an empty disk from the archive in folder `copy`, all of it the user's.

    Raises:
        Refused (of the archive): it is not what its entries say, or does not fit; the disk holds
            a part of it then.
        Unavailable: the helper could not be run or took too long; as above.
    """
    request = {"root": _DISK, "owner": user, "limits": bounds.limits(), **_places(_IN)}
    mounts = (Mount(device, _DISK, kind="ext4", writable=True), *_parts(copy))
    return await program.ask(
        "unpack", request, _rights(user, mounts, bounds), seconds=bounds.seconds
    )


async def verify(copy: Path, out: Path, user: tuple[int, int], bounds: Bounds) -> Figures:
    """Check the archive in folder `copy`, each file by its digest.

    In `out` is then what a tar reads after it to give folders their times (`archive.folders`).
    Raises as `unpack`.
    """
    os.chown(out, *user)
    request = {"folders": f"{_OUT}/{FOLDERS}", "limits": bounds.limits(), **_places(_IN)}
    mounts = (Mount(str(out), _OUT, writable=True), *_parts(copy))
    return await program.ask(
        "verify", request, _rights(user, mounts, bounds), seconds=bounds.seconds
    )


def _places(folder: str) -> dict[str, Any]:
    return {name: f"{folder}/{name}" for name in (ENTRIES, CONTENT)}


def _parts(copy: Path) -> tuple[Mount, ...]:
    """The two files alone: the folder is closed to helpers."""
    return tuple(Mount(str(copy / name), f"{_IN}/{name}") for name in (ENTRIES, CONTENT))


def _rights(user: tuple[int, int], mounts: tuple[Mount, ...], bounds: Bounds) -> Rights:
    limits = Limits(cpu=3600, address=_MEMORY_BYTES, file=bounds.file_bytes, processes=_PROCESSES)
    return Rights(user=user[0], group=user[1], mounts=mounts, limits=limits)


def _take_over(out: Path) -> None:
    """What a helper wrote becomes ours.

    The folder is closed to all others, so a helper that is shown a file is who may read it.
    """
    os.chown(out, os.geteuid(), os.getegid())
    for name in (ENTRIES, CONTENT):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(out / name, flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise errors.Unavailable(f"the helper left something else than a file as {name}")
            os.fchown(descriptor, os.geteuid(), os.getegid())
            os.fchmod(descriptor, 0o444)
        finally:
            os.close(descriptor)
