"""What a number may be, in the document of a dispatch and in the events of its runner. PURE."""

import math


class NotFinite(ValueError):
    """NaN, Infinity, or a number that no double holds: no JSON (RFC 8259, section 6; RFC 7493)."""


def finite(text: str) -> float:
    """The double that `text` says: `parse_float` and `parse_constant` of a `json.JSONDecoder`.

    Without the second, Python's parser takes NaN, Infinity and -Infinity, which it calls constants;
    without the first it makes an infinity of 1e999.

    Raises:
        NotFinite: there is none. It holds nothing of the text.
    """
    value = float(text)
    if not math.isfinite(value):
        raise NotFinite
    return value


def whole(text: str) -> int:
    """The integer that `text` says, within what a double holds: `parse_int` of the same.

    Exact, though a reader with doubles rounds it. Python itself makes none of thousands of digits.

    Raises:
        NotFinite: a double holds no number so large. It holds nothing of the text.
    """
    finite(text)
    return int(text)
