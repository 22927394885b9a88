"""Trees of Git commits on their way into workspaces: read by a helper, checked, kept as one file.

    <root>/<uid>/tree.tar       whole; the sandbox's user unpacks it, inside the sandbox
    <root>/<uid>.aside          being written; worth nothing after a crash

The folder of a uid is mounted read-only in its one sandbox; the file goes once it is unpacked.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from isolet.agent.helper import git_tree, spawn
from isolet.agent.workspace.plaintar import PlainTar
from isolet.base import errors, wholefile
from isolet.base.wholefile import Sync

GIT = "/usr/bin/git"
OLDEST_GIT = (2, 34)
FILE = "tree.tar"
REPOSITORY = git_tree.REPOSITORY
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
REASONS = {
    "not-found": "RevisionNotFound",
    "ambiguous": "RevisionAmbiguous",
    "too-large": "TreeTooLarge",
    "unsupported": "TreeUnsupported",
    "unreadable": "RepositoryUnavailable",
    "no-repository": "RepositoryUnavailable",
    "damaged": "GitImportFailed",
}
"""What the helper says and the reason that it stands for, as in `isolet.plan.reasons`."""

NODE_STORAGE_FULL = "NodeStorageFull"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What is to be said of a tree."""

    entries: int
    submodules: tuple[str, ...] = ()
    """Paths that are left empty, the first few."""
    more_submodules: int = 0
    lfs: int = 0
    """Files that are pointers to content elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a tree may take."""

    workspace_bytes: int
    entries: int
    seconds: float


class Trees:
    """The trees below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        """Make the root and throw away what a crash left half made. Once, at the start."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        for aside in self._root.glob("*.aside"):
            aside.unlink()

    def folder(self, uid: str) -> Path:
        """What the sandbox of this uid has mounted; made if it is not there."""
        found = self._folder(uid)
        found.mkdir(mode=0o755, exist_ok=True)
        found.chmod(0o755)
        return found

    def is_ready(self, uid: str) -> bool:
        """Whether the tree of this uid is there, whole."""
        return (self._folder(uid) / FILE).exists()

    def list(self) -> tuple[str, ...]:
        """The uids of which something is here."""
        return tuple(sorted(p.name for p in self._root.iterdir() if p.is_dir()))

    def unpacked(self, uid: str) -> None:
        """Drop the file; the folder stays for as long as the sandbox has it."""
        (self._folder(uid) / FILE).unlink(missing_ok=True)

    def remove(self, uid: str) -> None:
        """Drop all of it; gone is not an error."""
        shutil.rmtree(self._folder(uid), ignore_errors=True)
        (self._root / f"{uid}.aside").unlink(missing_ok=True)

    async def usable(self) -> str | None:
        """None if helpers with Git can be run here, else why not and what to do."""
        try:
            async with spawn.run((GIT, "--version"), spawn.Rights(), seconds=20.0) as helper:
                said = (await helper.read_line()).decode(errors="replace")
                await helper.end()
        except errors.Unavailable as error:
            return f"{GIT} cannot be run as a helper: {error.message}; is it installed?"
        match = re.match(r"git version (\d+)\.(\d+)", said)
        if match is None or (int(match[1]), int(match[2])) < OLDEST_GIT:
            oldest = ".".join(map(str, OLDEST_GIT))
            return f"{GIT} is no Git of {oldest} or newer: install one"
        return None

    def _folder(self, uid: str) -> Path:
        """A uid is never a path of its own."""
        if not _UID.fullmatch(uid):
            raise errors.Invalid(f"uid {uid!r}")
        return self._root / uid

    async def resolve(self, repository: str, revision: str, *, seconds: float) -> str:
        """The commit that a revision of the repository at this path names.

        Raises:
            Refused: with a reason of `REASONS`; asking again gives the same.
            Unavailable: the helper could not be run, or took too long.
        """
        request = {"do": "resolve", "revision": revision}
        async with _reading(repository, request, seconds) as helper:
            answer = await _answer(helper)
        return str(answer["commit"])

    async def export(self, uid: str, repository: str, commit: str, bounds: Bounds) -> Exported:
        """Have the tree of a commit at hand, whole or not at all. May be repeated.

        Raises:
            Refused: as `resolve`.
            Unavailable: as `resolve`; what the helper sent was refused; the node has no room.
        """
        folder = self.folder(uid)
        aside = self._root / f"{uid}.aside"
        request = {
            "do": "export",
            "commit": commit,
            "most_bytes": bounds.workspace_bytes,
            "most_entries": bounds.entries,
        }
        try:
            # Forced to disk here, in a thread, and not at the end of the block, in the loop.
            with wholefile.writing(folder / FILE, aside=aside, sync=Sync.NOTHING) as file:
                async with _reading(repository, request, bounds.seconds) as helper:
                    check = PlainTar(most_bytes=bounds.workspace_bytes, most_entries=bounds.entries)
                    await _receive(helper, file, check)
                    answer = await _answer(helper)
                    entries = check.finish()
                    await asyncio.to_thread(_sync, file)
        except OSError as error:
            raise errors.Unavailable(
                f"{self._root}: {error.strerror}", reason=NODE_STORAGE_FULL
            ) from error
        return Exported(
            entries=entries,
            submodules=tuple(str(name)[:200] for name in answer["submodules"][:8]),
            more_submodules=int(answer["more_submodules"]),
            lfs=int(answer["lfs"]),
        )


@contextlib.asynccontextmanager
async def _reading(
    repository: str, request: dict[str, Any], seconds: float
) -> AsyncIterator[spawn.Helper]:
    seen, argv = spawn.script(str(git_tree.__file__))
    rights = spawn.Rights(mounts=(seen, spawn.Mount(repository, REPOSITORY)))
    async with spawn.run(argv, rights, seconds=seconds, stdin=True) as helper:
        await helper.write(json.dumps(request).encode() + b"\n")
        await helper.close_input()
        yield helper


async def _answer(helper: spawn.Helper) -> dict[str, Any]:
    """The last line, once the helper has ended."""
    line = await helper.read_line()
    end = await helper.end()
    try:
        answer = json.loads(line)
        problem = answer.get("problem")
    except (ValueError, AttributeError):
        last = (end.said.strip().splitlines() or ["nothing"])[-1]
        raise errors.Unavailable(
            f"the repository could not be read (code {end.code}): {last[:200]}"
        ) from None
    if problem is not None:
        reason = REASONS.get(str(problem), "GitImportFailed")
        raise errors.Refused(str(answer.get("message", ""))[:1000], reason=reason)
    if not isinstance(answer, dict) or end.code:
        raise errors.Unavailable(f"the repository could not be read (code {end.code})")
    return answer


async def _receive(helper: spawn.Helper, file: BinaryIO, check: PlainTar) -> None:
    """Frames up to the one that is empty."""
    while size := int.from_bytes(await _exactly(helper, 4), "big"):
        left = size
        while left:
            piece = await helper.read(min(left, spawn.PIPE_BYTES))
            if not piece:
                return  # The answer, or its lack, tells why.
            check.feed(piece)
            await asyncio.to_thread(file.write, piece)
            left -= len(piece)


async def _exactly(helper: spawn.Helper, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await helper.read(size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fchmod(file.fileno(), 0o444)
    os.fsync(file.fileno())
