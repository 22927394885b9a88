from datetime import UTC, datetime, timedelta, timezone

import pytest

from isolet.base import times

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("2030-01-01T00:00:00Z", WHEN),
        ("2030-01-01T02:00:00+02:00", WHEN),
        ("2030-01-01T00:00:00.123456789Z", WHEN.replace(microsecond=123456)),
        ("9999-12-31T23:59:59-02:00",
         datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-2)))),
        (WHEN, WHEN),
    ],
)  # fmt: skip
def test_read(value: object, want: datetime) -> None:
    assert times.read(value) == want


@pytest.mark.parametrize(
    "value",
    [
        "2030-01-01T00:00:00", "2030-01-01", "1893456000", "soon", "", "2030-13-01T00:00:00Z",
        1893456000000, 1893456000.5, True, None, datetime(2030, 1, 1),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_is_no_time(value: object) -> None:
    with pytest.raises(ValueError, match=r"zone|month"):
        times.read(value)
