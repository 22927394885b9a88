"""Records as rows, and the fields that each schema version stands for."""

import dataclasses
import json
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolet.agent.store import codec, folder, migrations
from isolet.base import errors, names
from isolet.plan import git_model, reasons, sandbox_model
from isolet.wire import checkpoint, execution, process, restore
from tests.contract.store.records import a_full_record, a_record

PATH = Path("/state/state.db")

SHAPES = {
    1: "sha256:46fe950f9c0a10c2890233275f2a9d085343cf694883f87a154cd9778365bee1",
    2: "sha256:7e139545a5e9637275ef14ba8315323c3db84cc59b759b9eb54b3b49a39faca7",
    3: "sha256:c92ad7e34556d68e32a16f233ae71bfcfd4b303a0c156cf452b5098a17e87833",
    4: "sha256:a2995598d30e7382e09276e5ff435a68dbc3b97a23548eb67187478753a76779",
    5: "sha256:d16d40981581071cf290679957d639d7935b90b8090012343b95ee2922aa787d",
    6: "sha256:6f0c791c53df5cf21b85fe44dc8ad6ca7bc21b64d01c7bea145b79cd78334ad4",
    7: "sha256:1a7c9a4020f0f308413438bff43c016a1948ec756f20879ef4fc109e965aa1d3",
    8: "sha256:23f6a71c88c3646b1efd8fcdcc85c19843d55458884d5e3149e194804166f16d",
    9: "sha256:23f6a71c88c3646b1efd8fcdcc85c19843d55458884d5e3149e194804166f16d",
}
"""Digest of all stored fields → the schema version in which they are so. Only ever add to it."""


def _shape() -> dict[str, list[str]]:
    found = {
        kind.__name__: [f"{f.name}: {f.type}" for f in dataclasses.fields(kind)]
        for kind in (
            sandbox_model.SandboxRecord,
            sandbox_model.PinnedSpec,
            sandbox_model.Stop,
            sandbox_model.ProcessPart,
            sandbox_model.CheckpointPart,
            git_model.GitPart,
            git_model.Tree,
            sandbox_model.SlotPart,
        )
    }
    for model in (
        execution.Resources,
        execution.Outcome,
        execution.OOMSeen,
        execution.Waiting,
        execution.OutputFacts,
        process.Artifact,
        process.ArtifactProblem,
        checkpoint.Manifest,
        checkpoint.Source,
        restore.Restore,
        restore.StoreCopy,
    ):
        fields = model.model_fields.items()
        found[model.__name__] = [f"{name}: {field.annotation}" for name, field in fields]
    for enum in (
        execution.Medium,
        execution.State,
        execution.Step,
        sandbox_model.Kind,
        process.OnOverflow,
    ):
        found[enum.__name__] = [member.value for member in enum]
    return found


def test_a_change_of_what_is_stored_is_a_migration() -> None:
    digest = names.digest(names.canonical_json(_shape()))
    assert SHAPES[migrations.SCHEMA_VERSION] == digest, (
        "the stored fields changed: once a version is released, add a step to MIGRATIONS and a "
        "line here; an older agent would drop the new field from records that it writes"
    )


@pytest.mark.parametrize("record", [a_record(), a_full_record()], ids=["plain", "full"])
def test_there_and_back(record: sandbox_model.SandboxRecord) -> None:
    row = (*codec.columns(record), codec.body(record))
    assert codec.decode(row, PATH) == record


def test_the_body_holds_what_is_no_column() -> None:
    body = json.loads(codec.body(a_record()))
    every = {field.name for field in dataclasses.fields(sandbox_model.SandboxRecord)}
    assert body.keys() | set(codec.COLUMNS) == every
    assert not body.keys() & set(codec.COLUMNS)


def _spoilt(**changes: object) -> str:
    return json.dumps({**json.loads(codec.body(a_record())), **changes})


SPOILT = {
    "no JSON": "{",
    "no object": "[]",
    "a field too many": _spoilt(later=1),
    "a field too few": "{}",
    "another type": _spoilt(spec="x"),
    "an unknown state": _spoilt(state="Sleeping"),
    "a null": "null",
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_cannot_be_read_is_corrupt_and_not_quoted(name: str) -> None:
    row = (*codec.columns(a_record("u1")), SPOILT[name])
    with pytest.raises(errors.Corrupt) as caught:
        codec.decode(row, PATH)
    assert caught.value.message.startswith("/state/state.db: the record 'u1' cannot be read")
    assert "Sleeping" not in caught.value.message


@given(st.integers(-6 * 10**16, 2 * 10**17))
def test_times_are_exact_to_the_microsecond(micros: int) -> None:
    at = codec.from_micros(micros)
    assert codec.to_micros(at) == micros
    assert codec.to_micros(at + timedelta(microseconds=1)) == micros + 1


def _error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "committing", "want", "reason"),
    [
        (sqlite3.SQLITE_FULL, False, errors.Unavailable, reasons.NODE_STORAGE_FULL),
        (sqlite3.SQLITE_FULL, True, errors.Unavailable, reasons.NODE_STORAGE_FULL),
        (sqlite3.SQLITE_CORRUPT, False, errors.Corrupt, "Corrupt"),
        (sqlite3.SQLITE_NOTADB, False, errors.Corrupt, "Corrupt"),
        (sqlite3.SQLITE_CORRUPT | 1 << 8, False, errors.Corrupt, "Corrupt"),
        (sqlite3.SQLITE_BUSY, False, errors.Unavailable, "Unavailable"),
        (sqlite3.SQLITE_IOERR_FSYNC, False, errors.Unavailable, "Unavailable"),
        (sqlite3.SQLITE_IOERR_FSYNC, True, errors.Unconfirmed, "Unconfirmed"),
        (sqlite3.SQLITE_READONLY, True, errors.Unavailable, "Unavailable"),
    ],
)
def test_errors_by_their_code(
    code: int, committing: bool, want: type[errors.IsoletError], reason: str, tmp_path: Path
) -> None:
    found = folder.explain(_error(code), tmp_path / "state.db", committing=committing)
    assert (type(found), found.reason) == (want, reason)
