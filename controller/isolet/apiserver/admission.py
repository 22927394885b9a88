"""What a dispatch may say: the fields it may have, and the form of those that matter here. PURE.

The list is closed, so that nobody can ask for an image, a command, a mount or a bound through a
document that some later part might read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isolet.base import errors
from isolet.wire.dispatch import RUN_ID_PATTERN, Mode

FIELDS = frozenset(
    {
        "job_id",
        "run_id",
        "app_id",
        "board_id",
        "board_version",
        "board_etag",
        "node_id",
        "event_json",
        "payload",
        "user_id",
        "credentials",
        "executor_jwt",
        "callback_url",
        "token",
        "oauth_tokens",
        "stream_state",
        "execution_mode",
        "runtime_variables",
        "user_context",
        "profile",
        "wasm_packages",
        "channel",
        "shadow",
        "artifact",
    }
)
IDS = ("job_id", "run_id", "app_id", "board_id", "node_id")
REQUIRED = (*IDS, "user_id", "executor_jwt", "callback_url", "credentials", "artifact")
MAX_USER_ID = 1024
MAX_JWT = 32_768

_ID = re.compile(RUN_ID_PATTERN.rstrip("$") + r"\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """What this front door asks of a document beyond its fields."""

    callback_url: str | None = None
    """The only one that a document may name; None: it may name none."""
    required: tuple[str, ...] = REQUIRED
    """Fields that must be there; `run_id` always."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """A document that may be reserved for."""

    run_id: str
    mode: Mode
    document: bytes
    """As it came. Read, it may be many times as large: nobody keeps that."""
    digest: str
    """SHA-256 of it."""


def is_id(value: object) -> bool:
    """Whether it is an id: first alphanumeric, then [A-Za-z0-9_.:-], at most 128."""
    return isinstance(value, str) and _ID.match(value) is not None


def check(fields: Mapping[str, Any], contract: Contract) -> None:
    """Refuse a document that this front door does not serve.

    Raises:
        Invalid: which field, which rule; never a value, and no name that we do not know.
    """
    unknown = len(fields.keys() - FIELDS)
    if unknown:
        raise _wrong(f"{unknown} of its fields may not be there; {_ALLOWED}")
    wanted = dict.fromkeys(("run_id", *contract.required))
    missing = [name for name in wanted if fields.get(name) is None]
    if missing:
        raise _wrong(f"missing: {', '.join(missing)}")
    for name, (holds, rule) in _RULES.items():
        value = fields.get(name)
        if value is not None and not holds(value):
            raise _wrong(f"{name} must be {rule}")
    callback = fields.get("callback_url")
    if callback is not None and callback != contract.callback_url:
        raise _wrong(_NO_CALLBACK if contract.callback_url is None else _OTHER_CALLBACK)


_Rule = tuple[Callable[[object], bool], str]


def _text(most: int) -> _Rule:
    def holds(value: object) -> bool:
        return isinstance(value, str) and 1 <= len(value.encode("utf-8", "replace")) <= most

    return holds, f"a string of 1 to {most} bytes"


_ALLOWED = f"those that may: {', '.join(sorted(FIELDS))}"
_NO_CALLBACK = "callback_url: this front door is configured with none, so none may be named"
_OTHER_CALLBACK = "callback_url is not the one that this front door is configured with"
_ID_RULE = "a string of at most 128: first a letter or digit, then [A-Za-z0-9_.:-]"
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(IDS, (is_id, _ID_RULE)),
    "user_id": _text(MAX_USER_ID),
    "executor_jwt": _text(MAX_JWT),
    "callback_url": (lambda value: isinstance(value, str), "a string"),
    "credentials": (lambda value: isinstance(value, dict), "an object"),
    "token": (lambda value: value == "", 'the empty string: ""'),
}


def _wrong(text: str) -> errors.Invalid:
    return errors.Invalid(f"dispatch: {text}", reason="InvalidDispatch")
