"""The names themselves are a table shared with the API server: tests/unit/api/refusals.py."""

import re

import hypothesis
import pytest
from hypothesis import strategies as st

from isolet.base import envnames


def test_only_what_re2_knows() -> None:
    """No lookaround, no back reference: the API server must take the same text."""
    for pattern in (envnames.NAME_PATTERN, envnames.CREDENTIAL_PATTERN):
        assert not re.search(r"\(\?[=!<]|\\[1-9]|\(\?P", pattern)


@pytest.mark.parametrize("name", ["A", "_", "a1", "A" * 256])
def test_names(name: str) -> None:
    assert envnames.is_name(name)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=", "A\n", "Ä", "A\0", "A" * 257])
def test_not_names(name: str) -> None:
    assert not envnames.is_name(name)


@hypothesis.given(
    st.sampled_from(["token", "secret", "password", "credential", "apikey", "private_key"]),
    st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,8}\Z"),
    st.booleans(),
)
def test_a_name_that_ends_in_a_credential_is_one(word: str, before: str, upper: bool) -> None:
    name = f"{before}{word}"
    assert envnames.looks_like_credential(name.upper() if upper else name)


@hypothesis.given(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,16}\Z"))
def test_case_does_not_matter(name: str) -> None:
    looks = envnames.looks_like_credential
    assert looks(name.upper()) == looks(name.lower())
