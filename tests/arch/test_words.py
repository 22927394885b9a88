"""No file names a place that exists on one machine only."""

import re
from pathlib import Path

import pytest

from tests.arch import tree

HOME = re.compile(r"(?<![\w.$}])/(?:root|home)/[\w.]")
"""Somebody's home folder; what is made for everyone says $HOME or takes a setting."""

NOT_PROSE = frozenset({".sum", ".lock"})
FILES = [
    path
    for path in tree.tracked()
    if path.suffix not in NOT_PROSE and path.name != "LICENSE" and path != Path(__file__)
]


@pytest.mark.parametrize("path", FILES, ids=tree.name)
def test_a_file_names_no_home_folder(path: Path) -> None:
    found = [
        f"{tree.name(path)}:{number}: {line.strip()[:100]}"
        for number, line in enumerate(tree.text(path).splitlines(), 1)
        if HOME.search(line)
    ]
    assert not found


@pytest.mark.parametrize("line", ["see /root/.cache", "cd /home/someone"])
def test_the_pattern_finds_what_it_is_for(line: str) -> None:
    assert HOME.search(line)
