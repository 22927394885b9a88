"""Keeps files of a workspace whose sandbox has ended: through the confined reader, on our disk.

    <root>/<uid>/<sha256 of the path>

A file is written aside and moved into place when it is whole and digested, so one that is in place
is what its record says. The reader (`isolet.agent.workspace.reader`) is believed nothing: names and
sizes are checked here again, digests are made here.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from isolet.agent.workspace import reader
from isolet.base import errors, wholefile

MAX_FILE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 256 << 20
MAX_FILES = 512
READER_SECONDS = 120.0

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PIECE = 256 << 10


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that is kept."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that matched and is not kept."""

    path: str
    reason: str
    message: str


class ArtifactFolders:
    """The kept files of all Processes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def collect(
        self, uid: str, device: str, user: tuple[int, int], globs: Sequence[str]
    ) -> tuple[tuple[Kept, ...], tuple[Problem, ...]]:
        """Keep what matches. Blocks; may be repeated.

        Raises:
            Unavailable: the workspace cannot be read, or there is no room for its files.
        """
        folder = self._folder(uid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        view = self._root / ".view"
        view.mkdir(mode=0o700, exist_ok=True)
        request = {
            "globs": list(globs),
            "max_file": MAX_FILE_BYTES,
            "max_total": MAX_TOTAL_BYTES,
            "max_files": MAX_FILES,
        }
        argv = [sys.executable, "-I", "-S", str(reader.__file__)]
        argv += [device, str(view), *map(str, user), json.dumps(request)]
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            close_fds=True,
        ) as process:
            timer = threading.Timer(READER_SECONDS, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                return _receive(process.stdout, folder)
            except (OSError, ValueError, KeyError) as error:
                process.kill()
                said = process.stderr.read(2000).decode(errors="replace") if process.stderr else ""
                last = said.strip().splitlines()[-1:] or [type(error).__name__]
                raise errors.Unavailable(f"the workspace cannot be read: {last[0]}") from error
            finally:
                timer.cancel()
                process.kill()

    def read(self, uid: str, path: str, offset: int, limit: int) -> bytes:
        """A piece of a kept file. Raises NotFound."""
        try:
            with _place(self._folder(uid), path).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            raise errors.NotFound(f"artifact {path} is not kept") from None

    def remove(self, uid: str) -> None:
        """Drop everything that is kept of `uid`; gone is not an error."""
        shutil.rmtree(self._folder(uid), ignore_errors=True)

    def keep(self, uid: str, path: str, content: bytes) -> Kept:
        """Keep bytes that were read in another way, from a live session."""
        folder = self._folder(uid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        wholefile.write(_place(folder, path), content)
        return Kept(path, len(content), "sha256:" + hashlib.sha256(content).hexdigest())

    def _folder(self, uid: str) -> Path:
        """Where the files of this uid lie; a uid is never a path of its own."""
        if not _UID.fullmatch(uid):
            raise errors.Invalid(f"uid {uid!r}")
        return self._root / uid


def _receive(stream: IO[bytes], folder: Path) -> tuple[tuple[Kept, ...], tuple[Problem, ...]]:
    kept: list[Kept] = []
    problems: list[Problem] = []
    total = 0
    while True:
        line = stream.readline(64 << 10)
        fields = json.loads(line)
        if "done" in fields:
            return tuple(kept), tuple(problems)
        if "problem" in fields:
            problems.append(Problem(*(str(fields[k]) for k in ("problem", "reason", "message"))))
            continue
        path, size = str(fields["found"]), int(fields["size"])
        total += size
        if not 0 <= size <= MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or len(kept) >= MAX_FILES:
            raise ValueError("the reader passed its bounds")
        kept.append(_store(stream, folder, path, size))


def _store(stream: IO[bytes], folder: Path, path: str, size: int) -> Kept:
    digest, left = hashlib.sha256(), size
    with wholefile.writing(_place(folder, path)) as file:
        while left:
            piece = stream.read(min(_PIECE, left))
            if not piece:
                raise ValueError("the reader ended early")
            digest.update(piece)
            file.write(piece)
            left -= len(piece)
    return Kept(path, size, "sha256:" + digest.hexdigest())


def _place(folder: Path, path: str) -> Path:
    return folder / hashlib.sha256(path.encode()).hexdigest()
