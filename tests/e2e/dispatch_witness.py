"""How often each run was run, in the runners' own words, as the engines' log files have them.

A runner writes to its stdout, and the engine's log driver to a file of the engine's own. This opens
each such file when its container starts and reads it when that is gone, for an open file outlives
its name. Nothing of Isolet is asked.
"""

import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.e2e.faults_arena import eventually
from tests.e2e.faults_watch import Tape, Told
from tests.e2e.world import World
from witness import Witness

SAYS = "ran:"
_MOST = 1 << 20
"""Bytes of a log; the runs of these tests write some hundred."""
_SAID = re.compile(rb'"payload":"' + SAYS.encode() + rb'([a-z0-9-]+)"')


def says(run_id: str) -> dict[str, str]:
    """The step of a document by which its runner says, once, that it runs this."""
    return {"echo": f"{SAYS}{run_id}"}


@dataclass
class Logs:
    """The log files of all containers of an installation that one engine starts meanwhile."""

    witness: Witness
    installation: str
    missed: list[str] = field(default_factory=list)
    """Containers that were gone before their file was found."""

    def __post_init__(self) -> None:
        root = self.witness.docker("info", "--format", "{{.DockerRootDir}}")
        self._containers = Path(root) / "containers"
        self._open: dict[str, IO[bytes]] = {}
        self._read: list[list[str]] = []
        self._lock = threading.Lock()
        self.tape = Tape(self.witness, self.installation, self._hear)

    def _hear(self, told: Told) -> None:
        with self._lock:
            if told.action == "start" and told.container not in self._open:
                folder = self._containers / told.container / "local-logs"
                try:
                    self._open[told.container] = (folder / "container.log").open("rb")
                except FileNotFoundError:
                    self.missed.append(told.name)
            elif told.action == "destroy" and told.container in self._open:
                with self._open.pop(told.container) as file:
                    self._read.append(_said(file))

    def said(self) -> list[list[str]]:
        """Of each container, the runs that it said it ran, until now."""
        with self._lock:
            return [*self._read, *map(_said, self._open.values())]

    def close(self) -> None:
        """Stop listening, and let go of the files."""
        self.tape.close()
        for file in self._open.values():
            file.close()


def _said(file: IO[bytes]) -> list[str]:
    return [run.decode() for run in _SAID.findall(os.pread(file.fileno(), _MOST, 0))]


@dataclass
class Runs:
    """What all engines' files tell."""

    logs: list[Logs]

    def times(self) -> Counter[str]:
        """How often each run was run."""
        return Counter(run for log in self.logs for said in log.said() for run in said)

    def until(self, run: str, times: int = 1) -> None:
        """Wait until a run was run so often: an engine writes to its files in its own time."""
        eventually(f"{run} ran {times} times", lambda: self.times()[run] >= times)

    def shared(self) -> list[list[str]]:
        """Runs that had one sandbox between them."""
        return [said for log in self.logs for said in log.said() if len(said) > 1]

    def missed(self) -> list[str]:
        """Containers of which nothing was seen."""
        return [name for log in self.logs for name in log.missed]

    @property
    def tapes(self) -> dict[str, Tape]:
        """What each engine told of starts."""
        return {log.witness.socket: log.tape for log in self.logs}


@contextlib.contextmanager
def runs_of(world: World) -> Iterator[Runs]:
    """Hold on to the files of all nodes."""
    installation, nodes = world.stack.installation, world.stack.nodes()
    with contextlib.ExitStack() as stack:
        logs = [Logs(world.witness(node), installation) for node in nodes]
        for log in logs:
            stack.callback(log.close)
        yield Runs(logs)
