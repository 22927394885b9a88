"""What a dispatch may say."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolet.apiserver.admission import FIELDS, IDS, REQUIRED, Contract, check, is_id
from isolet.base import errors
from tests.arch import tree

CALLBACK = "http://callback:8080"
WHOLE = {
    "job_id": "job",
    "run_id": "run",
    "app_id": "app",
    "board_id": "board",
    "node_id": "node",
    "user_id": "user",
    "executor_jwt": "x",
    "callback_url": CALLBACK,
    "credentials": {},
    "artifact": {},
}
CONTRACT = Contract(callback_url=CALLBACK)
URL = Contract(callback_url="http://callback.example")


def refused(fields: dict[str, object], contract: Contract = CONTRACT) -> str:
    with pytest.raises(errors.Invalid) as found:
        check(fields, contract)
    assert found.value.reason == "InvalidDispatch"
    return found.value.message


def test_a_whole_dispatch_passes_with_every_other_field() -> None:
    check(WHOLE, CONTRACT)
    check({**dict.fromkeys(FIELDS, None), **WHOLE}, CONTRACT)
    check({**WHOLE, "token": "", "payload": [1], "shadow": True}, CONTRACT)
    assert len(FIELDS) == 24


def test_the_document_to_start_from_is_one() -> None:
    check(json.loads(tree.text(tree.ROOT / "examples" / "dispatch.json")), URL)


def test_the_page_names_every_field_and_which_must_be_there() -> None:
    page = tree.text(tree.ROOT / "docs" / "dispatch.md")
    _, _, table = page.partition("| field | must be there | is |\n")
    rows = [row.split("|") for row in table.partition("\n\n")[0].splitlines()[1:]]
    named = {name: row[2].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert named.keys() == FIELDS
    assert {name for name, must in named.items() if must == "yes"} == set(REQUIRED)


@pytest.mark.parametrize("name", REQUIRED)
def test_what_has_to_be_there(name: str) -> None:
    assert name in refused({**WHOLE, name: None})
    assert name in refused({k: v for k, v in WHOLE.items() if k != name})


@given(st.text(max_size=30).filter(lambda name: name not in FIELDS))
def test_no_other_field_passes_and_none_is_quoted(name: str) -> None:
    message = refused({**WHOLE, name: 1})
    assert message == refused({**WHOLE, "no field at all": 1})
    assert "1 of its fields" in message
    assert all(field in message for field in FIELDS)


def test_a_front_door_may_ask_for_less_but_never_for_no_run() -> None:
    small = Contract(required=())
    check({"run_id": "a", "payload": {}}, small)
    assert "run_id" in refused({"payload": {}}, small)
    assert refused({"run_id": "a", "callback_url": CALLBACK}, small) == (
        "dispatch: callback_url: this front door is configured with none, so none may be named"
    )


def test_all_that_is_missing_is_told_at_once() -> None:
    assert refused({"run_id": "a", "callback_url": CALLBACK, "artifact": {}}) == (
        "dispatch: missing: job_id, app_id, board_id, node_id, user_id, executor_jwt, credentials"
    )


ID = "a string of at most 128: first a letter or digit, then [A-Za-z0-9_.:-]"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *((name, "a b", f"{name} must be {ID}") for name in IDS),
        ("user_id", 7, "user_id must be a string of 1 to 1024 bytes"),
        ("executor_jwt", "", "executor_jwt must be a string of 1 to 32768 bytes"),
        ("callback_url", 7, "callback_url must be a string"),
        ("credentials", [], "credentials must be an object"),
        ("token", "secret", 'token must be the empty string: ""'),
        (
            "callback_url",
            "http://other",
            "callback_url is not the one that this front door is configured with",
        ),
    ],
)
def test_a_refusal_says_the_rule_and_not_the_value(name: str, value: object, said: str) -> None:
    assert refused({**WHOLE, name: value}) == f"dispatch: {said}"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("a", True),
        ("A9_.:-", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("-a", False),
        (".a", False),
        ("a/b", False),
        ("a\n", False),
        ("é", False),
        (7, False),
        (None, False),
    ],
)
def test_ids(text: object, good: bool) -> None:
    assert is_id(text) is good
