"""The pages on reports and cases name tests that exist, and each report and case once."""

import re
from pathlib import Path

import pytest

from tests.arch import tree

PAGE = tree.ROOT / "docs" / "reports.md"
CASES = tree.ROOT / "docs" / "dispatch-cases.md"
TESTS = tree.ROOT / "tests"


@pytest.mark.parametrize("page", [PAGE, CASES], ids=tree.name)
def test_each_test_that_is_named_exists(page: Path) -> None:
    missing = []
    for file, _, function in re.findall(r"`([\w/]+\.py)(::(\w+))?`", page.read_text()):
        path = TESTS / file
        text = path.read_text() if path.exists() else ""
        if not text or (function and not re.search(rf"(?m)^(async )?def {function}\(", text)):
            missing.append(f"{file}::{function}")
    assert not missing


def test_each_report_is_told_once_in_order() -> None:
    told = re.findall(r"(?m)^\| ([A-Z]\d\d) \|", PAGE.read_text())
    assert told == sorted(set(told))


def test_a_test_that_is_named_after_a_report_is_on_the_page() -> None:
    page = PAGE.read_text()
    named = [
        found
        for path in TESTS.rglob("test_*.py")
        for found in re.findall(r"def (test_(?:[a-z]\d\d_)+\w+)\(", path.read_text())
    ]
    assert [name for name in named if name not in page] == []


def test_a_test_that_is_named_after_a_case_is_on_the_page_of_cases() -> None:
    page = CASES.read_text()
    folder = TESTS / "integration" / "dispatch"
    text = "\n".join(path.read_text() for path in folder.glob("test_*.py"))
    named = re.findall(r"def (test_\d\d_\w+)\(", text)
    assert named
    assert [name for name in named if f"::{name}`" not in page] == []
    told = [int(number) for number in re.findall(r"(?m)^\| (\d+) \|", page)]
    assert sorted(told) == [*range(1, 25), 35, 37, 48]
