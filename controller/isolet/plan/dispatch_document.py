"""The document of a dispatch: exactly one JSON object, and the envelope that carries it. PURE.

A document is judged before anything is reserved, so that what a runner would refuse never costs a
sandbox. Each way of being wrong has a reason of its own. The bytes go on as they came: numbers keep
their spelling, and only line ends between tokens are replaced, for an envelope is one line.
"""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from isolet.base import errors
from isolet.plan.dispatch_numbers import NotFinite, finite, whole
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES, Mode

_BLANKS = re.compile(r"[ \t\n\r]*")
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


class Defect(StrEnum):
    """Why a document is refused."""

    EMPTY = "DocumentMissing"
    TOO_LARGE = "DocumentTooLarge"
    NOT_UTF8 = "DocumentNotUTF8"
    NOT_JSON = "DocumentNotJSON"
    NOT_FINITE = "DocumentNotFinite"
    """NaN, Infinity, or a number that no double holds: no JSON, though some parsers take it."""
    DUPLICATE_KEY = "DocumentDuplicateKey"
    """Two readers could each believe another one of the two."""
    TOO_DEEP = "DocumentTooDeep"
    NOT_ALONE = "DocumentNotAlone"
    """Something follows the document, such as a second one."""
    NOT_OBJECT = "DocumentNotObject"


class _KeyTwice(Exception):
    """An object has a key twice."""


def parse(raw: bytes) -> dict[str, Any]:
    """The object that these bytes are.

    Raises:
        Invalid: they are not exactly one JSON object of at most 8 MiB; the reason is a `Defect`.
            The message holds nothing of the document.
    """
    if not raw.strip(b" \t\r\n"):
        raise _refused(Defect.EMPTY, "there is no document")
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise _refused(Defect.TOO_LARGE, f"it has more than {MAX_DOCUMENT_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(Defect.NOT_UTF8, f"byte {error.start} is not UTF-8") from None
    value, end = _decode(text)
    if _after_blanks(text, end) != len(text):
        raise _refused(Defect.NOT_ALONE, "something follows the document")
    if not isinstance(value, dict):
        raise _refused(Defect.NOT_OBJECT, "it must be a JSON object")
    return value


def _decode(text: str) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, _after_blanks(text, 0))
    except _KeyTwice:
        raise _refused(Defect.DUPLICATE_KEY, "an object in it has a key twice") from None
    except NotFinite:
        raise _refused(Defect.NOT_FINITE, "a number in it is not finite") from None
    except json.JSONDecodeError as error:
        raise _refused(Defect.NOT_JSON, f"it breaks off as JSON at character {error.pos}") from None
    except RecursionError:
        raise _refused(Defect.TOO_DEEP, "it is nested too deeply") from None


def _after_blanks(text: str, start: int) -> int:
    found = _BLANKS.match(text, start)
    return start if found is None else found.end()


def envelope(mode: Mode, raw: bytes) -> bytes:
    """The line that a runner reads: `{"mode": …, "payload": <the document>}` and a newline.

    `raw` has passed `parse`, so a line end in it stands between tokens, where a blank does as well.

    Raises:
        Invalid: with the envelope around it, it is too large.
    """
    line = b"".join(
        (
            b'{"mode":"',
            mode.value.encode(),
            b'","payload":',
            raw.strip(b" \t\r\n").translate(_LINE_ENDS),
            b"}\n",
        )
    )
    if len(line) > MAX_DOCUMENT_BYTES:
        raise _refused(
            Defect.TOO_LARGE, f"it has more than {MAX_DOCUMENT_BYTES} bytes with its envelope"
        )
    return line


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _KeyTwice
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=finite, parse_float=finite, parse_int=whole
)


def _refused(defect: Defect, text: str) -> errors.Invalid:
    return errors.Invalid(f"document: {text}", reason=defect.value)
