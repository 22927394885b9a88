"""One rule for the numbers of documents and of events."""

import json

import pytest

from isolet.plan.dispatch_numbers import NotFinite, finite, whole

DECODER = json.JSONDecoder(parse_constant=finite, parse_float=finite, parse_int=whole)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e308", 1e308),
        ("-1.7976931348623157e308", -1.7976931348623157e308),
        ("1e-999", 0.0),
        ("-0.5", -0.5),
        ("12", 12),
        ("9007199254740993", 2**53 + 1),
        ("1" + "0" * 308, 10**308),
        ("-" + "1" * 309, -int("1" * 309)),
    ],
)
def test_a_number_that_a_double_holds(text: str, value: float) -> None:
    assert DECODER.decode(f"[{text}]") == [value]


@pytest.mark.parametrize(
    "text",
    [
        *("NaN", "Infinity", "-Infinity", "1e309", "-1.8e308", "1e999"),
        *("1" + "0" * 309, "-" + "9" * 309, "9" * 1000, "9" * 5000),
    ],
)
def test_a_number_that_no_double_holds(text: str) -> None:
    with pytest.raises(NotFinite) as refused:
        DECODER.decode(f'{{"a":[{text}]}}')
    assert str(refused.value) == ""
