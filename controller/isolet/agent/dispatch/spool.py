"""Where the events of runs are kept: one folder a run, which outlives the agent and the sandbox.

    begun.json      what the run is; never its document
    delivered       when its document had been handed over, on the boot clock
    stop.json       why it was ended by us, written before that is done
    events.ndjson   what the runner wrote, byte for byte: its size is the position to go on from
    ended.json      how it ended

Events are tenants' data: they are in these files and in no database, no log and no status. A
process that is killed loses nothing that was written; only the end is flushed to the disk as well,
since with the machine the run is gone too.
"""

import contextlib
import os
import shutil
from collections.abc import Container, Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from isolet.base import wholefile
from isolet.base.wholefile import Sync
from isolet.plan.dispatch_outcome import Stop
from isolet.wire.base import Wire
from isolet.wire.dispatch import DispatchWanted
from isolet.wire.execution import Outcome
from isolet.wire.http import is_uid

_M = TypeVar("_M", bound=Wire)

_BEGUN = "begun.json"
_DELIVERED = "delivered"
_STOP = "stop.json"
_EVENTS = "events.ndjson"
_ENDED = "ended.json"


class Begun(Wire):
    """What a run was begun with."""

    wanted: DispatchWanted
    begun_at: datetime
    boot_id: str
    boottime: float
    """Seconds of that boot's clock."""


class Ended(Wire):
    """What is left to say of a run that has ended."""

    outcome: Outcome
    ended_at: datetime
    last_sequence: int
    whole_bytes: int
    """Of events.ndjson: what is behind them is no event."""


class _Stopped(Wire):
    reason: str
    message: str


class Spool:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def uid(self) -> str:
        """Whose it is."""
        return self.folder.name

    def begin(self, begun: Begun) -> None:
        """Make the folder. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(_BEGUN, begun.to_json())

    def begun(self) -> Begun | None:
        """What it was begun with; None where that was never written, or not to its end."""
        return self._read(_BEGUN, Begun)

    def deliver(self, boottime: float) -> None:
        """Remember that the document was handed over. Raises OSError."""
        self._write(_DELIVERED, str(boottime).encode())

    def delivered(self) -> float | None:
        """When the document had been handed over; None where nobody knows that it was."""
        try:
            return float((self.folder / _DELIVERED).read_text())
        except (OSError, ValueError):
            return None

    def stop(self, stop: Stop) -> None:
        """Remember why it is ended, unless it is already. Raises OSError."""
        if self.stopped() is None:
            self._write(_STOP, _Stopped(reason=stop.reason, message=stop.message).to_json())

    def stopped(self) -> Stop | None:
        """Why it was ended by us."""
        found = self._read(_STOP, _Stopped)
        return None if found is None else Stop(reason=found.reason, message=found.message)

    def append(self, data: bytes) -> None:
        """Add to the events; all of it or, with OSError, nobody knows how much."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.folder / _EVENTS, flags, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]

    def size(self) -> int:
        """Bytes of events so far."""
        try:
            return (self.folder / _EVENTS).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, offset: int, limit: int) -> bytes:
        """Bytes of events; fewer where there are no more."""
        try:
            with (self.folder / _EVENTS).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def end(self, ended: Ended) -> None:
        """Record the end, on the disk. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), (self.folder / _EVENTS).open("rb") as file:
            os.fsync(file.fileno())
        self._write(_ENDED, ended.to_json(), Sync.CONTENT_AND_NAME)

    def ended(self) -> Ended | None:
        """How it ended."""
        return self._read(_ENDED, Ended)

    def remove(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, name: str, data: bytes, sync: Sync = Sync.NOTHING) -> None:
        wholefile.write(self.folder / name, data, sync=sync)

    def _read(self, name: str, model: type[_M]) -> _M | None:
        try:
            return model.model_validate_json((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None


class Spools:
    """The folders of all runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, uid: str) -> Spool:
        """The folder of a run, there or not."""
        if not is_uid(uid):
            raise ValueError("not a uid")
        return Spool(self._folder / uid)

    def all(self) -> Iterator[Spool]:
        """Every run that is kept."""
        with contextlib.suppress(FileNotFoundError):
            for entry in sorted(self._folder.iterdir()):
                if is_uid(entry.name):
                    yield Spool(entry)

    def forget_all_but(self, going_on: Container[str]) -> None:
        """Forget runs of which neither the end is known nor a sandbox is left to tell of one."""
        for spool in self.all():
            if spool.uid not in going_on and spool.ended() is None:
                spool.remove()

    def prune(self, before: datetime, most_bytes: int) -> None:
        """Forget runs that ended before a moment, and the oldest of those that are too many.

        A run that has not ended is never forgotten.
        """
        ended = [(found.ended_at, s) for s in self.all() if (found := s.ended()) is not None]
        held = sum(spool.size() for _, spool in ended)
        for at, spool in sorted(ended, key=lambda pair: pair[0]):
            if at >= before and held <= most_bytes:
                return
            held -= spool.size()
            spool.remove()
