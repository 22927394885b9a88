"""Pages of a list that goes on growing: a position in its order, as an opaque cursor. Pure."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

Position = tuple[datetime, bytes, bytes]
_T = TypeVar("_T")

MOST = 1000


def check_limit(limit: int) -> None:
    """Raise ValueError unless it is a page size."""
    if not 1 <= limit <= MOST:
        raise ValueError(f"limit must be from 1 to {MOST}")


def after(cursor: str | None) -> Position | None:
    """The position that a cursor stands for. Raises TypeError when it is none of ours."""
    if cursor is None:
        return None
    try:
        at, scope, name = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        position = (datetime.fromisoformat(at), bytes.fromhex(scope), bytes.fromhex(name))
    except (ValueError, TypeError, AttributeError, binascii.Error):
        raise TypeError("the cursor is malformed") from None
    if position[0].tzinfo is None:
        raise TypeError("the cursor is malformed")
    return position


def cursor(position: Position) -> str:
    """The cursor for what comes after a position."""
    at, scope, name = position
    text = json.dumps([at.isoformat(), scope.hex(), name.hex()])
    return base64.urlsafe_b64encode(text.encode()).decode()


def page(
    items: Sequence[_T],
    position: Callable[[_T], Position],
    since: Position | None,
    limit: int,
) -> tuple[tuple[_T, ...], str | None]:
    """The next page, and the cursor of the one after it if there is more."""
    ordered = sorted(items, key=position)
    rest = [item for item in ordered if since is None or position(item) > since]
    more = len(rest) > limit
    found = tuple(rest[:limit])
    return found, cursor(position(found[-1])) if more else None
