"""Kubernetes quantities, exactly.

The grammar is that of `k8s.io/apimachinery`: a decimal number and one suffix (`Ki Mi Gi Ti Pi Ei`,
`n u m k M G T P E`, or an exponent such as `e9`). Everything is a fraction until the last step, so
no digit is lost; what does not fit a signed 64-bit integer is refused rather than rounded.
"""

import fractions
import functools
import re

MAX = 2**63 - 1
"""The largest whole value a quantity may have, in bytes or in whole units."""

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_MAX_LENGTH = 64
_MAX_EXPONENT = 30
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SUFFIXES: dict[str, fractions.Fraction] = {
    "": fractions.Fraction(1),
    "n": fractions.Fraction(1, 10**9),
    "u": fractions.Fraction(1, 10**6),
    "m": fractions.Fraction(1, 1000),
    **{s: fractions.Fraction(1000 ** (i + 1)) for i, s in enumerate("kMGTPE")},
    **{s: fractions.Fraction(1024 ** (i + 1)) for i, s in enumerate(_BINARY)},
}


class QuantityError(ValueError):
    """The text is not a quantity, or its value does not fit."""


# A status is validated anew at every pass, and its quantities are few and always the same.
@functools.lru_cache(maxsize=4096)
def parse(text: str) -> fractions.Fraction:
    """Reads a quantity.

    Args:
        text: such as `512Mi`, `1.5`, `250m` or `1e9`.

    Returns:
        The exact value, in bytes for a size and in whole units for anything else.

    Raises:
        QuantityError: the text is not a quantity, or does not fit a signed 64-bit integer.
    """
    if not isinstance(text, str):
        raise QuantityError(f"a quantity is written as a string, not as {type(text).__name__}")
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise QuantityError(f"{text[:_MAX_LENGTH]!r} is not a quantity such as 512Mi, 1.5 or 250m")
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > _MAX_EXPONENT:
        raise QuantityError(f"{text!r} is out of range")
    value = _number(match["digits"]) * _SUFFIXES[match["suffix"] or ""]
    value *= fractions.Fraction(10) ** exponent
    if value > MAX:
        raise QuantityError(f"{text!r} is out of range")
    return -value if match["sign"] == "-" else value


def to_bytes(text: str) -> int:
    """The size in bytes; part of a byte counts as a whole one, as Kubernetes counts it."""
    return _ceil(parse(text))


def to_milli_cpu(text: str) -> int:
    """The CPU share in thousandths of a CPU, rounded up."""
    return _ceil(parse(text) * 1000)


def to_nano_cpu(text: str) -> int:
    """The CPU share in the unit that container engines use, rounded up."""
    return _ceil(parse(text) * 10**9)


def format_bytes(size: int) -> str:
    """The shortest exact binary form: `1Gi`, `1536Mi`, or plain digits where none divides it."""
    unit = ""
    for suffix in _BINARY:
        if size == 0 or size % 1024:
            break
        size //= 1024
        unit = suffix
    return f"{size}{unit}"


def format_milli_cpu(milli: int) -> str:
    """Whole CPUs as plain digits, anything else in thousandths: `2`, `1500m`."""
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(whole)


def same(one: str, other: str) -> bool:
    """Whether two quantities have the same value, however they are written."""
    return parse(one) == parse(other)


def _number(digits: str) -> fractions.Fraction:
    whole, _, part = digits.partition(".")
    return fractions.Fraction(int((whole + part) or "0"), 10 ** len(part))


def _ceil(value: fractions.Fraction) -> int:
    return -(-value.numerator // value.denominator)
