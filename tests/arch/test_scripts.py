"""Scripts stop at the first error, an unset variable, and a failed part of a pipe."""

from pathlib import Path

import pytest

from tests.arch import tree

STRICT = "set -euo pipefail"


def first_line(path: Path) -> str:
    with path.open("rb") as file:
        return file.readline(200).decode(errors="replace")


def is_bash(path: Path) -> bool:
    shebang = first_line(path)
    return path.suffix in (".sh", ".bash") or (shebang.startswith("#!") and "sh" in shebang)


SCRIPTS = [path for path in tree.tracked() if is_bash(path)]


def first_commands(path: Path) -> list[str]:
    lines = [line.strip() for line in tree.text(path).splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("script", SCRIPTS, ids=tree.name)
def test_a_script_is_strict_from_its_first_command(script: Path) -> None:
    first = first_commands(script)[0]
    assert first == STRICT or (first.startswith(("source ", ". ")) and first.endswith('lib.sh"'))


@pytest.mark.parametrize("script", SCRIPTS, ids=tree.name)
def test_a_script_is_bash(script: Path) -> None:
    shebang = first_line(script).strip()
    assert shebang in ("#!/usr/bin/env bash", "") or not shebang.startswith("#!")


def test_there_are_scripts() -> None:
    assert tree.ROOT / "hack" / "check" in SCRIPTS
