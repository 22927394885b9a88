"""The deadlines file: what the agent leaves for the watchdog, and the watchdog's journal for it.

The agent writes the file whole at every change, atomically. It names no tenant data. Deadlines are
on the boot-time clock and mean nothing in another boot. Standard library only: the watchdog, which
must be small and start fast, reads it with this module.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from isolet.base import wholefile
from isolet.base.wholefile import Sync

_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """One sandbox and when it must be dead."""

    name: str
    """The container's name, known before it is created."""
    deadline_boottime: float
    boot_id: str
    container_id: str = ""
    """Empty until it is known; the name then says which."""
    pid: int = 0
    """Host pid of the sandbox; 0 until it is known."""
    pid_start: int = 0
    """Start time of that pid in clock ticks since boot: a pid is used again, this pair is not."""

    def __post_init__(self) -> None:
        """Refuse what JSON gives but the field cannot be."""
        texts = (self.name, self.boot_id, self.container_id)
        if not all(isinstance(text, str) for text in texts) or not self.name:
            raise ValueError("name, boot_id and container_id must be text")
        at = self.deadline_boottime
        if not isinstance(at, int | float) or not math.isfinite(at):
            raise ValueError("deadline_boottime must be a number")
        if not all(type(number) is int and number >= 0 for number in (self.pid, self.pid_start)):
            raise ValueError("pid and pid_start must be counts")


_FIELDS = tuple(field.name for field in fields(Deadline))


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """The whole file."""

    installation: str
    entries: tuple[Deadline, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One line of the watchdog's journal: a sandbox that it is ending, or has seen dead."""

    name: str
    container_id: str
    confirmed: bool
    """False in the line before the act; True once it was seen not to run any more."""
    how: str
    """`engine`, or `signal` when the engine did not answer."""
    boot_id: str
    deadline_boottime: float
    boottime: float
    at: str


def write(path: Path, content: Deadlines) -> None:
    """Replace the file: readers see the old one or the new one, whole.

    It is not forced to a disk: a machine that crashes has no sandbox any more, and the deadlines of
    one boot mean nothing in the next.
    """
    entries = [{name: getattr(entry, name) for name in _FIELDS} for entry in content.entries]
    document = {"version": _VERSION, "installation": content.installation, "entries": entries}
    wholefile.write(path, json.dumps(document, separators=(",", ":")).encode(), sync=Sync.NOTHING)


def read(path: Path) -> Deadlines:
    """Read the file.

    Raises:
        OSError: it is not there or cannot be read.
        ValueError: it is not ours (owner or mode), or no deadlines file of a known version.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        at = os.fstat(descriptor)
        if not stat.S_ISREG(at.st_mode) or at.st_uid != os.geteuid() or at.st_mode & 0o022:
            raise ValueError("others can write it")
        document = json.loads(file.read())
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError("no deadlines file of a known version")
    installation, entries = document.get("installation"), document.get("entries")
    if not isinstance(installation, str) or not installation or not isinstance(entries, list):
        raise ValueError("no installation or no entries")
    try:
        return Deadlines(
            installation=installation, entries=tuple(Deadline(**entry) for entry in entries)
        )
    except TypeError as error:
        raise ValueError("an entry has other fields") from error


def read_journal(path: Path) -> Sequence[Ended]:
    """The journal, oldest line first; a line that a crash cut short is passed over."""
    found: list[Ended] = []
    for part in (path.with_suffix(".old"), path):
        try:
            lines = part.read_bytes().splitlines()
        except FileNotFoundError:
            continue
        found.extend(entry for entry in map(_ended, lines) if entry is not None)
    return found


def ended_by_watchdog(journal: Iterable[Ended], name: str, boot_id: str) -> Ended | None:
    """The last word on a container in this boot, a confirmed one first."""
    lines = [line for line in journal if (line.name, line.boot_id) == (name, boot_id)]
    return max(lines, key=lambda line: (line.confirmed, line.boottime), default=None)


def start_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything.
    return int(text.rpartition(")")[2].split()[19])


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _ended(line: bytes) -> Ended | None:
    """The entry of a journal line."""
    try:
        return Ended(**json.loads(line))
    except (ValueError, TypeError):
        return None
