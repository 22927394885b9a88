"""The watchdog: ends what is past its deadline when the agent does not, as a process of its own.

It holds while the agent is dead and against a tenant that stops or kills everything in its sandbox,
PID 1 included (gVisor does not protect it): it acts from the host. Each half second it reads the
deadlines file, and a sandbox that is past its deadline by more than the grace (the live agent goes
first) is unpaused if need be (a paused runsc container that is killed leaks), killed, and looked at
again. If the engine does not answer in two seconds, or does not get it done, the sandbox's host
process is killed, when its start time shows that it is still the one that was recorded.

Only containers with this installation's label are touched. No error ends it. What it ended is in a
journal, which the agent reads to give the reason.
"""

import argparse
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from isolet.agent import deadlines
from isolet.agent.deadlines import Deadline, Deadlines, Ended
from isolet.agent.watchdog_engine import EngineSilent, EngineSocket, Facts, kill_process
from isolet.base import clock, log

GRACE_SECONDS = 1.0
INTERVAL_SECONDS = 0.5

_LEARN_SECONDS = 0.5
_SILENCE_SECONDS = 3.0
_ENGINE_BUDGET_SECONDS = 1.0
_VERIFY_SECONDS = 1.0
_JOURNAL_BYTES = 1 << 20

_log = log.get("agent.watchdog")


class Journal:
    """Append-only lines, bounded: a full one is set aside and the one before it dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, entry: Ended) -> None:
        """Write a line, on disk. A journal that cannot be written stops nothing."""
        try:
            if self._path.exists() and self._path.stat().st_size > _JOURNAL_BYTES:
                self._path.replace(self._path.with_suffix(".old"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(self._path, flags, 0o600), "ab") as file:
                file.write(json.dumps(asdict(entry)).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            _log.error("journal not written", extra={"error": repr(error)})


class Watchdog:
    """Looks at the deadlines again and again. `tick` is one look."""

    def __init__(
        self,
        path: Path,
        engine: EngineSocket,
        journal: Journal,
        *,
        grace: float = GRACE_SECONDS,
        time_source: clock.Clock | None = None,
        signal_process: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._path = path
        self._engine = engine
        self._journal = journal
        self._grace = grace
        self._clock = time_source or clock.SystemClock()
        self._signal_process = signal_process or kill_process
        self._boot_id = deadlines.boot_id()
        self._last_good: Deadlines | None = None
        self._trouble: str | None = None
        self._silent_until = 0.0
        self._known: dict[str, tuple[int, int]] = {}
        self._foreign: set[str] = set()
        self._announced: set[str] = set()
        self._done: set[str] = set()
        self._helpless: set[str] = set()

    def tick(self) -> None:
        """End what is due, then get to know what is new."""
        content = self._read()
        if content is None:
            return
        ours = [entry for entry in content.entries if entry.boot_id == self._boot_id]
        self._forget(ours)
        until = self._clock.monotonic() + _ENGINE_BUDGET_SECONDS
        for entry in sorted(ours, key=lambda entry: entry.deadline_boottime):
            if self._is_due(entry):
                self._end(entry, content.installation, until)
        for entry in ours:
            if not self._learn(entry, content.installation):
                break

    def _read(self) -> Deadlines | None:
        """The file, or the last good one: a file that is gone gives nobody more time."""
        try:
            self._last_good = deadlines.read(self._path)
        except (OSError, ValueError) as error:
            if self._trouble != repr(error):
                self._trouble = repr(error)
                _log.warning(
                    "deadlines file not read, keeping the last", extra={"error": self._trouble}
                )
        else:
            self._trouble = None
        return self._last_good

    def _forget(self, entries: Sequence[Deadline]) -> None:
        """Keep nothing about names that left the file."""
        present = {entry.name for entry in entries}
        for gone in self._known.keys() - present:
            del self._known[gone]
        for kept in (self._foreign, self._announced, self._done, self._helpless):
            kept &= present

    def _is_due(self, entry: Deadline) -> bool:
        """Whether its time, and the agent's time to end it, are over."""
        past = self._clock.boottime() >= entry.deadline_boottime + self._grace
        return past and entry.name not in self._done and entry.name not in self._foreign

    def _end(self, entry: Deadline, installation: str, until: float) -> None:
        """End one: by the engine while it answers and there is time, else by a signal."""
        now = self._clock.monotonic()
        silent = now < self._silent_until
        if not silent and (now < until or not self._process_of(entry)):
            try:
                if self._end_by_engine(entry, installation):
                    return
            except EngineSilent as error:
                self._silent_until = self._clock.monotonic() + _SILENCE_SECONDS
                _log.warning("engine silent", extra={"container": entry.name, "error": str(error)})
        self._end_by_signal(entry)

    def _end_by_engine(self, entry: Deadline, installation: str) -> bool:
        """Whether nothing is left to do: dead, gone, never started, or not ours."""
        facts = self._engine.inspect(entry.container_id or entry.name)
        if facts is None or facts.created:
            return True
        if facts.installation != installation:
            self._foreign.add(entry.name)
            _log.error("not ours, left alone", extra={"container": entry.name})
            return True
        if facts.running:
            self._remember(entry, facts)
            self._announce(entry, facts.container_id, "engine")
            if facts.paused:
                self._engine.unpause(facts.container_id)
            self._engine.kill(facts.container_id)
            if not self._is_dead(facts.container_id):
                return False
            self._confirm(entry, facts.container_id, "engine")
        self._done.add(entry.name)
        return True

    def _is_dead(self, container_id: str) -> bool:
        """Whether the engine says so within a second."""
        until = self._clock.monotonic() + _VERIFY_SECONDS
        while True:
            facts = self._engine.inspect(container_id)
            if facts is None or not facts.running:
                return True
            if self._clock.monotonic() >= until:
                return False
            time.sleep(0.05)

    def _end_by_signal(self, entry: Deadline) -> None:
        """Kill the sandbox's host process, without the engine."""
        process = self._process_of(entry)
        if process is None:
            if entry.name not in self._helpless:
                self._helpless.add(entry.name)
                _log.error("past its deadline, no process known", extra={"container": entry.name})
            return
        self._announce(entry, entry.container_id, "signal")
        if self._signal_process(*process):
            self._confirm(entry, entry.container_id, "signal")
            self._done.add(entry.name)

    def _process_of(self, entry: Deadline) -> tuple[int, int] | None:
        """(pid, start time): the agent's word, else what we have learnt."""
        if entry.pid and entry.pid_start:
            return entry.pid, entry.pid_start
        return self._known.get(entry.name)

    def _learn(self, entry: Deadline, installation: str) -> bool:
        """Look up the process of a sandbox while the engine answers; False when it does not.

        The agent writes a deadline before it starts the sandbox; if it dies in between, nobody else
        knows the pid when the engine is dead too.
        """
        if self._process_of(entry) or entry.name in self._done or entry.name in self._foreign:
            return True
        if self._clock.monotonic() < self._silent_until:
            return False
        try:
            reference = entry.container_id or entry.name
            facts = self._engine.inspect(reference, timeout=_LEARN_SECONDS)
        except EngineSilent:
            self._silent_until = self._clock.monotonic() + _SILENCE_SECONDS
            return False
        if facts and facts.installation == installation:
            self._remember(entry, facts)
        return True

    def _remember(self, entry: Deadline, facts: Facts) -> None:
        """Keep pid and start time of a running sandbox."""
        start = deadlines.start_of(facts.pid) if facts.pid else None
        if start is not None:
            self._known[entry.name] = (facts.pid, start)

    def _announce(self, entry: Deadline, container_id: str, how: str) -> None:
        """Journal the act before it is done, once."""
        if entry.name not in self._announced:
            self._announced.add(entry.name)
            self._journal.append(self._line(entry, container_id, how, confirmed=False))

    def _confirm(self, entry: Deadline, container_id: str, how: str) -> None:
        """Journal that it was seen dead."""
        self._journal.append(self._line(entry, container_id, how, confirmed=True))
        _log.warning("ended past its deadline", extra={"container": entry.name, "how": how})

    def _line(self, entry: Deadline, container_id: str, how: str, *, confirmed: bool) -> Ended:
        """A journal line."""
        return Ended(
            name=entry.name,
            container_id=container_id or entry.container_id,
            confirmed=confirmed,
            how=how,
            boot_id=entry.boot_id,
            deadline_boottime=entry.deadline_boottime,
            boottime=self._clock.boottime(),
            at=self._clock.now().isoformat(),
        )


def run(
    path: Path,
    engine: str,
    journal: Path,
    *,
    grace: float = GRACE_SECONDS,
    stop: threading.Event | None = None,
) -> None:
    """Watch until `stop` is set. Holds a lock beside the journal, by which the agent sees us."""
    stop = stop or threading.Event()
    alive = os.open(_lock_path(journal), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_SH)
    watchdog = Watchdog(path, EngineSocket(engine), Journal(journal), grace=grace)
    _log.info("watching", extra={"deadlines": str(path)})
    try:
        while not stop.is_set():
            try:
                watchdog.tick()
            except Exception:
                _log.exception("a look failed")
            stop.wait(INTERVAL_SECONDS)
    finally:
        os.close(alive)


def is_alive(journal: Path) -> bool:
    """Whether a watchdog with this journal runs now."""
    try:
        descriptor = os.open(_lock_path(journal), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_path(journal: Path) -> Path:
    """Where a running watchdog holds its lock."""
    return journal.with_suffix(".lock")


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m isolet.agent.watchdog`."""
    parser = argparse.ArgumentParser(prog="isolet watchdog", description=__doc__.splitlines()[0])
    parser.add_argument("--deadlines", type=Path, required=True, help="the agent's deadlines file")
    parser.add_argument("--engine", required=True, help="the engine's Unix socket")
    parser.add_argument("--journal", type=Path, help="default: watchdog.jsonl beside the deadlines")
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS, help="seconds for the agent")
    options: Any = parser.parse_args(arguments)
    log.setup()
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    journal = options.journal or options.deadlines.with_name("watchdog.jsonl")
    run(options.deadlines, options.engine, journal, grace=options.grace, stop=stop)


if __name__ == "__main__":
    main()
