"""Events as they go out: one JSON object a line, or Server-Sent Events. PURE.

JSON is written in ASCII, so no character of a tenant's can end a line of the stream. The only word
of a runner's that stands outside of JSON is none at all: an event's type is inside its data too.
"""

import json
from collections.abc import Callable
from typing import Any

from isolet.plan.dispatch_events import SEQUENCE
from isolet.wire.dispatch import HEARTBEAT, DispatchEvent, DispatchLine
from isolet.wire.execution import Outcome

INTERRUPTED = "execution interrupted; inspect the run's status"
UNCONFIRMED = "Unconfirmed"
UNKNOWN = "how the run ended is not known here; inspect the run's status"
"""It may have succeeded: its events are not kept any more, or nobody told of its end."""

Encoder = Callable[[int | None, dict[str, Any]], bytes]


def ndjson(_sequence: int | None, event: dict[str, Any]) -> bytes:
    """A line."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def result(payload: dict[str, Any]) -> bytes:
    """The answer to a caller who waits for a result alone."""
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=True).encode()


def sse(sequence: int | None, event: dict[str, Any]) -> bytes:
    """An event; its id is what a reader says in `Last-Event-ID` when it comes back."""
    head = b"" if sequence is None else f"id: {sequence}\n".encode()
    return head + b"data: " + ndjson(sequence, event) + b"\n"


def line(found: DispatchLine, encode: Encoder) -> bytes:
    """One line of an agent's stream; nothing for the end of a run that succeeded."""
    if found.event is not None:
        return encode(found.event.sequence, numbered(found.event))
    if found.ended is not None:
        return b"" if found.ended.succeeded else failure(found.ended, encode)
    return encode(None, {"event_type": HEARTBEAT})


def numbered(event: DispatchEvent) -> dict[str, Any]:
    """The runner's object with its number."""
    return {SEQUENCE: event.sequence, **event.event}


def failure(outcome: Outcome | None, encode: Encoder) -> bytes:
    """The last event of a run that failed, or of which nothing more can be learned here."""
    if outcome is None:
        payload = {"message": UNKNOWN, "reason": UNCONFIRMED}
    else:
        payload = {"message": INTERRUPTED, "reason": outcome.reason}
    return encode(None, {"event_type": "error", "payload": payload})
