"""What a runner writes: one JSON object a line, within bounds, at most one of them the end. PURE.

    {"event_type": "progress", "payload": …}
    {"event_type": "completed", "payload": {…}}

`Decoder` is fed bytes as they come, cut anywhere, and gives whole events. It is the same for bytes
that were just read and for those of a spool that is read again after a restart.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pydantic

from isolet.plan import reasons
from isolet.plan.dispatch_numbers import finite, whole
from isolet.wire.dispatch import (
    COMPLETED,
    HEARTBEAT,
    MAX_EVENT_BYTES,
    MAX_EVENTS_BYTES,
    DispatchEvent,
)

SEQUENCE = "sequence"
"""Added to each event for those who follow; no runner may use it."""

MAX_DEPTH = 180
"""Levels of arrays and objects in an event. The parser of our messages takes 200, and an event is
some levels down in one."""

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}\Z")


class Violation(Exception):
    """The runner broke its contract: the run ends for it. The message holds nothing it wrote."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True)
class Decoder:
    """Bytes in, events out."""

    sequence: int = 0
    """Number of the last event."""
    total: int = 0
    """Bytes so far."""
    whole: int = 0
    """Of those, bytes of whole events."""
    completed: bool = False
    """The terminal event has come."""
    _rest: bytearray | None = None

    def feed(self, chunk: bytes) -> Iterator[DispatchEvent]:
        """The events that end in this chunk; to be iterated to its end.

        Raises:
            Violation: a bound was passed or a line is no event; nothing may be fed afterwards.
        """
        room = MAX_EVENTS_BYTES - self.total
        self.total += len(chunk)
        yield from self._lines(chunk[: max(room, 0)])
        if len(chunk) > room:
            raise Violation(
                reasons.OUTPUT_LIMIT_EXCEEDED, f"it wrote more than {MAX_EVENTS_BYTES} bytes"
            )

    def finish(self) -> None:
        """Says that nothing follows.

        Raises:
            Violation: the last line has no end.
        """
        if self._rest:
            raise _broken("its last line has no newline")

    def _lines(self, chunk: bytes) -> Iterator[DispatchEvent]:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            whole = self._take(line)
            event = self._event(whole)
            self.whole += len(whole) + 1
            yield event
        if self._rest is None:
            self._rest = bytearray()
        self._rest += rest
        _bounded(self._rest)

    def _take(self, line: bytes) -> bytes:
        whole = bytes(self._rest or b"") + line
        self._rest = None
        _bounded(whole)
        return whole

    def _event(self, line: bytes) -> DispatchEvent:
        number = self.sequence + 1
        if self.completed:
            raise _broken(f"line {number} follows the terminal event")
        event = _parsed(line, number)
        kind = event.get("event_type")
        if not isinstance(kind, str) or not _TYPE.match(kind) or kind == HEARTBEAT:
            raise _broken(f"line {number} has no event_type that a runner may use")
        if SEQUENCE in event:
            raise _broken(f"line {number} has a {SEQUENCE} of its own")
        if kind == COMPLETED:
            if not isinstance(event.get("payload"), dict):
                raise _broken("the payload of its terminal event is no object")
            self.completed = True
        self.sequence = number
        return DispatchEvent(sequence=number, type=kind, event=event)


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        event = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _broken(f"line {number} is no JSON") from None
    if not isinstance(event, dict):
        raise _broken(f"line {number} is no JSON object")
    # As everyone on its way reads it: what one of them cannot read would hold up all that follows.
    try:
        _ON_THE_WAY.validate_json(_ABOVE + line + _BELOW)
    except pydantic.ValidationError:
        raise _broken(
            f"line {number} is nested more than {MAX_DEPTH} deep, or has half of a surrogate pair"
        ) from None
    return event


_DECODER = json.JSONDecoder(parse_constant=finite, parse_float=finite, parse_int=whole)
_ON_THE_WAY = pydantic.TypeAdapter[Any](Any)
_ABOVE, _BELOW = b"[" * (200 - MAX_DEPTH), b"]" * (200 - MAX_DEPTH)


def _bounded(line: bytes | bytearray) -> None:
    if len(line) > MAX_EVENT_BYTES:
        raise Violation(
            reasons.EVENT_TOO_LARGE, f"a line of it has more than {MAX_EVENT_BYTES} bytes"
        )


def _broken(text: str) -> Violation:
    return Violation(reasons.PROTOCOL_VIOLATED, text)
