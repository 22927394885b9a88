"""Numbers side by side, and which targets they meet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def quantile(values: Sequence[float], part: float) -> float:
    """The least value measured that at least `part` of them do not pass (the nearest rank)."""
    ordered = sorted(values)
    # A product that is whole but for the last binary digit is whole.
    return ordered[max(1, math.ceil(part * len(ordered) - 1e-9)) - 1]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


@dataclass
class Table:
    """Rows of text under a heading."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def text(self) -> str:
        every = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in every) for i in range(len(self.columns))]
        lines = [self.title]
        for row in every:
            cells = [
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        return "\n".join(lines)


@dataclass
class Target:
    """What was to be reached."""

    what: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def text(self) -> str:
        word = "met   " if self.met else "MISSED"
        sign = ">=" if self.at_least else "<="
        return (
            f"  {word}  {self.what}: {self.measured:.4g} {self.unit}"
            f" (target {sign} {self.limit:.4g})"
        )


@dataclass
class Report:
    """All of one run."""

    name: str
    conditions: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    """Everything measured, for programs."""

    def table(self, title: str, *columns: str) -> Table:
        made = Table(title, columns)
        self.tables.append(made)
        return made

    def text(self) -> str:
        said = ", ".join(f"{key} {value}" for key, value in self.conditions.items())
        parts = [f"hack/bench {self.name}: {said}", *(table.text() for table in self.tables)]
        parts.append("\n".join(["targets", *(target.text() for target in self.targets)]))
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        return {
            "bench": self.name,
            "conditions": self.conditions,
            "numbers": self.numbers,
            "targets": [vars(target) | {"met": target.met} for target in self.targets],
        }
