"""The state folder before the store opens it: whose it is, where it lies, what is in its file.

Everything here comes before the first write, so that a file which is refused is left as it was.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isolet.agent.store import codec, migrations
from isolet.base import errors, statfs
from isolet.base.wholefile import to_disk
from isolet.plan import reasons

LOCK_NAME = "lock"
DATABASE_NAME = "state.db"

_FULL_BELOW_BYTES = 1 << 20
_MAYBE_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def prepare(folder: Path, magic: Callable[[Path], int] = statfs.magic) -> None:
    """Make the folder if need be, for its owner alone, on a local file system.

    Raises:
        Refused: the file system is not known to be local, or `folder` is a link.
        Unavailable: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise errors.Refused(f"{folder} is a link: name the state folder itself")
        statfs.require_local(folder, magic(folder))
        folder.chmod(0o700)
    except OSError as error:
        raise unavailable(error, folder) from error


def lock(folder: Path) -> int:
    """Hold the folder until the returned descriptor is closed, by us or by our death.

    Raises:
        Conflict: another agent holds it.
    """
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unavailable(error, folder) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise errors.Conflict(
            f"another agent holds the state folder {folder} (process {holder})",
            reason="StateFolderHeld",
        ) from error
    with suppress(OSError):  # who holds it is for people; the lock itself needs no room
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def create(path: Path) -> None:
    """An empty file for SQLite, which gives its mode to the files it puts beside it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    path.chmod(0o600)
    to_disk(path.parent)


def inspect(path: Path) -> int:
    """The schema version of the file, 0 for a new one. Writes neither to it nor to its WAL.

    Read through a connection that may not write: the last writer to close a file also copies its
    WAL into it, which would change a file that is then refused.

    Raises:
        Corrupt: unreadable, not ours, or of a newer schema.
    """
    if not path.exists() or path.stat().st_size == 0:
        return 0
    connection = None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        version = int(_one(connection, "PRAGMA user_version"))
        _require_ours(connection, path, version)
        verdict = str(_one(connection, "PRAGMA quick_check(1)"))
    except sqlite3.Error as error:
        raise explain(error, path) from error
    finally:
        if connection is not None:
            connection.close()
    if verdict != "ok":
        raise errors.Corrupt(damaged(path, verdict.splitlines()[0]))
    return version


def _require_ours(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Refuse a newer schema and another program's database."""
    empty = _one(connection, "SELECT count(*) FROM sqlite_master") == 0
    if version == 0 and empty:
        return
    if _one(connection, "PRAGMA application_id") != migrations.APPLICATION_ID:
        raise errors.Corrupt(f"{path} is a database of another program; it was not changed")
    if version > migrations.SCHEMA_VERSION:
        raise errors.Corrupt(
            f"{path} has schema version {version}, this agent knows up to "
            f"{migrations.SCHEMA_VERSION}; it was not changed: run a newer agent"
        )


def _one(connection: sqlite3.Connection, sql: str) -> Any:
    """The single value of a query that always has one."""
    return connection.execute(sql).fetchone()[0]


def damaged(path: Path, what: str) -> str:
    """The message for a file that cannot be read, with its cure."""
    return (
        f"{path} is damaged ({what}); it was not changed. Restore the state folder from a copy, or "
        "move it away and start the agent again: it begins with an empty store and reports what "
        "it finds running as strays"
    )


def explain(error: sqlite3.Error, path: Path, *, committing: bool = False) -> errors.IsoletError:
    """An SQLite error as ours, by its code.

    An I/O error of a COMMIT leaves open whether the transaction will be there after a crash.
    """
    code, text = codec.sqlite_kind(error), str(error)
    if code in _DAMAGED:
        return errors.Corrupt(damaged(path, text))
    if code == sqlite3.SQLITE_FULL or (code in _MAYBE_FULL and _is_full(path.parent)):
        return _no_room(path.parent)
    if committing and code == sqlite3.SQLITE_IOERR:
        return errors.Unconfirmed(f"{path}: a write was not confirmed: {text}")
    return errors.Unavailable(f"{path}: {text}")


def unavailable(error: OSError, folder: Path) -> errors.Unavailable:
    """A system error met in the folder as ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_room(folder)
    return errors.Unavailable(f"state folder {folder}: {error.strerror}")


def _no_room(folder: Path) -> errors.Unavailable:
    """The error of a full disk."""
    return errors.Unavailable(
        f"no space left for the state folder {folder}",
        reason=reasons.NODE_STORAGE_FULL,
        retry_after=10.0,
    )


def _is_full(folder: Path) -> bool:
    """Whether the file system has no room: some of SQLite's I/O errors mean just that."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _FULL_BELOW_BYTES
