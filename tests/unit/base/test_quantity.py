from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from isolet.base import quantity

PARSED = [
    ("0", 0),
    ("1", 1),
    ("+1", 1),
    ("-1", -1),
    ("1.5", Fraction(3, 2)),
    ("1.", 1),
    (".5", Fraction(1, 2)),
    ("1m", Fraction(1, 1000)),
    ("1000m", 1),
    ("1u", Fraction(1, 10**6)),
    ("1n", Fraction(1, 10**9)),
    ("1k", 1000),
    ("1Ki", 1024),
    ("1M", 10**6),
    ("1Gi", 2**30),
    ("1.5Gi", 3 * 2**29),
    ("1E", 10**18),
    ("1Ei", 2**60),
    ("1E3", 1000),
    ("1e9", 10**9),
    ("1e-3", Fraction(1, 1000)),
    ("1e+3", 1000),
    ("9007199254740993", 2**53 + 1),
    ("9223372036854775807", 2**63 - 1),
    ("0.1Ki", Fraction(1024, 10)),
]


@pytest.mark.parametrize(("text", "want"), PARSED)
def test_parse(text: str, want: Fraction) -> None:
    assert quantity.parse(text) == want


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "1 Gi",
            " 1",
            "1\n",
            "0x10",
            "1Zi",
            "1gi",
            "1mi",
            "1K",
            "1e",
            "1e1.5",
            "--1",
            ".",
        ),
        *("\uff11", "1_000", "1,5", "Mi", "1MiB", "1e9Gi", "inf", "nan", "9" * 65),
        *("9223372036854775808", "8Ei", "1e19", "1e999999999"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse(text)


@pytest.mark.parametrize("value", [1, 1.5, None, b"1"])
def test_only_strings(value: object) -> None:
    with pytest.raises(quantity.QuantityError, match="written as a string"):
        quantity.parse(value)  # type: ignore[arg-type]


def test_whole_bytes() -> None:
    assert quantity.to_bytes("1Gi") == 2**30
    assert quantity.to_bytes("0.1Ki") == 103  # 102.4, rounded up as Kubernetes does
    assert quantity.to_bytes("1000M") == quantity.to_bytes("1e9") == quantity.to_bytes("1G")


def test_cpu() -> None:
    assert quantity.to_milli_cpu("1") == 1000
    assert quantity.to_milli_cpu("0.5") == 500
    assert quantity.to_milli_cpu("0.0001") == 1
    assert quantity.to_nano_cpu("0.5") == 500_000_000


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1000m", "1", True),
        ("1000M", "1G", True),
        ("1024Mi", "1Gi", True),
        ("1Gi", "1G", False),
        ("9007199254740993", "9007199254740992", False),
        ("1e3", "1k", True),
    ],
)
def test_equal_values_are_equal(one: str, other: str, same: bool) -> None:
    assert quantity.same(one, other) is same


@pytest.mark.parametrize(
    ("size", "want"),
    [(0, "0"), (1, "1"), (1023, "1023"), (1024, "1Ki"), (1536, "1536"), (3 * 2**29, "1536Mi")],
)
def test_format_bytes(size: int, want: str) -> None:
    assert quantity.format_bytes(size) == want


@hypothesis.given(st.integers(min_value=0, max_value=quantity.MAX))
def test_bytes_round_trip(size: int) -> None:
    assert quantity.to_bytes(quantity.format_bytes(size)) == size


@hypothesis.given(st.integers(min_value=0, max_value=10**9))
def test_cpu_round_trip(milli: int) -> None:
    assert quantity.to_milli_cpu(quantity.format_milli_cpu(milli)) == milli
    assert quantity.format_milli_cpu(1500) == "1500m"
    assert quantity.format_milli_cpu(2000) == "2"
