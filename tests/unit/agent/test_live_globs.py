"""Which folders of a live workspace a glob looks into."""

import pytest

from isolet.agent.service.collect import fixed_part, leads_into


@pytest.mark.parametrize(
    ("glob", "folder"),
    [
        ("*.txt", ""),
        ("a/*.txt", "a"),
        ("a/b/*/c", "a/b"),
        ("**", ""),
        ("a/**/b", "a"),
        ("a?/b", ""),
        ("a/b/c*", "a/b"),
    ],
)
def test_it_begins_at_the_folder_above_the_first_wildcard(glob: str, folder: str) -> None:
    assert fixed_part(glob) == folder


@pytest.mark.parametrize(
    ("glob", "folder", "led"),
    [
        ("a/*/x", "a/b", True),
        ("a/*/x", "a/b/c", False),
        ("a/*/x", "b/c", False),
        ("a/b*/x", "a/bc", True),
        ("a/b*/x", "a/cb", False),
        ("a/*.txt", "a/b.txt", False),
        ("**/x", "a/b/c/d", True),
        ("a/**", "a/b", True),
        ("a/**/x", "b", False),
        ("?/x", "ab", False),
    ],
)
def test_it_goes_on_only_where_a_match_can_lie(glob: str, folder: str, led: bool) -> None:
    assert leads_into(glob, folder) is led
