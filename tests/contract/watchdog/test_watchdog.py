"""The watchdog against real sandboxes, with no agent at all."""

import math
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isolet.agent import deadlines, watchdog

from . import daemon as real
from .daemon import Daemon

WITHIN_SECONDS = 5.0


def promptly(attempt: Callable[[], float]) -> None:
    """An end comes within so many seconds of its deadline, where the machine lets anything run.

    `attempt` gives the seconds from a deadline to an end. One of three has to be in time, since a
    busy machine stops the watchdog, the engine and this test alike; none may be early.
    """
    delays = []
    for _ in range(3):
        delays.append(attempt())
        assert delays[-1] >= 0
        if delays[-1] <= WITHIN_SECONDS:
            return
    pytest.fail(f"ended {delays} s after their deadlines")


HOSTILE = {
    "stops PID 1": "kill -STOP 1; while :; do :; done",
    "kills all it can": "sh -c 'while :; do :; done' & kill -9 -1; while :; do :; done",
    "ignores every signal and hides": (
        "trap '' TERM INT HUP QUIT USR1; while :; do :; done & "
        "(setsid sh -c 'kill -STOP 1; while :; do kill -9 -1; done' &); while :; do :; done"
    ),
}


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    found = Daemon()
    yield found
    found.clean()


def a_name() -> str:
    return f"isolet-wd-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def name() -> str:
    return a_name()


class Process:
    """`python -m isolet.agent.watchdog`."""

    def __init__(self, folder: Path, daemon: Daemon) -> None:
        self.file = folder / "deadlines.json"
        self.journal = folder / "watchdog.jsonl"
        self._command = [
            *(sys.executable, "-m", "isolet.agent.watchdog"),
            *("--deadlines", str(self.file), "--engine", f"unix://{daemon.socket}"),
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def want(self, *entries: deadlines.Deadline, installation: str = "test") -> None:
        deadlines.write(self.file, deadlines.Deadlines(installation=installation, entries=entries))

    def ended(self, name: str) -> deadlines.Ended | None:
        journal = deadlines.read_journal(self.journal)
        return deadlines.ended_by_watchdog(journal, name, deadlines.boot_id())

    def wait_ended(self, name: str) -> deadlines.Ended:
        """Its journal line comes after the engine's word, so wait a little for it."""
        until = real.boottime() + 60
        while (found := self.ended(name)) is None or not found.confirmed:
            assert real.boottime() < until, found
            time.sleep(0.05)
        return found

    def wait_alive(self) -> None:
        until = real.boottime() + 60
        while not watchdog.is_alive(self.journal):
            assert real.boottime() < until, "did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0


@pytest.fixture
def dog(tmp_path: Path, daemon: Daemon) -> Iterator[Process]:
    found = Process(tmp_path, daemon)
    yield found
    found.stop()


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tenant_does_not_outlive_its_deadline(
    case: str, daemon: Daemon, dog: Process
) -> None:
    def attempt() -> float:
        container = daemon.run(name := a_name(), ["/bin/sh", "-c", HOSTILE[case]])
        entry = real.entry(daemon, container, name, 3.0)
        dog.want(entry)
        dead = daemon.wait_dead(container, 60)
        ended = dog.wait_ended(name)
        assert ended.container_id == container
        # An engine that is too busy to answer in time is not waited for.
        return dead - entry.deadline_boottime if ended.how == "engine" else math.inf

    promptly(attempt)


def test_a_paused_sandbox_is_ended_without_a_leak(daemon: Daemon, dog: Process) -> None:
    def attempt() -> float:
        container = daemon.run(name := a_name(), ["/bin/sleep", "600"])
        entry = real.entry(daemon, container, name, 4.0)
        assert daemon.call("POST", f"/containers/{container}/pause")[0] == 204
        dog.want(entry)
        dead = daemon.wait_dead(container, 60)
        assert daemon.call("DELETE", f"/containers/{container}?force=1")[0] == 204
        # Its shim ends a little after it; one that leaks stays.
        until = real.boottime() + 60
        while _mentions(container):
            assert real.boottime() < until, _mentions(container)
            time.sleep(0.05)
        return dead - entry.deadline_boottime

    promptly(attempt)


def _mentions(container: str) -> list[str]:
    """Host processes, shims included, that name the container."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if container.encode() in words:
            found.append(words.decode(errors="replace"))
    return found


@pytest.mark.parametrize("action", ["kill", "freeze"])
@pytest.mark.parametrize("known", ["pid by the agent", "pid learnt"])
def test_an_engine_that_is_gone_or_hangs_saves_nobody(
    action: str, known: str, daemon: Daemon, dog: Process
) -> None:
    promptly(lambda: _without_an_engine(action, known, daemon, dog))


def _without_an_engine(action: str, known: str, daemon: Daemon, dog: Process) -> float:
    container = daemon.run(name := a_name(), ["/bin/sh", "-c", HOSTILE["stops PID 1"]])
    entry = real.entry(daemon, container, name, 8.0)
    pid, start = entry.pid, entry.pid_start
    if known == "pid learnt":
        # The agent died between the start and its second write.
        entry = replace(entry, pid=0, pid_start=0, container_id="")
    dog.want(entry)
    dog.wait_alive()
    time.sleep(3)
    real.cluster(action, "dockerd-0")
    try:
        assert deadlines.start_of(pid) == start, "the sandbox outlives the engine"
        while deadlines.start_of(pid) == start:
            assert real.boottime() < entry.deadline_boottime + 60, "still runs"
            time.sleep(0.05)
        dead = real.boottime()
        assert dog.wait_ended(name).how == "signal"
    finally:
        real.cluster("thaw" if action == "freeze" else "restart", "dockerd-0")
    daemon.wait_dead(container, 60)
    return dead - entry.deadline_boottime


def test_what_is_not_ours_is_left_alone(daemon: Daemon, dog: Process, name: str) -> None:
    container = daemon.run(name, ["/bin/sleep", "600"], installation="other")
    dog.want(real.entry(daemon, container, name, -10.0))
    time.sleep(3)
    assert daemon.state(container)["Running"]
    assert dog.ended(name) is None


def test_it_may_itself_be_killed_and_the_file_may_vanish(daemon: Daemon, dog: Process) -> None:
    def attempt() -> float:
        container = daemon.run(name := a_name(), ["/bin/sleep", "600"])
        entry = real.entry(daemon, container, name, 8.0)
        dog.want(entry)
        dog.wait_alive()
        dog.process.kill()
        dog.process.wait()
        assert not watchdog.is_alive(dog.journal)
        dog.start()
        dog.wait_alive()
        time.sleep(1.0)
        dog.file.unlink()
        return daemon.wait_dead(container, 60) - entry.deadline_boottime

    promptly(attempt)


def test_many_at_once(daemon: Daemon, dog: Process) -> None:
    """More than the engine gets done in time: the rest are ended by a signal."""

    def attempt() -> float:
        name = a_name()
        containers = [daemon.run(f"{name}-{i}", ["/bin/sleep", "600"]) for i in range(12)]
        entries = [real.entry(daemon, c, f"{name}-{i}", 0) for i, c in enumerate(containers)]
        at = real.boottime() + 2.0
        dog.want(*(replace(entry, deadline_boottime=at) for entry in entries))
        return max(daemon.wait_dead(container, 60) for container in containers) - at

    promptly(attempt)
