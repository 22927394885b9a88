"""Slots that are processes of this machine, and outlive the agent as sandboxes do.

Whoever makes one starts it; an agent knows it by its folder alone. Ownership is a file that is made
once, as a store's row is. A runner that is done says so with a file beside its output.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from isolet.base import errors
from isolet.plan.dispatch_outcome import Exit
from isolet.wire.dispatch import Reservation
from isolet.wire.execution import Outcome
from tests.arch import tree

RUNTIME = tree.ROOT / "examples" / "runner" / "runtime.py"
LOOK = 0.01
READY = b"ready\n"


def start(folder: Path) -> subprocess.Popen[bytes]:
    """A warm slot: its runner waits at its input, which stays open until somebody closes it."""
    folder.mkdir(parents=True)
    os.mkfifo(folder / "stdin")
    holder = subprocess.Popen(
        ["/bin/sh", "-c", _HOLDER, sys.executable, str(RUNTIME)],
        cwd=folder,
        start_new_session=True,
    )
    said, until = folder / "stdout", time.monotonic() + 60
    while not (said.exists() and said.read_bytes() == READY and (folder / "pid").exists()):
        assert time.monotonic() < until, "the runner does not get ready"
        time.sleep(LOOK)
    return holder


_HOLDER = """
"$0" "$1" --once warm <stdin >stdout 2>/dev/null &
runner=$!
exec 3>stdin
echo $runner >pid.new && mv pid.new pid
until [ -e closed ] || ! kill -0 $runner 2>/dev/null; do sleep 0.01; done
exec 3>&-
wait $runner
echo $? >exit.new && mv exit.new exit
"""
"""Holds the runner's input open as the engine does, also while no agent is there."""


class ProcessSlot:
    def __init__(self, uid: str, folder: Path, concluded: Path) -> None:
        self.uid = uid
        self.folder = folder
        self._concluded = concluded

    async def deliver(self, data: bytes) -> None:
        await asyncio.to_thread((self.folder / "stdin").write_bytes, data)
        await self.close_input()

    async def close_input(self) -> None:
        (self.folder / "closed").touch()

    async def output(self, offset: int):
        offset += len(READY)
        while True:
            done = (self.folder / "exit").exists()
            with (self.folder / "stdout").open("rb") as file:
                file.seek(offset)
                data = file.read()
            if data:
                offset += len(data)
                yield data
            elif done:
                return
            await asyncio.sleep(LOOK)

    async def over(self) -> bool:
        return (self.folder / "exit").exists()

    async def exit(self) -> Exit:
        while not (self.folder / "exit").exists():
            await asyncio.sleep(LOOK)
        return Exit(code=int((self.folder / "exit").read_text()))

    async def destroy(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        await asyncio.wait_for(self.exit(), 60)

    async def conclude(self, outcome: Outcome) -> None:
        aside = self._concluded.with_suffix(f".{os.getpid()}")
        aside.write_bytes(outcome.to_json() + b"\n")
        with contextlib.suppress(FileExistsError):
            os.link(aside, self._concluded)
        aside.unlink()


class ProcessSlots:
    """All slots of a folder; what belongs to whom is in `owners`, what is over in `concluded`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("owners", "concluded"):
            (folder / name).mkdir(exist_ok=True)

    async def reserve(self, request) -> Reservation:
        taken = {path.read_text() for path in (self.folder / "owners").iterdir()}
        for path in sorted((self.folder / "slots").iterdir()):
            if path.name not in taken:
                return Reservation(slot=path.name)
        raise errors.Unavailable("no slot is ready", reason="NoCapacity")

    async def release(self, reservation) -> None: ...

    async def assign(self, reservation, wanted) -> ProcessSlot:
        aside = self.folder / f".{os.getpid()}"
        aside.write_text(reservation.slot)
        try:
            os.link(aside, self.folder / "owners" / wanted.uid)
        except FileExistsError:
            raise errors.Conflict(f"{wanted.uid} was here before") from None
        finally:
            aside.unlink()
        return self._slot(wanted.uid)

    def _slot(self, uid: str) -> ProcessSlot:
        name = (self.folder / "owners" / uid).read_text()
        return ProcessSlot(uid, self.folder / "slots" / name, self.folder / "concluded" / uid)

    async def adopt(self):
        uids = {path.name for path in (self.folder / "owners").iterdir()}
        over = {path.name for path in (self.folder / "concluded").iterdir()}
        return [self._slot(uid) for uid in sorted(uids - over)]

    async def fence(self, uid: str) -> None: ...
