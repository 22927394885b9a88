from datetime import UTC, datetime, timedelta, timezone

import pydantic
import pytest

from isolet.api import execution, meta
from tests.unit.api.objects import an_execution


class Holder(meta.Model):
    time: meta.Time


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
        ("2030-01-01T02:00:00+02:00", "2030-01-01T00:00:00Z"),
        ("2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.100000Z"),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
        ("9999-12-31T23:59:59-02:00", "9999-12-31T23:59:59-02:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
    ],
)
def test_times(text: str, want: str) -> None:
    assert Holder.model_validate({"time": text}).to_object()["time"] == want


@pytest.mark.parametrize(
    "value",
    [
        "2030-01-01T00:00:00",
        "2030-01-01",
        "1893456000",
        1893456000000,
        1893456000.5,
        "2030-01-01 00:00:00Z",
        "2030-13-01T00:00:00Z",
        "",
        None,
        datetime(2030, 1, 1),  # noqa: DTZ001
    ],
)
def test_no_times(value: object) -> None:
    with pytest.raises(pydantic.ValidationError):
        Holder.model_validate({"time": value})


def test_datetimes_keep_their_instant() -> None:
    zone = timezone(timedelta(hours=2))
    held = Holder(time=datetime(2030, 1, 1, 2, tzinfo=zone))
    assert held.time == datetime(2030, 1, 1, tzinfo=UTC)
    assert held.to_object() == {"time": "2030-01-01T00:00:00Z"}


def test_what_a_newer_server_adds_is_ignored() -> None:
    obj = an_execution()
    obj["metadata"] |= {
        "uid": "u",
        "resourceVersion": "7",
        "generation": 3,
        "managedFields": [{"manager": "x"}],
        "somethingNew": {"a": 1},
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-01-02T03:04:06Z",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "new": True}
        ],
    }
    obj["spec"]["somethingNew"] = True
    obj["status"] = {"somethingNew": 1, "exitCode": 3}
    found = execution.Execution.model_validate(obj)
    assert found.metadata.generation == 3
    assert found.deleting
    assert not found.is_session
    assert found.status.exit_code == 3
    assert (found.name, found.namespace) == ("hello", "")


def test_objects_are_frozen() -> None:
    found = execution.Execution.model_validate(an_execution())
    with pytest.raises(pydantic.ValidationError):
        found.spec.image = "x"  # type: ignore[misc]
    other = found.status.with_(exit_code=1)
    assert (found.status.exit_code, other.exit_code) == (None, 1)
