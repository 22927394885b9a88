"""The agent's side of the deadlines file: keeps it equal to what must be dead by when.

A sandbox is entered before it is started and taken out when it is confirmed dead. Changes that are
made in one turn of the event loop share a write. The file is written in the loop: it is small, on a
tmpfs and not forced to a disk, so that takes a fraction of the hop to a thread, which every warm
start would wait for.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from isolet.agent import deadlines
from isolet.agent.deadlines import Deadline, Deadlines
from isolet.base import errors


class DeadlineBook:
    """All deadlines of one agent. A call returns once its change is in the file.

    Raises:
        Unavailable: it cannot be written; the change is kept, and written with the next.
    """

    def __init__(self, path: Path, installation: str) -> None:
        self._path = path
        self._installation = installation
        self._entries: dict[str, Deadline] = {}
        self._changes = 0
        self._written = 0

    async def replace(self, entries: Iterable[Deadline]) -> None:
        """Make the file say this and nothing else: at the start of the agent."""
        self._entries = {entry.name: entry for entry in entries}
        await self._write(changed=True)

    async def put(self, entry: Deadline) -> None:
        """Enter a sandbox, or change its entry."""
        changed = self._entries.get(entry.name) != entry
        self._entries[entry.name] = entry
        await self._write(changed=changed)

    async def move(self, name: str, entry: Deadline) -> None:
        """Enter a sandbox in the place of another entry, both in one write."""
        moved = self._entries.pop(name, None) is not None
        changed = moved or self._entries.get(entry.name) != entry
        self._entries[entry.name] = entry
        await self._write(changed=changed)

    async def drop(self, name: str) -> None:
        """Take out a sandbox that is dead; not there is not an error."""
        await self._write(changed=self._entries.pop(name, None) is not None)

    async def _write(self, *, changed: bool) -> None:
        """Have every change so far in the file; one that failed before is tried again."""
        self._changes += changed
        mine = self._changes
        if self._written < mine:
            await asyncio.sleep(0)  # Others that come in this turn are in the file as well.
        if self._written < mine:
            self._save()

    def _save(self) -> None:
        entries = tuple(self._entries.values())
        content = Deadlines(installation=self._installation, entries=entries)
        try:
            deadlines.write(self._path, content)
        except OSError as error:
            raise errors.Unavailable(f"{self._path}: {error.strerror}") from error
        self._written = self._changes
