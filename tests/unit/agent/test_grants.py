"""Who may read what for how long."""

from dataclasses import replace

import pytest

from isolet.agent.transfer import grants
from isolet.agent.transfer.grants import Now, Subject
from isolet.base import errors

KEY = b"k" * 32
SUBJECT = Subject("uid-1", "sha256:" + "a" * 64, "node-2")
NOW = Now("boot-1", 1000.0)


def refused(token: str, subject: Subject = SUBJECT, now: Now = NOW, key: bytes = KEY) -> str:
    with pytest.raises(errors.Refused) as caught:
        grants.check(key, token, subject, now)
    assert caught.value.reason == grants.REFUSED
    return caught.value.message


def test_it_is_good_until_it_ends() -> None:
    token = grants.give(KEY, SUBJECT, 60, NOW)
    grants.check(KEY, token, SUBJECT, NOW)
    grants.check(KEY, token, SUBJECT, Now("boot-1", 1059.9))
    refused(token, now=Now("boot-1", 1060.0))


@pytest.mark.parametrize(
    "changes", [{"uid": "uid-2"}, {"reader": "node-3"}, {"manifest_digest": "sha256:" + "b" * 64}]
)
def test_it_is_good_for_nothing_else(changes: dict[str, str]) -> None:
    refused(grants.give(KEY, SUBJECT, 60, NOW), replace(SUBJECT, **changes))


def test_it_ends_with_the_boot_and_with_the_key() -> None:
    token = grants.give(KEY, SUBJECT, 60, NOW)
    refused(token, now=Now("boot-2", 10.0))
    refused(token, key=b"x" * 32)


def test_no_changed_token_is_good() -> None:
    token = grants.give(KEY, SUBJECT, 60, NOW)
    said = set()
    for place in range(len(token)):
        for other in "0A_.":
            changed = token[:place] + other + token[place + 1 :]
            if changed != token:
                said.add(refused(changed))
    for odd in (
        "",
        ".",
        token + "A",
        "9" * 400,
        token.partition(".")[0],
        f"\n{token}",
        f"{token}\n",
    ):
        said.add(refused(odd))
    assert len(said) == 1, "a refusal tells how far it came"


@pytest.mark.parametrize("seconds", [0, -1, 3601])
def test_a_time_that_is_no_short_while(seconds: int) -> None:
    with pytest.raises(errors.Invalid):
        grants.give(KEY, SUBJECT, seconds, NOW)


def test_names_are_not_run_together() -> None:
    one, other = replace(SUBJECT, uid="a", manifest_digest="bc"), replace(SUBJECT, uid="ab")
    refused(grants.give(KEY, one, 60, NOW), replace(other, manifest_digest="c"))
    with pytest.raises(errors.Invalid):
        grants.give(KEY, replace(SUBJECT, reader="a\0b"), 60, NOW)


def test_it_does_not_hold_what_it_is_about() -> None:
    token = grants.give(KEY, SUBJECT, 60, NOW)
    assert SUBJECT.uid not in token
    assert SUBJECT.reader not in token
    assert len(token) < 80
