"""Launch script, launch folder and disk inside real gVisor sandboxes: busybox ash and dash."""

import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolet.agent.workspace import control, script
from isolet.agent.workspace.disk import DiskWorkspaces, volume_options
from isolet.agent.workspace.launch import LaunchFolders
from tests.contract.watchdog import daemon as real
from tests.contract.watchdog.daemon import Daemon

NONCE = "n0123456789abcdef"
IMAGES = {"ash": "ISOLET_IMAGE_SHELL", "dash": "ISOLET_IMAGE_PYTHON"}
HOSTILE = (
    "%s\n", "$(id)", "a b", "*", ";", "--help", "", "'", '"', "\\", "\n", "end\n", "日本語", "-",
    "".join(chr(b) if b < 128 else chr(0xDC00 + b) for b in range(1, 256)),
)  # fmt: skip


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    found = Daemon()
    yield found
    found.clean()


@pytest.fixture
async def folders(tmp_path: Path):
    found = LaunchFolders(tmp_path / "launch")
    await found.prepare()
    yield found
    for uid in found.list():
        found.remove(uid)
    await found.close()
    assert not (tmp_path / "launch").is_mount()


class Sandbox:
    """One sandbox started by a launch script, as the agent starts it."""

    def __init__(self, daemon: Daemon, folders: LaunchFolders, image: str) -> None:
        self._daemon = daemon
        self._folders = folders
        self._image = real.environment(IMAGES[image])
        self.uid = uuid.uuid4().hex

    def run(self, launch: script.Launch, mounts: tuple[dict[str, object], ...] = ()) -> str:
        self._folders.write(self.uid, "launch", script.build(launch))
        folder = str(self._folders.folder(self.uid))
        bind = {"Type": "bind", "Source": folder, "Target": script.MOUNT_POINT, "ReadOnly": True}
        return self._daemon.run(
            f"isolet-ws-{self.uid[:12]}",
            ["/bin/sh", f"{script.MOUNT_POINT}/launch"],
            image=self._image,
            Mounts=[bind, *mounts],
            LogConfig={"Type": "local", "Config": {"max-size": "10m"}},
            Tmpfs={"/workspace": "size=8m,uid=65532,exec", "/tmp": "size=8m,uid=65532"},
        )

    def result(self, container: str) -> tuple[object, object, bytes, int]:
        """First line, last line, the program's stdout, exit code."""
        self._daemon.wait_dead(container, 60)
        lines = control.ControlLines(NONCE)
        _, data = lines.feed(_stdout(self._daemon.output(container)))
        failed, rest = lines.finish()
        return lines.seen, failed, data + rest, self._daemon.state(container)["ExitCode"]


def _stdout(raw: bytes) -> bytes:
    """Stdout of Docker's multiplexed frames."""
    out, at = b"", 0
    while at < len(raw):
        stream, size = struct.unpack_from(">BxxxI", raw, at)
        out += raw[at + 8 : at + 8 + size] if stream == 1 else b""
        at += 8 + size
    return out


@pytest.fixture(params=IMAGES)
def sandbox(request: pytest.FixtureRequest, daemon: Daemon, folders: LaunchFolders) -> Sandbox:
    return Sandbox(daemon, folders, request.param)


def test_argv_and_environment_are_exact(sandbox: Sandbox) -> None:
    show = "cat /proc/$$/cmdline /proc/$$/environ; exit 7"
    argv = ("sh", "-c", show, "name", *HOSTILE)
    env = (("HOME", b""), ("A", bytes(range(1, 256))), ("SECONDS", b"s"), ("RANDOM", b"\n"))
    launch = script.Launch(argv=argv, env=env, nonce=NONCE, guard_seconds=60)
    seen, failed, data, code = sandbox.result(sandbox.run(launch))
    assert (seen, failed, code) == (control.Started(), None, 7)
    words = data.split(b"\0")[:-1]
    assert os.path.basename(words[0]) == b"sh"
    assert words[1 : len(argv)] == [os.fsencode(word) for word in argv[1:]]
    pairs = words[len(argv) :]
    own = {name.encode() + b"=" + value for name, value in env}
    assert own <= set(pairs)
    others = {pair.partition(b"=")[0] for pair in set(pairs) - own}
    assert others <= {b"PATH", b"HOSTNAME", b"LANG", b"PYTHONUNBUFFERED"}, others
    assert len(pairs) == len({pair.partition(b"=")[0] for pair in pairs})


FAILURES = {
    "missing": (("/no/such",), "/workspace", control.Why.MISSING, 127),
    "missing name": (("no-such",), "/workspace", control.Why.MISSING, 127),
    "a folder": (("/etc",), "/workspace", control.Why.NOT_EXECUTABLE, 126),
    "no execute bit": (("/etc/passwd",), "/workspace", control.Why.NOT_EXECUTABLE, 126),
    "bad cwd": (("true",), "/no/such", control.Why.BAD_CWD, 126),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_cannot_run_is_said(name: str, sandbox: Sandbox) -> None:
    argv, cwd, why, code = FAILURES[name]
    container = sandbox.run(script.Launch(argv=argv, cwd=cwd, nonce=NONCE))
    assert sandbox.result(container) == (control.StartFailed(why), None, b"", code)


def test_an_exec_that_the_kernel_refuses(sandbox: Sandbox) -> None:
    """A script whose interpreter is not there, made by the tenant itself in its workspace."""
    make = "printf '#!/no/such\\n' > p; chmod +x p; exec /bin/sh /.isolet/second"
    second = script.build(script.Launch(argv=("/workspace/p",), nonce=NONCE))
    sandbox._folders.write(sandbox.uid, "second", second)
    first = script.Launch(argv=("/bin/sh", "-c", make), nonce="another-nonce-0123")
    container = sandbox.run(first)
    sandbox._daemon.wait_dead(container, 60)
    out = _stdout(sandbox._daemon.output(container))
    assert out == (
        b"another-nonce-0123 started\n" + f"{NONCE} started\n{NONCE} exec-failed 127\n".encode()
    )


def test_a_program_s_own_code(sandbox: Sandbox) -> None:
    launch = script.Launch(argv=("sh", "-c", "pwd; exit 127"), nonce=NONCE)
    container = sandbox.run(launch)
    assert sandbox.result(container) == (control.Started(), None, b"/workspace\n", 127)


GUARDED = {
    "sleeps": "sleep 600",
    "stops PID 1": "kill -STOP 1; sleep 600",
    "ignores signals": "trap '' TERM INT HUP QUIT; while :; do :; done",
    "hides in a session of its own": "(setsid sleep 600 &); setsid sh -c 'sleep 600' & wait",
}


@pytest.mark.parametrize("name", GUARDED)
def test_the_guard_ends_the_sandbox_with_nobody_else_alive(name: str, sandbox: Sandbox) -> None:
    argv = ("sh", "-c", GUARDED[name])
    began = real.boottime()
    container = sandbox.run(script.Launch(argv=argv, nonce=NONCE, guard_seconds=3))
    sandbox._daemon.wait_dead(container, 60)
    assert real.boottime() - began >= 3


def test_the_tenant_cannot_write_its_launch_folder(sandbox: Sandbox) -> None:
    tries = "rm -f /.isolet/launch; echo x > /.isolet/launch; echo x > /.isolet/new; ls /.isolet"
    container = sandbox.run(script.Launch(argv=("sh", "-c", tries), nonce=NONCE))
    assert sandbox.result(container)[2] == b"launch\n"
    assert NONCE.encode() in (sandbox._folders.folder(sandbox.uid) / "launch").read_bytes()


def test_the_longest_argument(sandbox: Sandbox) -> None:
    argv = ("sh", "-c", "echo ${#1}", "name", "'" * script.MAX_STRING_BYTES)
    container = sandbox.run(script.Launch(argv=argv, nonce=NONCE))
    assert sandbox.result(container) == (control.Started(), None, b"131071\n", 0)


def test_the_most_arguments(sandbox: Sandbox) -> None:
    """M03: either it runs or it is said that it did not, never a puzzle."""
    argv = ("true", *("y" * 130_000,) * 15)
    seen, failed, data, code = sandbox.result(sandbox.run(script.Launch(argv=argv, nonce=NONCE)))
    assert (seen, data) == (control.Started(), b"")
    assert (failed, code) in [(None, 0), (control.ExecFailed(126), 126)]


async def test_a_disk_as_workspace(sandbox: Sandbox, daemon: Daemon, tmp_path: Path) -> None:
    disks = DiskWorkspaces(tmp_path / "disks")
    await disks.prepare()
    device = await disks.make("d1", 64 << 20, 65532, 65532)
    name = f"isolet-ws-{uuid.uuid4().hex[:12]}"
    body = {"Name": name, "Driver": "local", "DriverOpts": dict(volume_options(device))}
    assert daemon.call("POST", "/volumes/create", body)[0] == 201
    mount = {"Type": "volume", "Source": name, "Target": "/disk"}
    try:
        fill = "ls -A /disk; dd if=/dev/zero of=/disk/big bs=65536 2>/dev/null"
        container = sandbox.run(
            script.Launch(argv=("sh", "-c", fill), cwd="/disk", nonce=NONCE), (mount,)
        )
        assert sandbox.result(container) == (control.Started(), None, b"", 1)
        assert not daemon.state(container)["OOMKilled"]
        assert await disks.is_full("d1")
    finally:
        daemon.clean()
        assert daemon.call("DELETE", f"/volumes/{name}")[0] == 204
        await disks.release("d1")
    assert await disks.list() == ()
