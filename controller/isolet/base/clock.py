"""Time as an argument: the three clocks Isolet uses, behind one interface.

Wall time is for people and for what other machines read. Deadlines and leases are judged on
`boottime` (CLOCK_BOOTTIME), which no clock step moves and which goes on during suspend; it is only
comparable within one boot, so whoever stores it stores the boot id beside it (docs/design.md §4).
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary point, for intervals within one process."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, suspend included."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds from an arbitrary point."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class FixedClock:
    """A clock that stands still until it is told otherwise: for tests.

    `step` moves wall time alone (an administrator setting the clock); `advance` lets time pass.
    """

    wall: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    boot: float = 1000.0

    def now(self) -> datetime:
        """Wall time as last set."""
        return self.wall

    def monotonic(self) -> float:
        """The boot-time clock again: both only move by `advance`."""
        return self.boot

    def boottime(self) -> float:
        """Boot time as last set."""
        return self.boot

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on every clock."""
        self.wall += timedelta(seconds=seconds)
        self.boot += seconds

    def step(self, seconds: float) -> None:
        """Step the wall clock alone."""
        self.wall += timedelta(seconds=seconds)
