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
