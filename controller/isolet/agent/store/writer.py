"""The one writer of a database: takes what waits, runs it as one transaction, syncs once.

A commit under `synchronous=FULL` costs a sync of the disk, so the changes that arrive during one
share the next. Only the statement that waits for the disk goes to the connection's thread, the one
that ends a transaction. All others find their pages in memory, and a hop for each costs many times
what it takes, most of all on a busy machine. The one that begins a transaction takes the one lock
for writers, which nobody else has but for a moment (a backup, somebody who looks): it is asked for
again then.
Each change still sees the ones before it and fails alone: a change checks before it writes, so one
that raises has written nothing. When the database itself refuses a shared transaction, its changes
are run again one by one, so that none suffers for another.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiosqlite

from isolet.agent.store import codec, folder
from isolet.base import errors

T = TypeVar("T")

_MOST_AT_ONCE = 256
_BUSY_SECONDS = 5.0
_BUSY_LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Transaction:
    """What a change may do: run statements and take sequence numbers."""

    statements: sqlite3.Connection
    sequence: int

    async def run(self, sql: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """One statement, here and now; all rows it returns."""
        return self.statements.execute(sql, parameters).fetchall()

    def next_sequence(self) -> int:
        """The next number of the store's one counter."""
        self.sequence += 1
        return self.sequence


Change = Callable[[Transaction], Awaitable[T]]


@dataclass(slots=True)
class _Waiting(Generic[T]):
    """A change and who waits for it."""

    change: Change[T]
    done: asyncio.Future[T]


@dataclass(slots=True)
class _Result:
    """What came of a change, to be told once the transaction is on disk."""

    waiting: _Waiting[Any]
    value: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """Wake the caller, unless it has gone."""
        if self.waiting.done.done():
            return
        if self.error is not None:
            self.waiting.done.set_exception(self.error)
        else:
            self.waiting.done.set_result(self.value)


class Writer:
    """Runs changes in the order in which they come."""

    def __init__(
        self,
        connection: aiosqlite.Connection,
        statements: sqlite3.Connection,
        path: Path,
        sequence: int,
    ) -> None:
        """`statements` is what is below `connection`, for use while that one does nothing."""
        self._connection = connection
        self._statements = statements
        self._path = path
        self._sequence = sequence
        self._queue: asyncio.Queue[_Waiting[Any] | None] = asyncio.Queue()
        self._closing = False
        self._task = asyncio.create_task(self._run(), name="store-writer")

    async def do(self, change: Change[T]) -> T:
        """Run `change` in a transaction; returns once that is on disk.

        Raises:
            Unavailable: it could not be written (a full disk has its own reason), or closing.
        """
        if self._closing:
            raise errors.Unavailable("the store is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(change, done))
        return await done

    async def close(self) -> None:
        """Run what waits, then stop."""
        if not self._closing:
            self._closing = True
            self._queue.put_nowait(None)
        await self._task

    async def _run(self) -> None:
        """Take what waits, write it, again until closed."""
        last = False
        while not last:
            batch = [await self._queue.get()]
            while not self._queue.empty() and len(batch) < _MOST_AT_ONCE:
                batch.append(self._queue.get_nowait())
            last = None in batch
            wanted = [item for item in batch if item and not item.done.done()]
            try:
                await self._write(wanted)
            except Exception as error:
                # Whatever it is, the next caller must not wait for a writer that is gone.
                for item in wanted:
                    _Result(item, error=error).tell()

    async def _write(self, batch: list[_Waiting[Any]]) -> None:
        """Write a batch together, or after a failure each by itself."""
        if not batch:
            return
        failure = await self._commit(batch)
        if failure is None:
            return
        if len(batch) == 1:
            _Result(batch[0], error=failure).tell()
            return
        for item in batch:
            await self._write([item])

    async def _commit(self, batch: list[_Waiting[Any]]) -> BaseException | None:
        """One transaction over the batch; None when it is on disk and all have been told."""
        transaction = Transaction(self._statements, self._sequence)
        committing = False
        try:
            await self._roll_back()
            await self._begin(transaction)
            results = [await self._attempt(transaction, item) for item in batch]
            if transaction.sequence != self._sequence:
                await transaction.run("UPDATE meta SET sequence = ?", transaction.sequence)
            committing = True
            await self._connection.execute_fetchall("COMMIT")
        except Exception as error:
            with suppress(sqlite3.Error):  # if it fails now, it is tried before the next BEGIN
                await self._roll_back()
            if isinstance(error, sqlite3.Error):
                return folder.explain(error, self._path, committing=committing)
            return error
        self._sequence = transaction.sequence
        for result in results:
            result.tell()
        return None

    async def _begin(self, transaction: Transaction) -> None:
        until = asyncio.get_running_loop().time() + _BUSY_SECONDS
        while True:
            try:
                await transaction.run("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                busy = codec.sqlite_kind(error) == sqlite3.SQLITE_BUSY
                if not busy or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(_BUSY_LOOK_SECONDS)

    async def _attempt(self, transaction: Transaction, item: _Waiting[Any]) -> _Result:
        """One change; its refusal is its own, any other failure ends the transaction."""
        try:
            return _Result(item, value=await item.change(transaction))
        except errors.IsoletError as error:
            return _Result(item, error=error)

    async def _roll_back(self) -> None:
        """Undo what is open, if anything is: SQLite may have undone it by itself."""
        if self._connection.in_transaction:
            await self._connection.rollback()
