"""Starting processes that outlive the caller, and ending exactly those."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Carried in the environment of everything we start. It finds a process whose record was never
# written because `up` was killed in between. `hack/cluster env` does not print it.
MARK = "ISOLET_HACK_PART"


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start: int  # clock ticks since boot
    boot: str

    @classmethod
    def now(cls, pid: int) -> Process | None:
        start = start_time(pid)
        return None if start is None else cls(pid, start, boot_id())

    @classmethod
    def of(cls, record: dict[str, Any] | None) -> Process | None:
        if not record:
            return None
        return cls(int(record["pid"]), int(record["start"]), str(record["boot"]))

    def alive(self) -> bool:
        return self.boot == boot_id() and start_time(self.pid) == self.start

    def age(self) -> float:
        """Seconds since it was started."""
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - self.start / os.sysconf("SC_CLK_TCK")

    def signal(self, number: int) -> bool:
        """Sends it through a handle that is checked first: no other process can be hit."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except OSError:
            return False
        finally:
            os.close(handle)

    def kill(self, seconds: float = 10) -> bool:
        """SIGKILL, then waits. True when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return not self.alive()
        try:
            if self.signal(signal.SIGKILL):
                select.select([handle], [], [], seconds)
            return not self.alive()
        finally:
            os.close(handle)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third one on; the second may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def start_time(pid: int) -> int | None:
    fields = stat_fields(pid)
    if not fields or fields[0] in "ZX":
        return None
    return int(fields[19])


def stopped(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[0] == "T"


def parent_of(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def all_pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def arguments(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [argument.decode(errors="replace") for argument in raw.split(b"\0") if argument]


def mark_of(pid: int) -> str | None:
    """The value of our mark in its environment."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    for variable in raw.split(b"\0"):
        if variable.startswith(prefix):
            return variable[len(prefix) :].decode(errors="replace")
    return None


def program_of(pid: int) -> str:
    argv = arguments(pid)
    return os.path.basename(argv[0]) if argv else ""


def spawn(run: Path, part: str, argv: list[str], log: Path, environment: dict[str, str]) -> Process:
    """Starts a part in a session of its own, output to its log; it outlives us."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env={**environment, MARK: f"{run}#{part}"},
        )
    child.returncode = 0  # nobody waits for it: no warning when we end before it does
    fields = stat_fields(child.pid)
    return Process(child.pid, int(fields[19]) if fields else 0, boot_id())


def find_part(run: Path, part: str, program: str) -> Process | None:
    """A started part that no record names."""
    for pid in all_pids():
        if program_of(pid) == program and mark_of(pid) == f"{run}#{part}":
            found = Process.now(pid)
            if found:
                return found
    return None
