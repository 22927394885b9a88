"""Trees of odd files, what lies on a disk as a witness sees it, and archives in memory."""

import io
import os
import random
import stat
from pathlib import Path
from typing import Any

from isolet.agent.archive import copying
from isolet.agent.archive.entries import Figures, Owner
from isolet.agent.archive.pack import pack
from isolet.agent.archive.refusal import Limits
from isolet.agent.archive.unpack import Folder, Nowhere, unpack

ROOT = os.geteuid() == 0
"""Only root can make files of others, and read what has the mode 0000."""

NAMES = (
    b"a",
    b"b.txt",
    b"-rf",
    b"a b",
    b"two\nlines",
    b'quo"te\\',
    b"\xff\xfe",
    b"%41",
    b"~",
    b"@LongLink",
    "größe".encode(),
    b"x" * 99,
    b"y" * 100,
    b"z" * 101,
    b"n" * 255,
    b"...",
    b"a-",
    b"a0",
)
SIZES = (0, 1, 511, 512, 513, 5000, copying.SMALL, copying.SMALL + 1, copying.BUFFER + 7)


class Grower:
    """Makes one random tree."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files: list[bytes] = []

    def grow(self, root: Path, most: int = 40) -> None:
        """Fill an empty folder."""
        self._left = most
        self._fill(os.fsencode(root), 0)

    def _fill(self, folder: bytes, depth: int) -> None:
        for name in self.random.sample(NAMES, self.random.randint(0, 7)):
            if self._left <= 0 or len(folder) > 3000:
                break
            self._left -= 1
            self._make(folder + b"/" + name, depth)
        self._dress(folder, folder=True)

    def _make(self, path: bytes, depth: int) -> None:
        kind = self.random.choice(("file", "file", "file", "folder", "symlink", "hardlink"))
        if kind == "folder" and depth < 6:
            os.mkdir(path)
            self._fill(path, depth + 1)
        elif kind == "symlink":
            where = self.random.choice(
                (b"/etc/passwd", b"../..", b"a", b"\xff", b"t" * 101, b"u" * 4000)
            )
            os.symlink(where, path)
            os.utime(path, ns=self._times(), follow_symlinks=False)
        elif kind == "hardlink" and self.files:
            os.link(self.random.choice(self.files), path)
        else:
            self._file(path)

    def _file(self, path: bytes) -> None:
        size = self.random.choice(SIZES[:6] if self.random.random() < 0.9 else SIZES)
        with open(path, "xb") as file:
            file.write(self.random.randbytes(size))
        self.files.append(path)
        self._dress(path, folder=False)

    def _dress(self, path: bytes, *, folder: bool) -> None:
        if ROOT and self.random.random() < 0.3:
            owner = self.random.choice(((1000, 1000), (2097151, 2097152), (1718009175, 5)))
            os.chown(path, *owner)
        own = (0o700, 0o755, 0o1777, 0o2750) if folder else (0o644, 0o600, 0o755, 0o4755, 0o444)
        odd = (0o000, 0o555, 0o111) if ROOT else (0o555,)
        os.chmod(path, self.random.choice((*own, *odd)))
        os.utime(path, ns=self._times())

    def _times(self) -> tuple[int, int]:
        moments = (0, 1, -1, -1_500_000_001, 1_795_977_388_123_456_789, 8_589_934_592_000_000_000)
        moment = self.random.choice(moments)
        return moment, moment


def look(root: Path) -> dict[bytes, tuple[Any, ...]]:
    """Everything below a folder and itself, by name; hard links by the names they share."""
    found: dict[bytes, tuple[Any, ...]] = {}
    shared: dict[int, list[bytes]] = {}
    top = os.fsencode(root)
    paths = [top]
    for folder, folders, files in os.walk(top):
        paths += [os.path.join(folder, name) for name in (*folders, *files)]
    for path in paths:
        at, name = os.lstat(path), os.path.relpath(path, top)
        what: bytes | None = None
        if stat.S_ISLNK(at.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(at.st_mode):
            what = Path(os.fsdecode(path)).read_bytes()
            shared.setdefault(at.st_ino, []).append(name)
        found[name] = (oct(at.st_mode), at.st_uid, at.st_gid, at.st_mtime_ns, what, at.st_ino)
    return {name: (*f[:5], sorted(shared.get(f[5], ()))) for name, f in found.items()}


def packed(root: Path, limits: Limits | None = None) -> tuple[bytes, bytes, Figures]:
    """Entries, content and figures of a folder."""
    entries, content = io.BytesIO(), io.BytesIO()
    descriptor = os.open(root, os.O_RDONLY)
    try:
        figures = pack(descriptor, entries, content, limits or Limits())
    finally:
        os.close(descriptor)
    return entries.getvalue(), content.getvalue(), figures


def unpacked(entries: bytes, content: bytes, root: Path, owner: Owner | None = None) -> Figures:
    """Write an archive to a folder, which is made."""
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY)
    try:
        target = Folder(descriptor, owner)
        return unpack(io.BytesIO(entries), io.BytesIO(content), target, Limits())
    finally:
        os.close(descriptor)


def verified(entries: bytes, content: bytes, limits: Limits | None = None) -> Figures:
    """Check an archive."""
    return unpack(io.BytesIO(entries), io.BytesIO(content), Nowhere(), limits or Limits())
