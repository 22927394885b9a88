"""Copies of workspaces on the node: three files in a folder, which are whole or not there.

    <root>/aside/<uid>/    being written; worth nothing after a crash
    <root>/whole/<uid>/    manifest, entries and content, as their digests say

A copy is written aside, forced to disk and renamed. Its folder goes by a rename too, so what is
seen under a uid is never half of a copy.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isolet.base import errors
from isolet.base.wholefile import to_disk

MANIFEST, ENTRIES, CONTENT = "manifest", "entries", "content"
PARTS = (MANIFEST, ENTRIES, CONTENT)
"""Names of the files in the order in which they are read, as `isolet.wire.checkpoint.Part`."""

KEPT_FREE_BYTES = 256 << 20
"""Room on the node's disk that no copy takes: records and outputs need it."""

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class CheckpointFolders:
    """The copies below `root`. One agent at a time (the store's lock sees to that)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readers: Counter[str] = Counter()

    def prepare(self) -> None:
        """Make the folders and throw away what a crash left half made. Once, at the start."""
        for name in ("", "aside", "whole"):
            folder = self._root / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        for leftover in (self._root / "aside").iterdir():
            shutil.rmtree(leftover)

    def begin(self, uid: str) -> Path:
        """An empty folder to write the three files into."""
        self.drop_aside(uid)
        aside = self._aside(uid)
        aside.mkdir(mode=0o700)
        return aside

    def drop_aside(self, uid: str) -> None:
        """Take away what was being written; gone is not an error."""
        shutil.rmtree(self._aside(uid), ignore_errors=True)

    def keep(self, uid: str) -> None:
        """Force what was written to disk and move it into place. Blocks.

        Raises:
            OSError: it could not be; nothing is in place then.
        """
        aside = self._aside(uid)
        for name in PARTS:
            to_disk(aside / name)
        to_disk(aside)
        aside.rename(self._whole(uid))
        to_disk(self._root / "whole")

    def is_whole(self, uid: str) -> bool:
        """Whether there is a copy."""
        return self._whole(uid).is_dir()

    def part(self, uid: str, name: str) -> Path:
        """Where a file of a copy lies.

        Raises:
            NotFound: there is no copy.
        """
        if not self.is_whole(uid):
            raise errors.NotFound(f"no copy of Checkpoint {uid} lies on this node")
        return self._whole(uid) / name

    def remove(self, uid: str) -> None:
        """Take a copy away, and what was being written of it; gone is not an error. Blocks."""
        gone = self._root / "aside" / f".gone-{uid}"
        shutil.rmtree(gone, ignore_errors=True)
        try:
            self._whole(uid).rename(gone)
            to_disk(self._root / "whole")
        except FileNotFoundError:
            pass
        shutil.rmtree(gone, ignore_errors=True)
        self.drop_aside(uid)
        if gone.exists() or self._aside(uid).exists():
            raise errors.Unavailable(f"the copy of Checkpoint {uid} could not be removed")

    def folder(self, uid: str) -> Path:
        """The folder of a copy. Raises NotFound."""
        return self.part(uid, MANIFEST).parent

    def list(self) -> Sequence[str]:
        """The uids of all copies."""
        return tuple(sorted(p.name for p in (self._root / "whole").iterdir()))

    def made_at(self, uid: str) -> float:
        """Wall time of a copy, in seconds."""
        return self.part(uid, MANIFEST).stat().st_mtime

    def room_bytes(self) -> int:
        """How much may be written here; negative where there is no room for anything."""
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize - KEPT_FREE_BYTES

    @contextmanager
    def reading(self, uid: str) -> Iterator[None]:
        """Somebody reads the copy: it is not removed meanwhile."""
        self.part(uid, MANIFEST)
        self._readers[uid] += 1
        try:
            yield
        finally:
            self._readers[uid] -= 1

    def readers(self, uid: str) -> int:
        """How many read it now."""
        return self._readers[uid]

    def _aside(self, uid: str) -> Path:
        return self._root / "aside" / _checked(uid)

    def _whole(self, uid: str) -> Path:
        return self._root / "whole" / _checked(uid)


def _checked(uid: str) -> str:
    """A uid is never a path of its own."""
    if not _UID.fullmatch(uid):
        raise errors.Invalid(f"uid {uid!r}")
    return uid
