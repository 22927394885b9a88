"""The deadlines file, the agent's book of them, and the journal."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from isolet.agent import deadlines
from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.deadlines import Deadline, Deadlines, Ended
from isolet.base import errors


def entry(name: str = "isolet-1", **changes: object) -> Deadline:
    values = {"deadline_boottime": 12.5, "boot_id": "b", "container_id": "c", "pid": 1}
    return Deadline(name=name, **{**values, **changes})  # type: ignore[arg-type]


def test_there_and_back(tmp_path: Path) -> None:
    content = Deadlines(installation="here", entries=(entry(), entry("isolet-2", pid=0)))
    path = tmp_path / "deadlines.json"
    old = os.umask(0)
    try:
        deadlines.write(path, content)
    finally:
        os.umask(old)
    assert deadlines.read(path) == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    deadlines.write(tmp_path / "real", Deadlines(installation="here"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="symbolic links"):
        deadlines.read(tmp_path / "link")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": 1},
        {"container_id": None},
        {"pid": -1},
        {"pid": True},
        {"pid": 1.5},
        {"pid_start": "x"},
        {"deadline_boottime": "soon"},
        {"deadline_boottime": None},
        {"deadline_boottime": float("nan")},
        {"deadline_boottime": float("inf")},
    ],
    ids=str,
)
def test_an_entry_that_is_none(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Deadline(**{**asdict(entry()), **changes})


async def test_the_book_is_in_the_file_when_a_call_returns(tmp_path: Path) -> None:
    path = tmp_path / "deadlines.json"
    book = DeadlineBook(path, "here")

    def entries() -> set[str]:
        return {found.name for found in deadlines.read(path).entries}

    await book.replace([entry("a"), entry("b")])
    assert entries() == {"a", "b"}
    await book.put(entry("c"))
    await book.drop("a")
    await book.drop("never there")
    assert entries() == {"b", "c"}
    await book.put(entry("c", pid=9))
    assert {found.name: found.pid for found in deadlines.read(path).entries} == {"b": 1, "c": 9}


async def test_changes_that_come_together_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deadlines.json"
    writes: list[int] = []
    original = deadlines.write

    def counted(where: Path, content: Deadlines) -> None:
        original(where, content)
        writes.append(len(content.entries))

    monkeypatch.setattr(deadlines, "write", counted)
    book = DeadlineBook(path, "here")

    async def put(number: int) -> None:
        await book.put(entry(f"n{number}"))
        assert f"n{number}" in {found.name for found in deadlines.read(path).entries}

    await asyncio.gather(*(put(number) for number in range(50)))
    assert writes == [50]
    await book.put(entry("n1"))
    assert writes == [50], "what is there already is not written again"
    await book.move("n1", entry("m1"))
    assert writes == [50, 50], "one entry in the place of another is one write"
    await book.drop("n1")
    assert writes == [50, 50], "what is not there is not written again"


async def test_a_write_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "later" / "deadlines.json"
    book = DeadlineBook(path, "here")
    with pytest.raises(errors.Unavailable):
        await book.put(entry("a"))
    path.parent.mkdir()
    await book.put(entry("a"))
    assert len(deadlines.read(path).entries) == 1


def ended(**changes: object) -> Ended:
    values = {
        "name": "isolet-1",
        "container_id": "c",
        "confirmed": True,
        "how": "engine",
        "boot_id": "b",
        "deadline_boottime": 1.0,
        "boottime": 2.0,
        "at": "t",
    }
    return Ended(**{**values, **changes})  # type: ignore[arg-type]


def test_what_the_journal_says_of_a_container() -> None:
    lines = [
        ended(confirmed=False, boottime=5.0),
        ended(boottime=3.0),
        ended(name="isolet-2", boottime=9.0),
        ended(boot_id="other", boottime=9.0),
    ]
    assert deadlines.ended_by_watchdog(lines, "isolet-1", "b") == lines[1]
    assert deadlines.ended_by_watchdog(lines[:1], "isolet-1", "b") == lines[0]
    assert deadlines.ended_by_watchdog(lines, "isolet-3", "b") is None
    assert deadlines.ended_by_watchdog([], "isolet-1", "b") is None


def test_a_journal_line_that_a_crash_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "watchdog.jsonl"
    assert deadlines.read_journal(path) == []
    good = b'{"name":"a","container_id":"c","confirmed":true,"how":"engine","boot_id":"b",'
    good += b'"deadline_boottime":1.0,"boottime":2.0,"at":"t"}\n'
    path.write_bytes(good + b'{"name":"b"}\n' + b"\xff\n" + good[:40])
    assert [line.name for line in deadlines.read_journal(path)] == ["a"]


def test_a_process_and_when_it_began() -> None:
    mine = deadlines.start_of(os.getpid())
    assert mine is not None
    assert mine > 0
    assert deadlines.start_of(2**22 + 1) is None
    assert len(deadlines.boot_id()) == 36
