"""What only a store on a disk can get wrong: files, locks, crashes, a full disk."""

import asyncio
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from isolet.agent.store import codec, folder, migrations, writer
from isolet.agent.store.base import Served
from isolet.agent.store.sqlite import SQLiteStore
from isolet.base import errors, statfs
from isolet.plan import reasons
from isolet.wire.base import Fence
from isolet.wire.execution import EnvVar, Outcome, OutputFacts, Step

from .records import BOOT, NOON, a_record, before, moment

ROOT = Path(__file__).parents[3]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


def _digests(state: Path) -> dict[str, str]:
    """What is in the files that matter: the shared-memory index is scratch."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in state.iterdir()
        if path.name not in ("lock", "state.db-shm") and path.stat().st_size
    }


async def test_only_its_owner_can_read_it(state: Path) -> None:
    old = os.umask(0)
    try:
        store = await SQLiteStore.open(state)
        await store.add(a_record())
        modes = {path.name: path.stat().st_mode & 0o777 for path in (state, *state.iterdir())}
    finally:
        os.umask(old)
    await store.close()
    assert modes == {
        "state": 0o700,
        "lock": 0o600,
        "state.db": 0o600,
        "state.db-wal": 0o600,
        "state.db-shm": 0o600,
    }


async def test_every_commit_is_synced(state: Path) -> None:
    store = await SQLiteStore.open(state)
    rows = await store._connection.execute_fetchall("PRAGMA synchronous")
    mode = await store._connection.execute_fetchall("PRAGMA journal_mode")
    await store.close()
    assert (next(iter(rows))[0], next(iter(mode))[0]) == (2, "wal")


async def test_a_days_worth_of_tombstones_is_not_read_for_what_is_there_now(
    state: Path,
) -> None:
    store = await SQLiteStore.open(state)
    record = await store.add(a_record())
    await asyncio.gather(*(store.bury(f"gone-{number}", at=moment()) for number in range(500)))
    statements: list[str] = []
    store._reader.set_trace_callback(statements.append)
    assert await store.present() == ((record,), 501)
    await store.close()
    assert len(statements) == 1
    assert "tombstones" not in statements[0]


async def test_it_is_the_same_store_when_opened_again(state: Path) -> None:
    store = await SQLiteStore.open(state)
    record = await store.add(a_record())
    await store.bury("gone", at=moment())
    await store.check_fence(Fence(lease_uid="a", transitions=3))
    await store.check_fence(Fence(lease_uid="b", transitions=1))
    await store.close()
    again = await SQLiteStore.open(state)
    assert (again.epoch, await again.list()) == (store.epoch, (record,))
    assert (await again.changed_since(0))[2] == 2
    for fence in (Fence(lease_uid="a", transitions=9), Fence(lease_uid="b", transitions=0)):
        with pytest.raises(errors.Fenced):
            await again.check_fence(fence)
    assert (await again.update(record)).sequence == 3
    await again.close()


async def test_every_store_has_its_own_epoch(tmp_path: Path) -> None:
    epochs = set()
    for number in range(3):
        store = await SQLiteStore.open(tmp_path / str(number))
        epochs.add(store.epoch)
        await store.close()
    assert len(epochs) == 3


async def test_one_agent_a_folder(state: Path) -> None:
    store = await SQLiteStore.open(state)
    with pytest.raises(errors.Conflict, match=f"another agent holds.*process {os.getpid()}"):
        await SQLiteStore.open(state)
    await store.add(a_record())
    await store.close()
    await (await SQLiteStore.open(state)).close()


class Writer:
    """The process of killed.py."""

    def __init__(self, state: Path, run: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store.killed", str(state), run],
            stdout=subprocess.PIPE,
            bufsize=0,  # Or the first line would take others with it, past `os.read`.
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}/controller:{ROOT}"},
        )

    def kill_after(self, seconds: float) -> list[tuple[str, str, int, int]]:
        """What it had acknowledged when it died."""
        assert self.process.stdout is not None
        head = self.process.stdout.readline()
        assert head, "it did not start"
        timer = time.monotonic() + seconds
        while time.monotonic() < timer:
            head += os.read(self.process.stdout.fileno(), 65536)
        self.process.send_signal(signal.SIGKILL)
        out = head + self.process.communicate(timeout=60)[0]
        lines = [line.split() for line in out.decode().split("\n")[:-1]]
        return [(kind, uid, int(revision), int(n)) for kind, uid, revision, n in lines]


async def test_a_killed_agent_lets_go_and_loses_nothing(state: Path) -> None:
    """Every acknowledged write is there, whatever the instruction that was the last."""
    rng = random.Random(4)
    acknowledged: list[tuple[str, str, int, int]] = []
    for run in range(6):
        lines = Writer(state, f"r{run}").kill_after(rng.uniform(0.05, 0.5))
        assert lines
        acknowledged += lines
        store = await SQLiteStore.open(state)
        try:
            await _holds(store, acknowledged)
        finally:
            await store.close()


async def _holds(store: SQLiteStore, acknowledged: list[tuple[str, str, int, int]]) -> None:
    records = {record.uid: record for record in await store.list()}
    newest = (await store.changed_since(0))[2]
    buried = {uid for kind, uid, _, _ in acknowledged if kind == "buried"}
    for kind, name, revision, sequence in acknowledged:
        assert sequence <= newest
        if kind == "buried" or name in buried:
            assert await store.tombstone(name) is not None
        elif kind == "fence":
            shard = store._obeyed[name]
            assert shard[-1][1] >= revision or len(shard) > 1
        elif name not in records:
            assert await store.tombstone(name) is not None
        else:
            assert records[name].revision >= revision
            assert records[name].sequence >= sequence
    numbers = [record.sequence for record in records.values()]
    assert len(set(numbers)) == len(numbers)


async def test_l04_a_newer_schema_is_refused_and_left_alone(state: Path) -> None:
    store = await SQLiteStore.open(state)
    await store.add(a_record())
    # Leave the new version in the WAL, as a newer agent that was killed would.
    await store._connection.execute(f"PRAGMA user_version = {migrations.SCHEMA_VERSION + 1}")
    copy = state.with_name("copy")
    copy.mkdir(mode=0o700)
    for path in state.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    await store.close()
    for folder_ in (copy, state):
        before = _digests(folder_)
        known = migrations.SCHEMA_VERSION
        with pytest.raises(errors.Corrupt, match=f"version {known + 1}.* {known};") as caught:
            await SQLiteStore.open(folder_)
        assert str(folder_ / "state.db") in caught.value.message
        assert _digests(folder_) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"this is not a database at all, but long enough" * 100,
        lambda raw: raw[:4096] + b"\xff" * (len(raw) - 4096),
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw[:100] + bytes(len(raw) - 100),
    ],
    ids=["another file", "garbage after the head", "cut short", "zeros"],
)
async def test_a_damaged_file_is_named_and_left_alone(state: Path, damage) -> None:
    store = await SQLiteStore.open(state)
    for number in range(40):
        await store.add(a_record(f"u{number}"))
    await store.close()
    path = state / folder.DATABASE_NAME
    path.write_bytes(damage(path.read_bytes()))
    before = _digests(state)
    with pytest.raises(errors.Corrupt) as caught:
        await SQLiteStore.open(state)
    assert str(path) in caught.value.message
    assert "move it away" in caught.value.message
    assert _digests(state) == before
    path.rename(state / "kept")
    await (await SQLiteStore.open(state)).close()


async def test_another_programs_database_is_left_alone(state: Path) -> None:
    state.mkdir(parents=True)
    other = sqlite3.connect(state / folder.DATABASE_NAME)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    before = _digests(state)
    with pytest.raises(errors.Corrupt, match="another program"):
        await SQLiteStore.open(state)
    assert _digests(state) == before


async def test_a_record_that_cannot_be_read(state: Path) -> None:
    store = await SQLiteStore.open(state)
    await store.add(a_record("good"))
    await store.add(a_record("bad"))
    await store._connection.execute("UPDATE records SET body = '{}' WHERE uid = 'bad'")
    with pytest.raises(errors.Corrupt, match=r"state\.db: the record 'bad'"):
        await store.get("bad")
    assert await store.get("good") is not None
    await store.close()


def _new_file_at(version: int, path: Path) -> None:
    """A store as an agent of that version left it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for statements in migrations.MIGRATIONS[:version]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


EXTRA = ("ALTER TABLE meta ADD COLUMN later INTEGER NOT NULL DEFAULT 7",)


async def test_an_older_file_is_brought_forward(state: Path, monkeypatch) -> None:
    state.mkdir(parents=True)
    _new_file_at(migrations.SCHEMA_VERSION, state / folder.DATABASE_NAME)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, EXTRA))
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", migrations.SCHEMA_VERSION + 1)
    store = await SQLiteStore.open(state)
    rows = list(await store._connection.execute_fetchall("SELECT later FROM meta"))
    version = list(await store._connection.execute_fetchall("PRAGMA user_version"))
    await store.close()
    assert (rows[0][0], version[0][0]) == (7, migrations.SCHEMA_VERSION)


async def test_a_record_of_an_older_agent_is_read_as_it_was(state: Path) -> None:
    """An outcome of version 4 knows nothing of memory."""
    state.mkdir(parents=True)
    _new_file_at(4, state / folder.DATABASE_NAME)
    outcome = Outcome(succeeded=False, reason="OOMKilled", message="killed", exit_code=137)
    given = [a_record("ended").with_(step=Step.ENDED, outcome=outcome), a_record("runs")]
    connection = sqlite3.connect(state / folder.DATABASE_NAME, isolation_level=None)
    for number, record in enumerate(given):
        body = json.loads(codec.body(record))
        if body["outcome"]:
            del body["outcome"]["oom"]
        row = (*codec.columns(record.with_(sequence=number)), json.dumps(body))
        names = ", ".join((*codec.COLUMNS, "body"))
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO records ({names}) VALUES ({marks})", row)
    connection.close()
    store = await SQLiteStore.open(state)
    found = {record.uid: record.outcome for record in await store.list()}
    assert found == {"ended": outcome, "runs": None}
    rows = await store._connection.execute_fetchall("SELECT body FROM records WHERE uid = 'ended'")
    assert json.loads(next(iter(rows))[0])["outcome"]["oom"] is None
    await store.close()


async def test_a_tombstone_of_an_older_agent_counts_as_of_an_earlier_boot(state: Path) -> None:
    """When it was buried on the boot-time clock is not known: before this boot, or in it."""
    state.mkdir(parents=True)
    _new_file_at(8, state / folder.DATABASE_NAME)
    connection = sqlite3.connect(state / folder.DATABASE_NAME, isolation_level=None)
    row = ("old", "ns", "name", "digest", codec.to_micros(NOON), 1, "execution")
    connection.execute("INSERT INTO tombstones VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()
    store = await SQLiteStore.open(state)
    found = await store.tombstone("old")
    assert found is not None
    assert (found.name, found.buried_at) == ("name", NOON)
    later = NOON + timedelta(days=2)
    young_boot = Served(before=later, boot_id=BOOT, boottime_before=0.0)
    assert await store.purge_tombstones(young_boot) == 0
    assert await store.purge_tombstones(before(later)) == 1
    await store.close()


async def test_l04_a_migration_that_fails_half_way_has_not_happened(
    state: Path, monkeypatch
) -> None:
    store = await SQLiteStore.open(state)
    record = await store.add(a_record())
    await store.close()
    with monkeypatch.context() as patched:
        broken = (*EXTRA, "DELETE FROM records", "CREATE TABLE records (x)")
        patched.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
        patched.setattr(migrations, "SCHEMA_VERSION", migrations.SCHEMA_VERSION + 1)
        with pytest.raises(errors.Unavailable):
            await SQLiteStore.open(state)
    again = await SQLiteStore.open(state)
    assert await again.list() == (record,)
    await again.close()


async def test_a_start_that_was_cut_short_is_begun_anew(state: Path) -> None:
    state.mkdir(parents=True)
    (state / folder.DATABASE_NAME).touch()
    store = await SQLiteStore.open(state)
    await store.add(a_record())
    await store.close()


@pytest.mark.parametrize("kind", [*statfs.SHARED, 0x12345678])
async def test_l02_a_file_system_not_known_to_be_local_is_refused(
    state: Path, kind: int, monkeypatch
) -> None:
    monkeypatch.setattr(statfs, "magic", lambda path: kind)
    with pytest.raises(errors.Refused, match="not known to be local") as caught:
        folder.prepare(state, statfs.magic)
    assert caught.value.reason == "NotLocal"
    assert not (state / folder.DATABASE_NAME).exists()


def test_statfs_reads_what_is_there() -> None:
    assert statfs.magic(Path("/proc")) == 0x9FA0
    assert statfs.magic(Path("/dev/shm")) == statfs.TMPFS
    with pytest.raises(FileNotFoundError):
        statfs.magic(Path("/no/such"))


async def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(errors.Refused):
        await SQLiteStore.open(tmp_path / "link")


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 8 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    options = "size=8m,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


def _fill(point: Path, leave: int = 0) -> Path:
    filler = point / "filler"
    room = os.statvfs(point).f_bavail * os.statvfs(point).f_frsize - leave
    filler.write_bytes(bytes(room))
    return filler


async def test_a_full_disk_is_said_and_survived(small_disk: Path) -> None:
    store = await SQLiteStore.open(small_disk / "state")
    kept = [await store.add(a_record("u0"))]
    filler = _fill(small_disk)
    refused: list[str] = []
    for number in range(1, 400):
        try:
            kept.append(await store.add(a_record(f"u{number}")))
        except errors.Unavailable as error:
            refused.append(error.reason)
    assert set(refused) == {reasons.NODE_STORAGE_FULL}
    assert {record.uid for record in await store.list()} == {record.uid for record in kept}
    filler.unlink()
    kept.append(await store.add(a_record("after")))
    await store.close()
    again = await SQLiteStore.open(small_disk / "state")
    assert {record.uid for record in await again.list()} == {record.uid for record in kept}
    await again.close()


async def test_opening_on_a_full_disk_is_said(small_disk: Path) -> None:
    filler = _fill(small_disk)
    with pytest.raises(errors.Unavailable) as caught:
        await SQLiteStore.open(small_disk / "state")
    assert caught.value.reason == reasons.NODE_STORAGE_FULL
    filler.unlink()
    await (await SQLiteStore.open(small_disk / "state")).close()


async def test_one_change_that_the_database_refuses_spoils_no_other(state: Path) -> None:
    store = await SQLiteStore.open(state)
    odd = a_record("odd", namespace="\ud800")
    results = await asyncio.gather(
        store.add(a_record("a")), store.add(odd), store.add(a_record("b")), return_exceptions=True
    )
    assert isinstance(results[1], UnicodeEncodeError)
    assert [record.uid for record in await store.list()] == ["a", "b"]
    await store.close()


async def test_somebody_else_at_the_file_is_waited_for_and_holds_up_nobody_else(
    state: Path,
) -> None:
    store = await SQLiteStore.open(state)
    await store.add(a_record("one"))
    other = sqlite3.connect(state / folder.DATABASE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.add(a_record("two")))
    async with asyncio.timeout(60):
        # What reads, and all else on the event loop, goes on.
        for _ in range(5):
            await asyncio.sleep(0.01)
            assert [record.uid for record in await store.list()] == ["one"]
        assert not writing.done()
        other.execute("ROLLBACK")
        assert (await writing).uid == "two"
    other.close()
    await store.close()


async def test_somebody_who_never_leaves_the_file_is_told_of(state: Path, monkeypatch) -> None:
    monkeypatch.setattr(writer, "_BUSY_SECONDS", 0.1)
    store = await SQLiteStore.open(state)
    other = sqlite3.connect(state / folder.DATABASE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.Unavailable, match="locked"):
        await store.add(a_record("one"))
    other.close()
    assert (await store.add(a_record("one"))).revision == 1
    await store.close()


@pytest.mark.parametrize("statement", ["BEGIN", "UPDATE records", "COMMIT"])
async def test_a_statement_that_fails_changes_nothing_and_stops_nobody(
    state: Path, statement: str, monkeypatch
) -> None:
    """Also when the first rollback fails, which leaves the transaction open."""
    store = await SQLiteStore.open(state)
    record = await store.add(a_record())
    roll_back = writer.Writer._roll_back
    failures = {"run": 1, "rollback": 1}

    def failing(run):
        async def failing_run(self, sql, *parameters):
            if sql.startswith(statement) and failures["run"]:
                failures["run"] = 0
                raise sqlite3.OperationalError("disk I/O error")
            return await run(self, sql, *parameters)

        return failing_run

    async def failing_rollback(self):
        if self._connection.in_transaction and failures["rollback"]:
            failures["rollback"] = 0
            raise sqlite3.OperationalError("disk I/O error")
        await roll_back(self)

    for place, name in ((writer.Transaction, "run"), (type(store._connection), "execute_fetchall")):
        monkeypatch.setattr(place, name, failing(getattr(place, name)))
    monkeypatch.setattr(writer.Writer, "_roll_back", failing_rollback)
    with pytest.raises(errors.Unavailable):
        await store.update(record.with_(generation=7))
    assert await store.get("u1") == record
    assert (await store.update(record.with_(generation=8))).sequence == 2
    await store.close()


async def test_no_tenant_byte_is_in_the_files(state: Path) -> None:
    """K03: planted values, and no trace of them."""
    store = await SQLiteStore.open(state)
    tail = OutputFacts(stdout_bytes=9, stdout_tail=b"canary-77", stderr_tail=b"canary-77")
    record = await store.add(a_record(output=tail))
    await store.update(record.with_(output=tail))
    raw = b"".join(path.read_bytes() for path in state.iterdir())
    await store.close()
    assert b"canary" not in raw
    assert b"Y2FuYXJ5" not in raw, "nor in base64"
    assert EnvVar(name="A", value=b"canary-77").value not in raw
