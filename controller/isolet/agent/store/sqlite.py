"""The store on SQLite: WAL, synchronous FULL, one writer, one agent a folder.

Reads go over a connection of their own, each by one statement on the event loop itself: they find
their pages in memory, and a hop to a thread costs many times what they take. Each sees everything
that was committed when it began.
"""

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite

from isolet.agent.store import changes, codec, fences, folder, migrations
from isolet.agent.store.base import Served, Tombstone
from isolet.agent.store.writer import Transaction, Writer
from isolet.base import errors
from isolet.plan.sandbox_model import Kind, Moment, SandboxRecord
from isolet.wire.base import Fence

_BUSY_SECONDS = 5.0
"""How long an opening waits for whoever else has the file open."""
_RECORD, _TOMBSTONE = changes.RECORD, changes.TOMBSTONE
_CHANGED = f"""
    SELECT 'record', {_RECORD} FROM records WHERE sequence > ?
    UNION ALL
    SELECT 'tombstone', {_TOMBSTONE}, 0, 0, sequence, '' FROM tombstones WHERE sequence > ?
    UNION ALL
    SELECT 'newest', '', '', '', '', 0, 0, 0, 0, sequence, '' FROM meta
    ORDER BY 10"""
"""What has changed, in the order of its sequence numbers: the column before the body."""
_PRESENT = f"""
    SELECT 0, {_RECORD} FROM records
    UNION ALL
    SELECT 1, '', '', '', '', 0, 0, 0, 0, sequence, '' FROM meta
    ORDER BY 1, 10"""


class SQLiteStore:
    """Implements `isolet.agent.store.base.Store`. Made by `SQLiteStore.open`."""

    def __init__(
        self,
        path: Path,
        lock: int,
        writer: tuple[aiosqlite.Connection, sqlite3.Connection],
        reader: sqlite3.Connection,
        meta: tuple[str, int],
        obeyed: dict[str, fences.Obeyed],
    ) -> None:
        self.epoch, sequence = meta
        self._path = path
        self._lock: int | None = lock
        self._connection, statements = writer
        self._reader = reader
        self._decoder = codec.Decoder(path)
        self._writer = Writer(self._connection, statements, path, sequence)
        self._obeyed = obeyed

    @classmethod
    async def open(cls, state: Path) -> "SQLiteStore":
        """Open the store in folder `state`, made if need be.

        Raises:
            Conflict: another agent holds the folder.
            Refused: the folder is not on a local file system.
            Corrupt: the file is damaged, not ours or of a newer schema; it was left as it is.
            Unavailable: no room (`NodeStorageFull`), or it cannot be opened.
        """
        await asyncio.to_thread(folder.prepare, state)
        lock = folder.lock(state)
        path = state / folder.DATABASE_NAME
        writer: aiosqlite.Connection | None = None
        reader: sqlite3.Connection | None = None
        try:
            version = await asyncio.to_thread(folder.inspect, path)
            folder.create(path)
            writer, statements = await _connect(path)
            await migrate(writer, version)
            reader = _connect_reader(path)
            meta, obeyed = await _start(writer)
            return cls(path, lock, (writer, statements), reader, meta, obeyed)
        except BaseException as error:
            if reader is not None:
                reader.close()
            if writer is not None:
                await writer.close()
            os.close(lock)
            if isinstance(error, sqlite3.Error):
                raise folder.explain(error, path) from error
            if isinstance(error, OSError):
                raise folder.unavailable(error, state) from error
            raise

    async def get(self, uid: str) -> SandboxRecord | None:
        """The record, or None."""
        rows = self._read(f"SELECT {_RECORD} FROM records WHERE uid = ?", uid)
        return self._decoder.decode(rows[0]) if rows else None

    async def list(self) -> Sequence[SandboxRecord]:
        """All records, ordered by created_at, then uid."""
        rows = self._read(f"SELECT {_RECORD} FROM records ORDER BY created_at, uid")
        return tuple(self._decoder.decode(row) for row in rows)

    async def add(self, record: SandboxRecord) -> SandboxRecord:
        """Insert with revision 1. Raises Conflict: a record or a tombstone has the uid."""
        record, encoded = codec.keepable(record), codec.body(record)
        return await self._writer.do(lambda t: changes.insert(t, record, encoded))

    async def update(self, record: SandboxRecord) -> SandboxRecord:
        """Compare and set. Raises Conflict or NotFound."""
        record, encoded = codec.keepable(record), codec.body(record)
        return await self._writer.do(lambda t: changes.update(t, record, encoded))

    async def assign(self, slot: str, record: SandboxRecord) -> SandboxRecord:
        """Write `record`, new or changed, in the place of the slot's. Raises as `add`, `update`."""
        record, encoded = codec.keepable(record), codec.body(record)

        async def change(transaction: Transaction) -> SandboxRecord:
            await changes.require_slot(transaction, slot)
            write = changes.update if record.revision else changes.insert
            written = await write(transaction, record, encoded)
            await transaction.run("DELETE FROM records WHERE uid = ?", slot)
            return written

        assigned = await self._writer.do(change)
        self._decoder.forget(slot)
        return assigned

    async def bury(self, uid: str, *, at: Moment, kind: Kind = Kind.EXECUTION) -> int:
        """Replace the record by a tombstone; returns the sequence of that.

        Burying again keeps the tombstone and its sequence, and only makes it younger.
        """
        buried = await self._writer.do(lambda t: changes.bury(t, uid, at, kind))
        self._decoder.forget(uid)
        return buried

    async def fence(self, uid: str, *, at: Moment, kind: Kind = Kind.EXECUTION) -> None:
        """A tombstone for a uid that is not here. Raises Conflict: it has a record."""
        await self._writer.do(lambda t: changes.fence(t, uid, at, kind))

    async def pools(self) -> str:
        """The kept wish for warm pools; empty if there is none."""
        return str(self._read("SELECT pools FROM meta")[0][0])

    async def keep_pools(self, wish: str) -> None:
        """Keep a wish for warm pools in the place of the one before."""
        await self._writer.do(lambda t: t.run("UPDATE meta SET pools = ?", wish))

    async def tombstone(self, uid: str) -> Tombstone | None:
        """The tombstone of `uid`, if it has one."""
        rows = self._read(f"SELECT {_TOMBSTONE} FROM tombstones WHERE uid = ?", uid)
        return codec.tombstone(rows[0]) if rows else None

    async def forget(self, uids: Sequence[str], kind: Kind) -> int:
        """Drop the tombstones of these uids that are of `kind`; returns how many there were."""

        async def change(transaction: Transaction) -> int:
            gone = 0
            for uid in uids:
                sql = "DELETE FROM tombstones WHERE uid = ? AND kind = ? RETURNING uid"
                gone += len(await transaction.run(sql, uid, kind.value))
            return gone

        return await self._writer.do(change)

    async def purge_tombstones(self, served: Served, *, limit: int = 4096) -> int:
        """Forget the oldest of those that have served their time; returns how many."""
        return await self._writer.do(lambda t: changes.purge(t, served, limit))

    async def changed_since(
        self, sequence: int
    ) -> tuple[Sequence[SandboxRecord], Sequence[Tombstone], int]:
        """Records and tombstones changed after `sequence` in that order, and the newest number."""
        # One statement is one look: records, tombstones and the number belong together.
        rows = self._read(_CHANGED, sequence, sequence)
        newest = next(row for row in rows if row[0] == "newest")
        return (
            tuple(self._decoder.decode(row[1:]) for row in rows if row[0] == "record"),
            tuple(codec.tombstone(row[1:7]) for row in rows if row[0] == "tombstone"),
            int(newest[9]),
        )

    async def present(self) -> tuple[Sequence[SandboxRecord], int]:
        """Every record by sequence, and the newest number, without a look at tombstones."""
        *rows, newest = self._read(_PRESENT)
        return tuple(self._decoder.decode(row[1:]) for row in rows), int(newest[9])

    async def check_fence(self, fence: Fence) -> None:
        """Obey this fence or a newer one from now on. Raises Fenced."""
        history = self._obeyed.get(fence.shard, ())
        if fences.obey(history, fence) is history:
            return

        async def change(transaction: Transaction) -> fences.Obeyed:
            rows = await transaction.run(
                "SELECT lease_uid, transitions FROM fences WHERE shard = ? ORDER BY place",
                fence.shard,
            )
            after = fences.obey(tuple((str(uid), int(count)) for uid, count in rows), fence)
            await transaction.run(
                "INSERT INTO fences VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET transitions = excluded.transitions",
                fence.shard,
                len(after),
                *after[-1],
            )
            return after

        after = await self._writer.do(change)
        # Two callers may come back in any order; what is remembered must not go back.
        self._obeyed[fence.shard] = max(self._obeyed.get(fence.shard, ()), after, key=_newness)

    async def close(self) -> None:
        """Flush and let go of the folder. May be called twice."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            await self._writer.close()
            self._reader.close()
            await self._connection.close()
        finally:
            os.close(lock)

    def _read(self, sql: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """One statement of the reader; errors become ours."""
        if self._lock is None:
            raise errors.Unavailable("the store is closed")
        try:
            return self._reader.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise folder.explain(error, self._path) from error


def _newness(history: fences.Obeyed) -> tuple[int, int]:
    """Orders two histories of which one continues the other."""
    return len(history), history[-1][1] if history else -1


async def _connect(path: Path) -> tuple[aiosqlite.Connection, sqlite3.Connection]:
    """A connection with no transactions of its own making, and what is below it."""
    below = sqlite3.connect(
        _uri(path, "rw"),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_SECONDS,
    )
    connection = await aiosqlite.Connection(lambda: below, iter_chunk_size=64)
    try:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        await connection.close()
        raise
    return connection, below


def _connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; nobody else writes, so it never waits for a lock."""
    return sqlite3.connect(_uri(path, "ro"), uri=True, isolation_level=None, timeout=0)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path))}?mode={mode}"


async def migrate(connection: aiosqlite.Connection, version: int) -> None:
    """Take the steps after `version`, each in one transaction with its number."""
    for number, statements in enumerate(migrations.MIGRATIONS[version:], version + 1):
        await connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                await connection.execute(statement)
            await connection.execute(f"PRAGMA user_version = {number}")
            await connection.execute("COMMIT")
        except BaseException:
            await connection.rollback()
            raise


async def _start(
    connection: aiosqlite.Connection,
) -> tuple[tuple[str, int], dict[str, fences.Obeyed]]:
    """Identity and sequence, and the fences obeyed so far; from here on the `Writer` waits."""
    await connection.execute("PRAGMA busy_timeout = 0")
    meta = list(await connection.execute_fetchall("SELECT epoch, sequence FROM meta"))
    rows = await connection.execute_fetchall(
        "SELECT shard, lease_uid, transitions FROM fences ORDER BY shard, place"
    )
    obeyed: dict[str, fences.Obeyed] = {}
    for shard, lease, transitions in rows:
        obeyed[shard] = (*obeyed.get(shard, ()), (lease, transitions))
    return (str(meta[0][0]), int(meta[0][1])), obeyed
