"""When the engine's process was started: what ended before that has no complete log.

Read from the host's `/proc`. An agent that cannot see the host's processes gets no answer.
"""

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_NAME = "dockerd"
_STARTED = 19
"""Field of /proc/<pid>/stat after the process name: the start in ticks of the boot-time clock."""
_DEAD = ("Z", "X")


class EngineProcess:
    """The process of the engine behind a socket. It is looked for anew only once it is gone."""

    def __init__(self, socket_path: str, proc: Path = Path("/proc")) -> None:
        self._socket_path = socket_path
        self._proc = proc
        self._known: tuple[Path, float] | None = None

    def started_boottime(self) -> float | None:
        """Boot-time seconds at which it was started; None if it cannot be seen. Blocks."""
        if self._known is None or _start_of(self._known[0]) != self._known[1]:
            self._known = self._find()
        return None if self._known is None else self._known[1]

    def _find(self) -> tuple[Path, float] | None:
        path, proc = self._socket_path, self._proc
        for pid in itertools.chain([_listener(path)], _holders(path, proc)):
            folder = proc / str(pid)
            if pid and _read(folder / "comm").strip() == _NAME:
                start = _start_of(folder)
                return None if start is None else (folder, start)
        return None


def _listener(socket_path: str) -> int:
    """Whoever made the socket listen: the engine, or systemd on its behalf."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(socket_path)
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return 0
    pid: int = struct.unpack("3i", raw)[0]
    return pid


def _holders(socket_path: str, proc: Path) -> Iterator[int]:
    """Engines that hold the listening socket, however they came by it."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(socket_path, proc)}
    for folder in proc.glob("[0-9]*"):
        if wanted and _read(folder / "comm").strip() == _NAME and wanted & set(_open(folder)):
            yield int(folder.name)


def _inodes(socket_path: str, proc: Path) -> Iterator[str]:
    real = _real(socket_path)
    for line in _read(proc / "net" / "unix").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and real and _real(words[7]) == real:
            yield words[6]


def _real(path: str) -> str:
    """The path without links; anybody's socket may lie below a folder that goes meanwhile."""
    try:
        return os.path.realpath(path)
    except OSError:
        return ""


def _open(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(entry.readlink())


def _start_of(folder: Path) -> float | None:
    """When it was started; None if it is gone, or dead and not waited for yet."""
    fields = _read(folder / "stat").rpartition(")")[2].split()
    if len(fields) <= _STARTED or fields[0] in _DEAD:
        return None
    return int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
