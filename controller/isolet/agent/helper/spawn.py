"""Runs a program on what strangers made: without rights, bounded in time, gone when it should be.

    seen, argv = spawn.script(reader.__file__)
    rights = Rights(mounts=(seen, Mount("/srv/git/project.git", "/repo")))
    async with spawn.run((*argv, "/repo"), rights, seconds=10) as helper:
        data = await helper.read(65536)
        end = await helper.end()

What the program says is believed nothing: it speaks for whoever made what it read. Its output comes
through a pipe that blocks it when nobody reads. `isolet.agent.helper.confine` says what it has.

A helper dies with the thread that started it, so it has to be started on the agent's event loop.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from isolet.agent.helper import confine
from isolet.base import errors

USER = 65_531
"""User and group of a helper: nobody else's on the node, so that it may signal nobody."""

STDERR_BYTES = 4096
PIPE_BYTES = 256 << 10
_ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp"}


@dataclass(frozen=True, slots=True)
class Mount:
    """Something of the node that the helper sees. It is opened as root, through no final link."""

    source: str
    """Absolute path of a file or folder; of a block device for `ext4`."""
    target: str
    """Absolute path where the helper sees it."""
    writable: bool = False
    kind: Literal["bind", "ext4"] = "bind"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of each process of the helper, as setrlimit(2) has them; sizes in bytes."""

    cpu: int = 300
    """Seconds of processor time."""
    address: int = 1 << 30
    file: int = 16 << 20
    """Largest file that it may write; its output goes through pipes, which are no files."""
    open_files: int = 256
    processes: int = 64
    """Threads of the helper's user: all helpers', and all others' on the node who are it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rights:
    """All that a helper has."""

    user: int = USER
    group: int = USER
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    """The node's own network. Only for what an administrator configured."""
    limits: Limits = Limits()
    tmp_bytes: int = 16 << 20
    """Size of its `/tmp`, which is memory."""


@dataclass(frozen=True, slots=True)
class End:
    """How a helper ended."""

    code: int
    """Exit code; 128 + number of the signal that ended it."""
    said: str
    """The last of what it wrote to stderr: for a decision, never for a log or a user."""


class Helper:
    """A helper that runs."""

    def __init__(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        self._process = process
        self._seconds = seconds
        self._overdue = False
        self._said = bytearray()
        self._listening = asyncio.create_task(self._listen())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)

    async def read(self, most: int) -> bytes:
        """Up to so many bytes of its output; nothing at its end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(most)

    async def read_line(self) -> bytes:
        """A line of its output; without a newline at its end, or where it is over `PIPE_BYTES`."""
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            return b""

    async def write(self, data: bytes) -> bool:
        """Give it input; False once it takes none any more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    async def close_input(self) -> None:
        """Let it see the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._process.stdin.wait_closed()

    async def end(self) -> End:
        """Wait for its end; its output has to have been read.

        Raises:
            Unavailable: it took too long, or could not be given fewer rights and was not run.
        """
        code = await self._process.wait()
        await self._listening
        said = self._said.decode(errors="replace")
        if self._overdue:
            raise errors.Unavailable(f"the helper took longer than {self._seconds:g} s")
        if code == confine.FAILED or code < 0:
            last = (said.strip().splitlines() or [f"ended by signal {-code}"])[-1]
            raise errors.Unavailable(f"the helper could not be run: {last[:300]}")
        return End(code, said)

    async def close(self) -> None:
        """End it if it has not ended, and wait until it has."""
        self._timer.cancel()
        self._kill()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        await self._process.wait()
        # A process that it left could hold stderr open; there is none, but nothing hangs on that.
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    def _time_is_up(self) -> None:
        self._overdue = self._process.returncode is None
        self._kill()

    def _kill(self) -> None:
        """The kernel ends the whole namespace with the process that is waiting outside of it."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(STDERR_BYTES):
            self._said += piece
            del self._said[:-STDERR_BYTES]


@contextlib.asynccontextmanager
async def run(
    argv: Sequence[str], rights: Rights, *, seconds: float, stdin: bool = False
) -> AsyncIterator[Helper]:
    """Run a program of the node, an absolute path; it has ended when the context has.

    Args:
        argv: the program and its arguments; no tenant data, since every user sees them.
        rights: what it has.
        seconds: after which it is killed, from now on.
        stdin: whether it gets input; else its input is empty.

    Raises:
        Unavailable: it cannot be started.
    """
    command = [sys.executable, "-I", "-S", str(confine.__file__), _text(rights), *argv]
    try:
        helper = Helper(await _started(command, stdin=stdin), seconds)
    except OSError as error:
        raise errors.Unavailable(f"a helper cannot be started: {error.strerror}") from error
    try:
        yield helper
    finally:
        await asyncio.shield(helper.close())


async def _started(command: Sequence[str], *, stdin: bool) -> asyncio.subprocess.Process:
    """Start it, whole: asyncio never comes back from a start that is cancelled half way.

    (It waits for the ends of pipes that it has not connected; seen with Python 3.11.7.)
    """
    pipe = asyncio.subprocess.PIPE
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command,
            stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=_ENV,
            cwd="/",
            limit=PIPE_BYTES,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.wait()
        raise


def script(file: str) -> tuple[Mount, tuple[str, ...]]:
    """A Python script of ours as a helper: what makes it visible, and the first words of its argv.

    It is run alone, with the standard library and nothing of this package.
    """
    inside = f"/helper/{os.path.basename(file)}"
    return Mount(file, inside), (os.path.realpath(sys.executable), "-I", "-S", inside)


def _text(rights: Rights) -> str:
    limits = rights.limits
    return json.dumps(
        {
            "parent": os.getpid(),
            "uid": rights.user,
            "gid": rights.group,
            "network": rights.network,
            "tmp_bytes": rights.tmp_bytes,
            "mounts": [asdict(mount) for mount in rights.mounts],
            "limits": {
                "core": 0,
                "cpu": limits.cpu,
                "as": limits.address,
                "fsize": limits.file,
                "nofile": limits.open_files,
                "nproc": limits.processes,
            },
        }
    )
