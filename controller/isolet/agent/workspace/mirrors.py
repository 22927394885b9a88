"""Mirrors of repositories that lie elsewhere: fetched by a helper, read by another.

    <root>/<40 hex of SHA-256 of name and URL>.git    the helper's user's, and nobody else's
    <root>/….fresh                                    its time is when it was last fetched, whole

The helper that fetches has the network and the one mirror, and no more rights than any other. A
fetch that was cut off leaves a mirror that the next one completes: Git writes objects before refs.
"""

import asyncio
import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from isolet.agent.helper import git_fetch, spawn
from isolet.base import errors

UNAVAILABLE = "RepositoryUnavailable"
"""The same word as in `isolet.plan.reasons`."""

_CONNECTED = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl")
_MOST_SECRET = 1 << 20
KEPT_FREE_BYTES = 256 << 20
"""Room on the node's disk that no fetch takes: records and outputs need it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """Where a mirror is fetched from, and with what."""

    name: str
    url: str
    refresh_seconds: int
    token_file: str | None = None
    ca_file: str | None = None
    key_file: str | None = None
    known_hosts_file: str | None = None


class Mirrors:
    """The mirrors below `root`; one fetch of each at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def prepare(self) -> None:
        """Make the root, through which the helper's user reaches its mirrors."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)

    async def path(self, remote: Remote, *, fresh: bool, seconds: float) -> str:
        """The mirror, fetched just now unless it is young enough.

        Args:
            remote: what it mirrors.
            fresh: whether it may be no older than `remote.refresh_seconds`; else any will do.
            seconds: for the fetch.

        Raises:
            Refused: it cannot be fetched (`RepositoryUnavailable`).
        """
        name = hashlib.sha256(f"{remote.name}\0{remote.url}".encode()).hexdigest()[:40]
        folder = self._root / f"{name}.git"
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            age = _age(folder.with_suffix(".fresh"))
            if age is None or (fresh and age >= remote.refresh_seconds):
                await self._fetch(remote, folder, seconds)
        return str(folder)

    async def _fetch(self, remote: Remote, folder: Path, seconds: float) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, spawn.USER, spawn.USER)
        seen, argv = spawn.script(str(git_fetch.__file__))
        mounts = [seen, spawn.Mount(str(folder), git_fetch.MIRROR, writable=True)]
        if remote.url.startswith("file://"):
            source = os.path.realpath(remote.url.removeprefix("file://"))
            mounts.append(spawn.Mount(source, git_fetch.SOURCE))
        else:
            mounts += [spawn.Mount(os.path.realpath(p), p) for p in _CONNECTED if os.path.exists(p)]
        rights = spawn.Rights(
            mounts=tuple(mounts),
            network=not remote.url.startswith("file://"),
            limits=spawn.Limits(file=_room(self._root), address=4 << 30),
        )
        try:
            await self._run(argv, rights, _request(remote), seconds)
        except errors.Unavailable as error:
            raise _unreachable(remote, error.message) from error
        folder.with_suffix(".fresh").touch()

    async def _run(
        self, argv: tuple[str, ...], rights: spawn.Rights, request: bytes, seconds: float
    ) -> None:
        async with spawn.run(argv, rights, seconds=seconds, stdin=True) as helper:
            await helper.write(request)
            await helper.close_input()
            line = await helper.read_line()
            end = await helper.end()
        if line != b"done\n" or end.code:
            last = (end.said.strip().splitlines() or [f"code {end.code}"])[-1]
            raise errors.Unavailable(last[:200])


def _request(remote: Remote) -> bytes:
    """Everything that is secret goes through the helper's input, never an argument or a file."""
    secrets = {
        "token": remote.token_file,
        "ca": remote.ca_file,
        "key": remote.key_file,
        "known_hosts": remote.known_hosts_file,
    }
    found = {name: _content(remote, path) for name, path in secrets.items() if path is not None}
    return json.dumps({"url": remote.url, **found}).encode() + b"\n"


def _content(remote: Remote, path: str) -> str:
    try:
        with open(path) as file:
            return file.read(_MOST_SECRET)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreachable(remote, f"{path} cannot be read ({type(error).__name__})") from error


def _room(root: Path) -> int:
    """Bytes that one fetch may bring: a remote without end must not fill the node."""
    found = os.statvfs(root)
    return max(0, found.f_bavail * found.f_frsize - KEPT_FREE_BYTES)


def _age(mark: Path) -> float | None:
    """Seconds since the last whole fetch, by the file system's own clock; None: never."""
    try:
        then = mark.stat().st_mtime
    except FileNotFoundError:
        return None
    probe = mark.with_suffix(".now")
    probe.touch()
    try:
        age = probe.stat().st_mtime - then
        return age if age >= 0 else math.inf  # The clock was set back: nobody knows.
    finally:
        probe.unlink()


def _unreachable(remote: Remote, why: str) -> errors.Refused:
    return errors.Refused(
        f"the remote of repository {remote.name} could not be fetched: {why}", reason=UNAVAILABLE
    )
