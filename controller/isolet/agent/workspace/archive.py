"""Tar archives that carry files into a sandbox: plain files below plain folders. Pure."""

import io
import tarfile
from collections.abc import Sequence


def pack(files: Sequence[tuple[str, int, bytes]], uid: int, gid: int) -> bytes:
    """An archive of (path, mode, content), all of it the user's; paths have been checked.

    Folders are not in it: tar makes those that are missing and leaves alone those that are there.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, mode, content in files:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.uid, entry.gid = len(content), mode, uid, gid
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
