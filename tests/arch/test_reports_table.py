"""The page on reports names tests that exist, and each report once."""

import re

from tests.arch import tree

PAGE = tree.ROOT / "docs" / "reports.md"
TESTS = tree.ROOT / "tests"


def test_each_test_that_is_named_exists() -> None:
    missing = []
    for file, _, function in re.findall(r"`([\w/]+\.py)(::(\w+))?`", PAGE.read_text()):
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
