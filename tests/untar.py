"""Reads an archive with GNU tar, to judge archives that our own code has written."""

import os
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One entry as it lies on a file system after it was unpacked."""

    kind: str
    mode: int
    content: bytes = b""
    """Of a file; of a link, where it points to."""
    mtime: int = 0


def entries(archive: Path) -> dict[bytes, Entry]:
    """All entries by their path, unpacked by GNU tar as nobody's files."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-xpf", str(archive), "-C", folder, "--no-same-owner"], check=True)
        return dict(_walk(os.fsencode(folder), b""))


def _walk(root: bytes, below: bytes) -> list[tuple[bytes, Entry]]:
    found = []
    for item in os.scandir(os.path.join(root, below)):
        path = os.path.join(below, item.name)
        at = item.stat(follow_symlinks=False)
        mode = stat.S_IMODE(at.st_mode)
        if item.is_symlink():
            found.append((path, Entry("link", 0, os.readlink(item.path), int(at.st_mtime))))
        elif item.is_dir():
            found.append((path, Entry("folder", mode)))
            found += _walk(root, path)
        else:
            with open(item.path, "rb") as file:
                found.append((path, Entry("file", mode, file.read(), int(at.st_mtime))))
    return found
