"""What `hack/bench warm` has seen, as tables and beside its targets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from .report import Report, Target, median, quantile

Values = dict[str, list[float]]

TURNS = {
    "commit": "disk: one synced commit",
    "line": "floor of stdin: a line to a shell that waits",
    "launcher": "floor: the agent's scripts in a bare slot",
    "command": "warm: agent, any command",
    "object": "warm: an Execution object",
    "runner": "floor: a document to the bare runner",
    "dispatch": "warm: agent, a document",
    "reserved": "warm: agent, a document in a slot reserved before",
    "door": "warm: front door, to the runner's first byte",
    "door event": "warm: front door, to the caller's first event",
    "docker run": "floor: create and start, docker run",
    "cold agent": "cold: agent",
    "cold object": "cold: an Execution object",
}
FLOOR_OF = {
    "command": "launcher",
    "object": "launcher",
    "dispatch": "runner",
    "reserved": "runner",
    "door": "runner",
    "door event": "runner",
    "cold agent": "docker run",
    "cold object": "docker run",
}
"""What each is told as a ratio to."""
LATENCY = (
    # Kind, part, milliseconds to reach, milliseconds of the floor for which that was set.
    ("dispatch", 0.5, 8, 3),
    ("dispatch", 0.99, 25, 3),
    ("command", 0.5, 20, 14),
    ("command", 0.99, 50, 14),
    ("door", 0.5, 20, 3),
    ("door", 0.99, 60, 3),
)
AT_ONCE_MS = 100
_QUANTILES = ("n", "p50", "p90", "p99", "least", "most")


@dataclass
class Seen:
    """Seconds by kind, and what else was counted."""

    turns: Values = field(default_factory=dict)
    at_once: Values = field(default_factory=dict)
    arrivals: Values = field(default_factory=dict)
    loops: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    """Runs a second, calls that were sent late, calls that found no slot; of each kind."""
    sustained: dict[str, float] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)
    rest: set[asyncio.Future[None]] = field(default_factory=set)
    """What still goes on after a first byte."""

    def turn(self, kind: str, seconds: float) -> None:
        """Add one of the runs that take turns."""
        self.turns.setdefault(kind, []).append(seconds)


def tell(report: Report, seen: Seen) -> None:
    """Every table and every target."""
    turns = report.table(
        "one at a time, in turns: call → first byte, ms", "", *_QUANTILES, "of its floor"
    )
    for kind, words in TURNS.items():
        if kind in seen.turns:
            floor = FLOOR_OF.get(kind)
            ratio = "" if floor is None else f"{_ratio(seen.turns, kind, floor):.2f}"
            turns.add(words, *_cells(seen.turns[kind]), ratio)
    for title, values in (
        ("calls that come at random: intended arrival → first byte, ms", seen.arrivals),
        ("nine at once, pool of 10: call → first byte, ms", seen.at_once),
    ):
        table = report.table(title, "", *_QUANTILES)
        for kind, found in values.items():
            table.add(TURNS[kind], *_cells(found))
    _tell_rates(report, seen)
    idle = report.table("memory of an idle slot, MiB in its cgroup", "", "n", "p50", "most")
    for class_name, amounts in seen.memory.items():
        mib = [amount / (1 << 20) for amount in amounts]
        idle.add(class_name, str(len(mib)), f"{median(mib):.1f}", f"{max(mib):.1f}")
    _tell_targets(report, seen)
    kept = ("turns", "arrivals", "at_once", "loops", "sustained", "memory")
    report.numbers = {name: getattr(seen, name) for name in kept}


def _tell_rates(report: Report, seen: Seen) -> None:
    loops = report.table("the same calls", "", "runs a second", "sent late", "found no slot")
    for kind, (rate, late, none) in seen.loops.items():
        loops.add(TURNS[kind], f"{rate:.2f}", str(late), str(none))
    rates = report.table("as many as can be had, slots made anew", "", "runs a second", "of engine")
    words = {"engine": "floor: create, start, wait, remove"}
    for kind, rate in seen.sustained.items():
        share = rate / seen.sustained["engine"]
        rates.add(words.get(kind, TURNS.get(kind, kind)), f"{rate:.2f}", f"{100 * share:.0f} %")


def _tell_targets(report: Report, seen: Seen) -> None:
    for kind, part, limit, floor_ms in LATENCY:
        values, floor = seen.arrivals[kind], FLOOR_OF[kind]
        what = f"{TURNS[kind]}, p{part * 100:.0f}"
        report.targets.append(Target(what, 1000 * quantile(values, part), limit, "ms"))
        if part == 0.5:
            ratio = _ratio(seen.turns, kind, floor)
            report.targets.append(
                Target(f"{TURNS[kind]}, p50 in turns to its floor", ratio, limit / floor_ms, "")
            )
    for kind in ("command", "dispatch", "door"):
        values = seen.at_once[kind]
        what = f"nine at once, {TURNS[kind]}, p90"
        report.targets.append(Target(what, 1000 * quantile(values, 0.9), AT_ONCE_MS, "ms"))


def _ratio(values: Values, kind: str, floor: str) -> float:
    return median(values[kind]) / median(values[floor])


def _cells(values: list[float]) -> list[str]:
    found = [quantile(values, part) for part in (0.5, 0.9, 0.99)]
    times = (*found, min(values), max(values))
    return [str(len(values)), *(f"{1000 * value:.1f}" for value in times)]
