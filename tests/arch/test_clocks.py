"""Wall time is read in one module; decisions are given it."""

import ast

import pytest

from tests.arch import tree

THE_CLOCK = "isolet.base.clock"

WALL_CLOCKS = frozenset(
    {
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "date.today",
        "datetime.date.today",
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
        "time.ctime",
    }
)
IMPORTED_ALONE = frozenset({"time", "time_ns", "localtime", "gmtime", "ctime"})


def readings(module: tree.Module) -> list[str]:
    """Where a module reads the wall clock, or takes a function that does."""
    found = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute() if tree.dotted_name(node) in WALL_CLOCKS:
                found.append(f"{module.where(node)} {tree.dotted_name(node)}")
            case ast.ImportFrom(module="time", names=names):
                found += [
                    f"{module.where(node)} from time import {alias.name}"
                    for alias in names
                    if alias.name in IMPORTED_ALONE
                ]
    return found


@pytest.mark.parametrize("module", tree.modules(), ids=lambda m: m.dotted)
def test_nobody_but_the_clock_reads_wall_time(module: tree.Module) -> None:
    if module.dotted != THE_CLOCK:
        assert not readings(module), "take an isolet.base.clock.Clock, or a time, as an argument"


def test_the_test_sees_the_clock_itself() -> None:
    assert readings(tree.module(THE_CLOCK))
