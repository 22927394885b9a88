"""A record as a row and back: columns for what is queried or fixed, JSON for the rest.

What may not be kept is left out here, so that no caller can forget it: the output tails are tenant
data (they live in the output files alone).
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from isolet.agent.store.base import Tombstone
from isolet.base import errors
from isolet.plan.sandbox_model import Kind, SandboxRecord

COLUMNS = (
    "uid",
    "namespace",
    "name",
    "spec_digest",
    "created_at",
    "step",
    "removing",
    "revision",
    "sequence",
)
"""Fields that are columns; `body` holds all others."""

TOMBSTONE_COLUMNS = ("uid", "namespace", "name", "spec_digest", "buried_at", "kind")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADAPTER = TypeAdapter(SandboxRecord)
_FIELDS = frozenset(field.name for field in fields(SandboxRecord))
_BODY = _FIELDS - set(COLUMNS)


def keepable(record: SandboxRecord) -> SandboxRecord:
    """The record without the tenant's bytes."""
    output = record.output
    if not output.stdout_tail and not output.stderr_tail:
        return record
    kept = output.model_copy(update={"stdout_tail": b"", "stderr_tail": b""})
    return replace(record, output=kept)


def columns(record: SandboxRecord) -> tuple[str | int, ...]:
    """The values of COLUMNS, in that order."""
    return (
        record.uid,
        record.namespace,
        record.name,
        record.spec_digest,
        to_micros(record.created_at),
        record.step.value,
        int(record.removing),
        record.revision,
        record.sequence,
    )


def body(record: SandboxRecord) -> str:
    """The JSON of all fields that are not columns."""
    values = _ADAPTER.dump_python(keepable(record), mode="json", include=set(_BODY))
    return json.dumps(values, separators=(",", ":"), sort_keys=True)


def decode(row: Sequence[Any], path: Path) -> SandboxRecord:
    """The record of a row `(*COLUMNS, body)`.

    Raises:
        Corrupt: the row is not a record of this schema.
    """
    try:
        values: dict[str, Any] = json.loads(row[-1])
        if set(values) != _BODY:
            raise ValueError("fields are " + ", ".join(sorted(set(values) ^ _BODY)) + " off")
        values.update(zip(COLUMNS, row[:-1], strict=True))
        values["created_at"] = from_micros(values["created_at"])
        return _ADAPTER.validate_python(values)
    except (ValueError, TypeError, ValidationError) as error:
        # Not the error's own text: a validation error quotes the values it met.
        raise errors.Corrupt(
            f"{path}: the record {row[0]!r} cannot be read ({type(error).__name__}); "
            "move the state folder away and start the agent again: it begins with an empty store "
            "and reports what it finds running as strays"
        ) from error


class Decoder:
    """Decodes rows; one that is as it was the last time is not read again.

    Every pass over a sandbox, every watcher and every admission reads records that mostly have not
    changed since.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[tuple[Any, ...], SandboxRecord]] = {}

    def decode(self, row: tuple[Any, ...]) -> SandboxRecord:
        """See `decode`."""
        known = self._known.get(row[0])
        if known is not None and known[0] == row:
            return known[1]
        record = decode(row, self._path)
        self._known[record.uid] = row, record
        return record

    def forget(self, uid: str) -> None:
        """The record is gone."""
        self._known.pop(uid, None)


def tombstone(row: Sequence[Any]) -> Tombstone:
    """The tombstone of a row of TOMBSTONE_COLUMNS."""
    values: Mapping[str, Any] = dict(zip(TOMBSTONE_COLUMNS, row, strict=True))
    buried_at = from_micros(values["buried_at"])
    return Tombstone(**{**values, "buried_at": buried_at, "kind": Kind(values["kind"])})


def to_micros(at: datetime) -> int:
    """Microseconds since 1970, exact (a float would round)."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_micros(value: int) -> datetime:
    """The time that `to_micros` turned into this number."""
    return _EPOCH + timedelta(microseconds=value)


def sqlite_kind(error: sqlite3.Error) -> int:
    """The primary result code of an SQLite error; 0 when it carries none."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
