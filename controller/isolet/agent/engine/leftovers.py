"""What still runs of a container that the engine does not know any more.

An engine that is killed as it starts a container may not have come to write that down. The one that
comes up says that the container was never started, ends nothing of it, and removes it from under
a sandbox that runs on (measured on 20.10.24: 1 of 14 kills within half a second of a start). Which
processes those are is in the kernel's own account: the engine puts them into a cgroup whose path
has the container's id.
"""

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path

from isolet.base import errors, log

_ID = re.compile(r"[0-9a-f]{64}")
_LOOKS = 200
_LOOK_SECONDS = 0.05
_DEAD = ("Z", "X")
_log = log.get("engine.leftovers")


async def end(container_id: str, proc: Path = Path("/proc")) -> None:
    """Kill all processes of a container that is gone; returns once there are none.

    Does nothing where it is given a name: only an id is never given twice.

    Raises:
        Unconfirmed: some are there after ten seconds: the kernel waits for a device of theirs.
    """
    if not _ID.fullmatch(container_id):
        return
    told: list[int] = []
    for _ in range(_LOOKS):
        pids = await asyncio.to_thread(_kill, container_id, proc)
        if not pids:
            return
        if pids != told:
            told = pids
            _log.error("killed what ran on", extra={"container": container_id, "pids": pids})
        await asyncio.sleep(_LOOK_SECONDS)
    raise errors.Unconfirmed(f"{len(told)} processes of {container_id} do not die")


def _kill(container_id: str, proc: Path) -> list[int]:
    """The processes that were there; each is told to die."""
    found = [int(each.name) for each in proc.glob("[0-9]*") if _is_of(each, container_id)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                # Looked at again while the handle holds on to it: a pid may change hands.
                if _is_of(proc / str(pid), container_id):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return found


def _is_of(folder: Path, container_id: str) -> bool:
    """Whether it is a live process in that container's cgroup."""
    try:
        if container_id not in (folder / "cgroup").read_text():
            return False
        state = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return bool(state) and state[0] not in _DEAD
