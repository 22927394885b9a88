"""One rule for the numbers of documents and of events."""

import json

import pytest

from isolet.plan.dispatch_numbers import NotFinite, finite

DECODER = json.JSONDecoder(parse_constant=finite, parse_float=finite)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e308", 1e308),
        ("-1.7976931348623157e308", -1.7976931348623157e308),
        ("1e-999", 0.0),
        ("-0.5", -0.5),
        ("12", 12),
    ],
)
def test_a_number_that_a_double_holds(text: str, value: float) -> None:
    assert DECODER.decode(f"[{text}]") == [value]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e309", "-1.8e308", "1e999"])
def test_a_number_that_no_double_holds(text: str) -> None:
    with pytest.raises(NotFinite) as refused:
        DECODER.decode(f'{{"a":[{text}]}}')
    assert str(refused.value) == ""
