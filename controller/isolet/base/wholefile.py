"""Files that are replaced whole: written aside, forced to disk where asked for, renamed into place.

Whoever opens the path sees the old file or the new one, never a part, and after a crash at any
instruction the same holds. What a crash may leave besides is the file aside, which the next write
of the same path throws away. How much a crash of the machine may undo is what `Sync` says.
"""

import contextlib
import os
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO


class Sync(Enum):
    """What is forced to disk."""

    NOTHING = auto()
    """Whole if the process dies. After a crash of the machine it may be empty or cut short."""
    CONTENT = auto()
    """Before the rename: after a crash of the machine, too, it is the old or the new, whole."""
    CONTENT_AND_NAME = auto()
    """The folder as well, after the rename: once the call has returned it is the new file."""


def write(path: Path, content: bytes, *, mode: int = 0o600, sync: Sync = Sync.CONTENT) -> None:
    """Replace `path` by a file with this content, as `writing` does. Blocks.

    Raises:
        OSError: as `writing`.
    """
    with writing(path, mode=mode, sync=sync) as file:
        file.write(content)


@contextlib.contextmanager
def writing(
    path: Path, *, aside: Path | None = None, mode: int = 0o600, sync: Sync = Sync.CONTENT
) -> Iterator[BinaryIO]:
    """A file to write to, which is in the place of `path` once the block has ended. Blocks.

    It is a new file: a link or a file that lies aside is removed and not written to, and its rights
    are `mode` less the umask from the first moment on. One writer of a path at a time.

    Args:
        path: what is replaced, a link at its last component included; its folder must exist.
        aside: where it is written, on the same file system; `.<name>.new` beside it if not given.
        mode: its rights, of which the block may make others.
        sync: what is forced to disk.

    Raises:
        OSError: it could not be written or moved: `path` is as it was and nothing lies aside. Only
            where the folder could not be forced to disk is the new file there.

    What the block raises goes on, and then too `path` is as it was and nothing lies aside.
    """
    aside = aside or path.with_name(f".{path.name}.new")
    try:
        with _fresh(aside, mode) as file:
            yield file
            file.flush()
            if sync is not Sync.NOTHING:
                os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):  # The first error is the one to tell of.
            aside.unlink()
        raise
    if sync is Sync.CONTENT_AND_NAME:
        to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Force a file or a folder, but not what is in it, to disk. Blocks.

    Raises:
        OSError: it could not be, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fresh(path: Path, mode: int) -> BinaryIO:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")
