"""The tree speaks of the project alone: no machine it was made on, no notes that are not in it."""

import re
from pathlib import Path

import pytest

from tests.arch import tree

BANNED = {
    r"(?<![\w.~$}-])/(?:work|farm)/": "a path of one machine",
    r"(?<![\w.])/(?:home/[a-z]+|root)/\.?[a-z]": "a path of one machine",
    r"--(?:extra-)?index-url|GOPROXY=http": "a registry of one network",
    r"\bfacts[/ ]?§|\bfacts/|\(facts: (?![A-Z])": "notes that are not in the tree",
    r"hard-joints|real-cluster|seed-systems|bug-reports": "notes that are not in the tree",
    r"\bseeds?/|\bseed 0\d\d\b": "a source that is not in the tree",
    r"\bthe (?:three )?seed(?:'s|s| systems?)?\b": "a source that is not in the tree",
    r"(?<!\w)shared/(?:design|facts|seeds)": "notes that are not in the tree",
    r"\bissues? \d+\b": "a tracker that is not in the tree",
}

NOT_PROSE = frozenset({".sum", ".lock"})
FILES = [
    path
    for path in tree.tracked()
    if path.suffix not in NOT_PROSE
    and path.name != "LICENSE"
    and not path.is_relative_to(tree.ROOT / "tests" / "arch")
]


@pytest.mark.parametrize("path", FILES, ids=tree.name)
def test_a_file_names_nothing_outside(path: Path) -> None:
    found = [
        f"{tree.name(path)}:{number}: {why}: {line.strip()[:100]}"
        for number, line in enumerate(tree.text(path).splitlines(), 1)
        for pattern, why in BANNED.items()
        if re.search(pattern, line)
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "see /work/main",
        "# /farm/x",
        "(seed 002)",
        "(facts §1.2)",
        "facts/hard-joints F",
        "as the seed allows",
        "the three seed systems",
        "issue 3 says",
        "/root/.cache",
    ],
)
def test_the_patterns_find_what_they_are_for(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in BANNED)


@pytest.mark.parametrize(
    "line",
    [
        "/workspace/out",
        "framework/x",
        "random.seed(1)",
        "docs/seed-mapping.md",
        "root:/root:/bin/sh",
    ],
)
def test_the_patterns_find_nothing_else(line: str) -> None:
    assert not any(re.search(pattern, line) for pattern in BANNED)
