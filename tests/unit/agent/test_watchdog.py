"""What the watchdog does about each state, on a clock that stands still and an engine in memory."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from isolet.agent import deadlines, watchdog
from isolet.agent.deadlines import Deadline, Deadlines
from isolet.agent.watchdog import Journal, Watchdog
from isolet.agent.watchdog_engine import EngineSilent, Facts
from isolet.base.clock import FixedClock

RUNNING = Facts(
    container_id="c1", installation="here", running=True, paused=False, created=False, pid=0
)
EXITED = replace(RUNNING, running=False)


@dataclass
class FakeEngine:
    """One container, and what was asked of it."""

    clock: FixedClock
    facts: Facts | None = RUNNING
    silent: bool = False
    kills_work: bool = True
    seconds_a_call: float = 0.0
    calls: list[str] = field(default_factory=list)

    def inspect(self, reference: str, *, timeout: float = 2.0) -> Facts | None:
        self._call("inspect", reference, timeout)
        return self.facts

    def unpause(self, container_id: str) -> None:
        self._call("unpause", container_id, 2.0)
        assert self.facts is not None
        self.facts = replace(self.facts, paused=False)

    def kill(self, container_id: str) -> None:
        self._call("kill", container_id, 2.0)
        assert self.facts is not None
        if self.kills_work:
            assert not self.facts.paused, "killing a paused one leaks it"
            self.facts = replace(self.facts, running=False)

    def _call(self, what: str, reference: str, timeout: float) -> None:
        self.calls.append(f"{what} {reference}")
        self.clock.advance(timeout if self.silent else self.seconds_a_call)
        if self.silent:
            raise EngineSilent("no answer")


@dataclass
class World:
    """A watchdog, its file and its engine."""

    folder: Path
    clock: FixedClock = field(default_factory=FixedClock)
    signalled: list[tuple[int, int]] = field(default_factory=list)
    signals_work: bool = True

    def __post_init__(self) -> None:
        self.file = self.folder / "deadlines.json"
        self.journal = self.folder / "watchdog.jsonl"
        self.engine = FakeEngine(self.clock)
        self.dog = self.new_dog()

    def new_dog(self) -> Watchdog:
        def signal(pid: int, start: int) -> bool:
            self.signalled.append((pid, start))
            return self.signals_work

        return Watchdog(
            self.file,
            self.engine,  # type: ignore[arg-type]
            Journal(self.journal),
            time_source=self.clock,
            signal_process=signal,
        )

    def want(self, *entries: Deadline) -> None:
        deadlines.write(self.file, Deadlines(installation="here", entries=entries))

    def told(self) -> list[tuple[str, bool]]:
        return [(line.how, line.confirmed) for line in deadlines.read_journal(self.journal)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("time.sleep", lambda seconds: found.clock.advance(seconds))
    found = World(tmp_path)
    return found


def entry(deadline: float = 1000.0, **changes: object) -> Deadline:
    base = Deadline(
        name="isolet-1",
        deadline_boottime=deadline,
        boot_id=deadlines.boot_id(),
        container_id="c1",
        pid=77,
        pid_start=5,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deadline", "ended"), [(998.9, True), (999.0, True), (999.000001, False), (2000.0, False)]
)
def test_the_agent_goes_first_by_the_grace(deadline: float, ended: bool, world: World) -> None:
    world.want(entry(deadline))
    world.dog.tick()
    assert ("kill c1" in world.engine.calls) is ended


def test_past_its_deadline_it_is_killed_once_and_seen_dead(world: World) -> None:
    world.want(entry(900.0))
    for _ in range(3):
        world.dog.tick()
    assert world.engine.calls == ["inspect c1", "kill c1", "inspect c1"]
    assert world.told() == [("engine", False), ("engine", True)]
    assert world.signalled == []


def test_a_paused_one_is_thawed_first(world: World) -> None:
    world.engine.facts = replace(RUNNING, paused=True)
    world.want(entry(900.0))
    world.dog.tick()
    assert world.engine.calls == ["inspect c1", "unpause c1", "kill c1", "inspect c1"]


LEFT_ALONE = {
    "exited": (EXITED, entry(900.0)),
    "gone": (None, entry(900.0)),
    "never started": (replace(EXITED, created=True), entry(900.0)),
    "of another installation": (replace(RUNNING, installation="there"), entry(900.0)),
    "without labels": (replace(RUNNING, installation=""), entry(900.0)),
    "of another boot": (RUNNING, entry(900.0, boot_id="other")),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(name: str, world: World) -> None:
    world.engine.facts, wanted = LEFT_ALONE[name]
    world.want(wanted)
    world.dog.tick()
    world.dog.tick()
    assert not any(call.startswith(("kill", "unpause")) for call in world.engine.calls)
    assert (world.signalled, world.told()) == ([], [])


def test_one_that_is_started_after_its_deadline_is_ended(world: World) -> None:
    world.engine.facts = replace(EXITED, created=True)
    world.want(entry(900.0))
    world.dog.tick()
    world.engine.facts = RUNNING
    world.dog.tick()
    assert world.told()[-1] == ("engine", True)


def test_a_silent_engine_saves_nobody_and_is_asked_once_for_all(world: World) -> None:
    world.engine.silent = True
    world.want(*(entry(900.0 + n, name=f"n{n}", container_id=f"c{n}", pid=n + 1) for n in range(5)))
    world.dog.tick()
    assert world.engine.calls == ["inspect c0"]
    assert world.signalled == [(n + 1, 5) for n in range(5)]
    assert world.told().count(("signal", True)) == 5


def test_a_kill_that_does_not_work_is_followed_by_a_signal(world: World) -> None:
    world.engine.kills_work = False
    world.want(entry(900.0))
    world.dog.tick()
    assert world.signalled == [(77, 5)]
    assert world.told() == [("engine", False), ("signal", True)]


def test_what_could_not_be_ended_is_tried_again(world: World) -> None:
    world.engine.kills_work = world.signals_work = False
    world.want(entry(900.0))
    world.dog.tick()
    world.dog.tick()
    assert world.signalled == [(77, 5)] * 2
    assert world.told() == [("engine", False)]
    world.signals_work = True
    world.dog.tick()
    assert world.told()[-1] == ("signal", True)


def test_a_slow_engine_has_a_second_then_signals_do_it(world: World) -> None:
    world.engine.seconds_a_call = 0.6
    entries = [entry(900.0 + n, name=f"n{n}", container_id=f"c{n}", pid=n + 1) for n in range(4)]
    world.want(*entries)
    world.dog.tick()
    assert world.signalled == [(2, 5), (3, 5), (4, 5)]


def test_without_a_pid_it_waits_for_the_engine(world: World) -> None:
    world.engine.silent = True
    world.want(entry(900.0, pid=0, pid_start=0))
    world.dog.tick()
    assert (world.signalled, world.told()) == ([], [])
    world.engine.silent = False
    world.clock.advance(10)
    world.dog.tick()
    assert world.told()[-1] == ("engine", True)


def test_a_pid_is_learnt_while_the_engine_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "start_of", lambda pid: pid * 10)
    world.engine.facts = replace(RUNNING, pid=42)
    world.want(entry(2000.0, pid=0, pid_start=0, container_id=""))
    world.dog.tick()
    world.dog.tick()
    assert world.engine.calls == ["inspect isolet-1"]
    world.engine.silent = True
    world.clock.advance(2000)
    world.dog.tick()
    assert world.signalled == [(42, 420)]


def test_a_longer_deadline_counts_and_a_dropped_one_is_forgotten(world: World) -> None:
    world.want(entry(1000.5))
    world.dog.tick()
    world.want(entry(2000.0))
    world.clock.advance(5)
    world.dog.tick()
    world.want()
    world.clock.advance(5000)
    world.dog.tick()
    assert (world.engine.calls, world.told()) == ([], [])


BROKEN = {
    "gone": None,
    "empty": b"",
    "cut short": b'{"version":1,"installation":"here","entries":[{"name"',
    "no object": b"[]",
    "another version": b'{"version":2,"installation":"here","entries":[]}',
    "no installation": b'{"version":1,"installation":"","entries":[]}',
    "an entry too short": b'{"version":1,"installation":"here","entries":[{}]}',
    "an entry of another kind": b'{"version":1,"installation":"here","entries":["x"]}',
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_gives_nobody_more_time(name: str, world: World) -> None:
    world.want(entry(1000.5))
    world.dog.tick()
    content = BROKEN[name]
    world.file.unlink()
    if content is not None:
        world.file.write_bytes(content)
        world.file.chmod(0o600)
    world.dog.tick()
    world.clock.advance(3)
    world.dog.tick()
    assert world.told() == [("engine", False), ("engine", True)]


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_was_never_good_ends_nobody_and_is_waited_for(name: str, world: World) -> None:
    content = BROKEN[name]
    if content is not None:
        world.file.write_bytes(content)
        world.file.chmod(0o600)
    world.dog.tick()
    assert world.engine.calls == []
    world.want(entry(900.0))
    world.dog.tick()
    assert world.told()[-1] == ("engine", True)


def test_a_file_that_others_can_write_is_not_obeyed(world: World) -> None:
    world.want(entry(900.0))
    world.file.chmod(0o620)
    world.dog.tick()
    assert world.engine.calls == []


def test_a_journal_that_cannot_be_written_saves_nobody(world: World) -> None:
    world.journal.mkdir()
    world.want(entry(900.0))
    world.dog.tick()
    assert "kill c1" in world.engine.calls


def test_a_restarted_watchdog_goes_on(world: World) -> None:
    world.want(entry(900.0))
    world.dog.tick()
    world.dog = world.new_dog()
    world.dog.tick()
    assert world.told() == [("engine", False), ("engine", True)]


def test_the_journal_is_bounded_and_the_newest_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_JOURNAL_BYTES", 64 << 10)
    line = deadlines.Ended(
        name="x" * 1000,
        container_id="c",
        confirmed=True,
        how="engine",
        boot_id="b",
        deadline_boottime=1.0,
        boottime=2.0,
        at="t",
    )
    journal = Journal(world.journal)
    for number in range(300):
        journal.append(replace(line, boottime=float(number)))
    size = sum(path.stat().st_size for path in world.folder.iterdir())
    assert size < 3 * (64 << 10)
    kept = [entry.boottime for entry in deadlines.read_journal(world.journal)]
    assert kept == [float(n) for n in range(300 - len(kept), 300)]
    assert len(kept) > 40
