"""No file and no function grows past what one reads in a sitting, unless it says here why."""

import ast

import pytest

from tests.arch import tree

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50

LONG_FILES: dict[str, str] = {}
"""Path below the root → why it is better whole than cut."""

LONG_FUNCTIONS: dict[str, str] = {}
"""`module:function` → why it is better whole than cut."""


def line_count(module: tree.Module) -> int:
    return len(tree.text(module.path).splitlines())


def length(function: tree.Function) -> int:
    """Lines from `def` to the end, the docstring apart."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is None or first.end_lineno is None:
        return lines
    return lines - (first.end_lineno - first.lineno + 1)


@pytest.mark.parametrize("module", tree.modules(), ids=lambda m: m.dotted)
def test_a_file_is_short_or_says_why_not(module: tree.Module) -> None:
    lines = line_count(module)
    if tree.name(module.path) not in LONG_FILES:
        assert lines <= MAX_FILE_LINES, f"{tree.name(module.path)} has {lines} lines: split it"


@pytest.mark.parametrize("module", tree.modules(), ids=lambda m: m.dotted)
def test_a_function_is_short_or_says_why_not(module: tree.Module) -> None:
    long = [
        f"{module.where(function)} {function.name} has {length(function)} lines"
        for function in module.functions()
        if length(function) > MAX_FUNCTION_LINES
        and f"{module.dotted}:{function.name}" not in LONG_FUNCTIONS
    ]
    assert not long


def test_the_exceptions_are_still_needed() -> None:
    long_files = {tree.name(m.path) for m in tree.modules() if line_count(m) > MAX_FILE_LINES}
    long_functions = {
        f"{m.dotted}:{f.name}"
        for m in tree.modules()
        for f in m.functions()
        if length(f) > MAX_FUNCTION_LINES
    }
    assert LONG_FILES.keys() <= long_files
    assert LONG_FUNCTIONS.keys() <= long_functions
    assert all([*LONG_FILES.values(), *LONG_FUNCTIONS.values()])
