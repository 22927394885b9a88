"""What the watchdog does to the world: four short calls to the engine, and a signal.

Plain http.client over the Unix socket, one call at a time: the Docker SDK would cost the watchdog a
slow start and several times the memory, for nothing that it needs.
"""

import http.client
import json
import os
import select
import signal
import socket
from dataclasses import dataclass

from isolet.agent import deadlines
from isolet.base import names

ENGINE_SECONDS = 2.0

_DIES_SECONDS = 1.0
_ANSWER_BYTES = 4 << 20


class EngineSilent(Exception):
    """The engine did not answer, or not with anything that says what is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the engine says of a container."""

    container_id: str
    installation: str
    running: bool
    paused: bool
    created: bool
    pid: int


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EngineSocket:
    """The four calls that ending a sandbox takes; every one raises EngineSilent."""

    def __init__(self, path: str) -> None:
        self._path = path.removeprefix("unix://")

    def inspect(self, reference: str, *, timeout: float = ENGINE_SECONDS) -> Facts | None:
        """The container, or None if the engine says that there is none."""
        status, body = self._call("GET", f"/containers/{reference}/json", timeout)
        if status == 404:
            return None
        if status != 200:
            raise EngineSilent(f"inspect answered {status}")
        try:
            found = json.loads(body)
            state, labels = found["State"], found["Config"]["Labels"] or {}
            return Facts(
                container_id=found["Id"],
                installation=labels.get(names.LABEL_INSTALLATION, ""),
                running=bool(state["Running"]),
                paused=bool(state["Paused"]),
                created=state["Status"] == "created",
                pid=int(state["Pid"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EngineSilent(f"inspect answered what is no container: {error!r}") from error

    def unpause(self, container_id: str) -> None:
        """Thaw; whether it worked shows later."""
        self._call("POST", f"/containers/{container_id}/unpause", ENGINE_SECONDS)

    def kill(self, container_id: str) -> None:
        """KILL; whether it worked shows later."""
        self._call("POST", f"/containers/{container_id}/kill?signal=KILL", ENGINE_SECONDS)

    def _call(self, method: str, path: str, timeout: float) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = UnixConnection(self._path, timeout)
        try:
            connection.request(method, path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise EngineSilent(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()


def kill_process(pid: int, start: int) -> bool:
    """SIGKILL a process if it is the one that began then; True once it is dead or was already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        # Checked while the handle holds on to the process, so the pid cannot change hands between.
        if deadlines.start_of(pid) != start:
            return True
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return bool(select.select([handle], [], [], _DIES_SECONDS)[0])
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)
