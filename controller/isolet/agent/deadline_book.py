"""The agent's side of the deadlines file: keeps it equal to what must be dead by when.

A sandbox is entered before it is started and taken out when it is confirmed dead. Changes that
arrive during a write share the next one.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from isolet.agent import deadlines
from isolet.agent.deadlines import Deadline, Deadlines
from isolet.base import errors


class DeadlineBook:
    """All deadlines of one agent. A call returns once its change is in the file."""

    def __init__(self, path: Path, installation: str) -> None:
        self._path = path
        self._installation = installation
        self._entries: dict[str, Deadline] = {}
        self._writing = asyncio.Lock()
        self._changes = 0
        self._written = 0

    async def replace(self, entries: Iterable[Deadline]) -> None:
        """Make the file say this and nothing else: at the start of the agent."""
        self._entries = {entry.name: entry for entry in entries}
        self._changes += 1
        await self._write()

    async def put(self, entry: Deadline) -> None:
        """Enter a sandbox, or change its entry."""
        if self._entries.get(entry.name) != entry:
            self._entries[entry.name] = entry
            self._changes += 1
        await self._write()

    async def move(self, name: str, entry: Deadline) -> None:
        """Enter a sandbox in the place of another entry, both in one write."""
        if self._entries.pop(name, None) is not None or self._entries.get(entry.name) != entry:
            self._entries[entry.name] = entry
            self._changes += 1
        await self._write()

    async def drop(self, name: str) -> None:
        """Take out a sandbox that is dead; not there is not an error."""
        if self._entries.pop(name, None) is not None:
            self._changes += 1
        await self._write()

    async def _write(self) -> None:
        """Have every change so far in the file; one that failed before is tried again."""
        mine = self._changes
        async with self._writing:
            if self._written >= mine:
                return
            now = self._changes
            content = Deadlines(
                installation=self._installation, entries=tuple(self._entries.values())
            )
            try:
                await asyncio.to_thread(deadlines.write, self._path, content)
            except OSError as error:
                raise errors.Unavailable(f"{self._path}: {error.strerror}") from error
            self._written = now
