"""Helpers as real processes: what they have, what they cannot reach, and that they end."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolet.agent.helper import spawn
from isolet.agent.helper.confine import SYSTEM
from isolet.agent.helper.spawn import Helper, Limits, Mount, Rights
from isolet.agent.workspace import disk
from isolet.agent.workspace.disk import DiskWorkspaces
from isolet.base import errors

SH = "/bin/sh"
SECONDS = 60.0


async def output_of(helper: Helper) -> str:
    data = bytearray()
    while piece := await helper.read(65536):
        data += piece
    return data.decode()


async def said(program: str, rights: Rights | None = None, *, seconds: float = SECONDS) -> str:
    """What a shell program prints, both streams, its exit code last."""
    argv = (SH, "-c", f"exec 2>&1; {program}")
    async with spawn.run(argv, rights or Rights(), seconds=seconds) as helper:
        text = await output_of(helper)
        return f"{text}{(await helper.end()).code}"


async def python(program: str, rights: Rights, folder: Path) -> str:
    file = folder / "program.py"
    file.write_text(program)
    seen, argv = spawn.script(str(file))
    wider = Rights(mounts=(seen, *rights.mounts), network=rights.network, limits=rights.limits)
    async with spawn.run(argv, wider, seconds=SECONDS) as helper:
        text = await output_of(helper)
        end = await helper.end()
        assert end.code == 0, end.said
        return text


def child_of(pid: int) -> int:
    """The only child of a process, as the kernel lists it."""
    (only,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(only)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@contextlib.contextmanager
def end_of(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process has ended."""
    found = os.pidfd_open(pid)
    try:
        yield found
    finally:
        os.close(found)


def has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], SECONDS)[0])


async def test_it_has_no_rights_as_the_node_sees_it() -> None:
    async with spawn.run((SH, "-c", "echo up; read x"), Rights(), seconds=SECONDS, stdin=True) as h:
        assert await h.read_line() == b"up\n"
        inside = child_of(h._process.pid)
        seen = status_of(inside)
        assert seen["Uid"].split() == seen["Gid"].split() == [str(spawn.USER)] * 4
        assert seen["Groups"] == ""
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(seen[kind], 16) == 0, kind
        assert seen["NoNewPrivs"] == "1"
        own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in os.listdir("/proc/self/ns")}
        for kind in ("mnt", "pid", "net", "ipc", "uts"):
            assert os.readlink(f"/proc/{inside}/ns/{kind}") != own[kind], kind
        await h.write(b"\n")
        assert (await h.end()).code == 0


async def test_it_gets_no_capability_by_a_user_namespace_either() -> None:
    control = await asyncio.create_subprocess_exec("unshare", "--user", "true")
    assert await control.wait() == 0  # the node itself allows them
    assert "Operation not permitted" in await said("unshare --user true")


async def test_an_agent_that_makes_files_for_itself_alone_shuts_it_out_of_nothing() -> None:
    before = os.umask(0o077)
    try:
        assert (
            await said("cat /dev/null /etc/passwd")
            == f"helper:x:{spawn.USER}:{spawn.USER}::/tmp:/bin/false\n0"
        )
    finally:
        os.umask(before)


async def test_it_sees_programs_and_what_it_was_shown(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("here")
    (tmp_path / "hidden").write_text("no")
    rights = Rights(mounts=(Mount(f"{tmp_path}/shown", "/shown"),))
    text = await said(
        f"cat /shown/file; ls {tmp_path}/hidden; ls -d /proc /sys /run /var/lib", rights
    )
    assert text.startswith("here")
    for path in (f"{tmp_path}/hidden", "/proc", "/sys", "/run", "/var/lib"):
        assert f"'{path}': No such file" in text
    shown = set((await said("for f in /*; do echo $f; done", rights)).split())
    interpreter = "/" + os.path.realpath(sys.base_prefix).split("/")[1]
    assert shown - {*SYSTEM, interpreter, "0"} == {"/dev", "/etc", "/shown", "/tmp"}


async def test_what_it_was_shown_is_read_only_unless_said_otherwise(tmp_path: Path) -> None:
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, spawn.USER, spawn.USER)
    mounts = (
        Mount(f"{tmp_path}/closed", "/closed"),
        Mount(f"{tmp_path}/open", "/open", writable=True),
    )
    text = await said(
        "echo x >/open/f; echo x >/tmp/f && echo tmp; echo x >/closed/f", Rights(mounts=mounts)
    )
    assert "tmp\n" in text
    assert "Read-only" in text
    assert (tmp_path / "open" / "f").read_text() == "x\n"
    assert list((tmp_path / "closed").iterdir()) == []


async def test_a_link_is_not_followed_to_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/var")
    rights = Rights(mounts=(Mount(f"{tmp_path}/link", "/link"),))
    with pytest.raises(errors.Unavailable, match=r"is a link.*/link"):
        await said("ls /link/", rights)


async def test_what_is_not_there_is_told_and_nothing_is_run(tmp_path: Path) -> None:
    rights = Rights(mounts=(Mount(f"{tmp_path}/nothing", "/x"),))
    with pytest.raises(errors.Unavailable, match=r"could not be run: .*No such file.*nothing"):
        await said("echo ran", rights)


CONNECT = """\
import socket
try:
    with socket.create_connection(("127.0.0.1", %d), 5) as made:
        print(made.recv(5).decode())
except OSError as error:
    print("refused", error)
"""


async def test_it_has_no_network_unless_it_was_given_the_nodes(tmp_path: Path) -> None:
    heard = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(1)
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        program = CONNECT % server.sockets[0].getsockname()[1]
        assert "refused" in await python(program, Rights(), tmp_path)
        assert heard == []
        assert "hello" in await python(program, Rights(network=True), tmp_path)
        assert heard == [1]


async def test_an_abstract_socket_of_the_node_is_not_reached(tmp_path: Path) -> None:
    name = f"\0isolet-test-{os.getpid()}"
    program = (
        "import socket\nwith socket.socket(socket.AF_UNIX) as made:\n"
        f"    try: made.connect({name!r}); print('reached')\n"
        "    except OSError: print('refused')\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        assert "refused" in await python(program, Rights(), tmp_path)
        assert "reached" in await python(program, Rights(network=True), tmp_path)


@pytest.mark.parametrize(
    ("limits", "program", "what"),
    [
        (Limits(address=256 << 20), "bytes(512 << 20)", "MemoryError"),
        (
            Limits(file=4096),
            "open('/tmp/f', 'wb', 0).write(bytes(9000)) == 4096 and [][0]",
            "IndexError",
        ),
        (Limits(open_files=16), "[open('/dev/null') for _ in range(32)]", "OSError"),
        (Limits(processes=1), "__import__('os').fork()", "BlockingIOError"),
    ],
    ids=["memory", "file", "open-files", "processes"],
)
async def test_its_limits_hold(tmp_path: Path, limits: Limits, program: str, what: str) -> None:
    text = f"try: {program}\nexcept Exception as error: print(type(error).__name__)\n"
    assert what in await python(text, Rights(limits=limits), tmp_path)


async def test_input_and_output_of_any_bytes() -> None:
    data = bytes(range(256)) * 4096
    async with spawn.run(("/bin/cat",), Rights(), seconds=SECONDS, stdin=True) as helper:

        async def feed() -> None:
            assert await helper.write(data)
            await helper.close_input()

        feeding = asyncio.create_task(feed())
        got = bytearray()
        while piece := await helper.read(65536):
            got += piece
        await feeding
        assert (await helper.end()).code == 0
    assert got == data


async def test_input_that_nobody_reads_is_told() -> None:
    async with spawn.run((SH, "-c", "exit 3"), Rights(), seconds=SECONDS, stdin=True) as helper:
        while await helper.write(bytes(65536)):
            await asyncio.sleep(0)
        assert (await helper.end()).code == 3


async def test_the_end_of_its_output_is_seen_while_it_runs_on() -> None:
    program = "echo one; exec >&-; read x"
    async with spawn.run((SH, "-c", program), Rights(), seconds=SECONDS, stdin=True) as helper:
        assert await output_of(helper) == "one\n"
        assert helper._process.returncode is None


async def test_what_it_says_on_stderr_is_bounded() -> None:
    program = "i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 7"
    async with spawn.run((SH, "-c", program), Rights(), seconds=SECONDS) as helper:
        end = await helper.end()
    assert end.code == 7
    assert end.said.endswith("line 2999\n")
    assert len(end.said) <= spawn.STDERR_BYTES


async def test_a_signal_shows_in_its_code(tmp_path: Path) -> None:
    program = "(sh -c 'kill -9 $$'; echo $?)"
    assert "137" in await said(program)


async def test_one_that_takes_too_long_is_killed_with_its_children() -> None:
    program = "sleep 1000 & setsid sleep 1000 & echo $$; wait"
    async with spawn.run((SH, "-c", program), Rights(), seconds=6.0) as helper:
        assert await helper.read_line() == b"1\n"
        inside = child_of(helper._process.pid)
        children = Path(f"/proc/{inside}/task/{inside}/children").read_text().split()
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(end_of(int(pid))) for pid in (inside, *children)]
            with pytest.raises(errors.Unavailable, match="longer than 6 s"):
                await helper.end()
            assert all(has_ended(each) for each in ends)
            assert len(ends) >= 2


async def test_leaving_it_alone_ends_it() -> None:
    async with spawn.run((SH, "-c", "echo up; sleep 1000"), Rights(), seconds=SECONDS) as helper:
        await helper.read_line()
        inside = os.pidfd_open(child_of(helper._process.pid))
    assert has_ended(inside)
    os.close(inside)


PARENT = """\
import asyncio, sys
from isolet.agent.helper import spawn
from isolet.agent.helper.confine import SYSTEM

async def main():
    argv = ("/bin/sh", "-c", "echo up; sleep 1000")
    async with spawn.run(argv, spawn.Rights(), seconds=1000) as helper:
        await helper.read_line()
        print(helper._process.pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_agent(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        outside = int(parent.stdout.readline())
        with end_of(outside) as first, end_of(child_of(outside)) as second:
            parent.send_signal(number)
            assert has_ended(second)
            assert has_ended(first)


SLOW = """\
import os, sys
from isolet.agent.helper import confine
confine.build_root = lambda rights: (os.write(1, b"built\\n"), os.read(0, 1))
sys.exit(confine.main(sys.argv[1], sys.argv[2:]))
"""


@pytest.mark.parametrize("dies", [False, True])
def test_it_ends_with_the_agent_while_it_is_still_being_set_up(dies: bool) -> None:
    argv = [sys.executable, "-c", SLOW, spawn._text(Rights()), SH, "-c", "echo lives"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as outside:
        assert outside.stdin is not None
        assert outside.stdout is not None
        assert outside.stdout.readline() == b"built\n"
        if dies:
            outside.kill()
            outside.wait()
        outside.stdin.write(b"g")
        outside.stdin.close()
        assert outside.stdout.read() == (b"" if dies else b"lives\n")


async def test_it_is_the_first_to_go_where_memory_is_out() -> None:
    async with spawn.run((SH, "-c", "echo up; read x"), Rights(), seconds=SECONDS, stdin=True) as h:
        await h.read_line()
        for pid in (h._process.pid, child_of(h._process.pid)):
            assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"


async def test_a_disk_can_be_shown_that_is_mounted_nowhere_else(tmp_path: Path) -> None:
    disks = DiskWorkspaces(tmp_path / "disks")
    await disks.prepare()
    device = await disks.make("u1", disk.MINIMUM_BYTES, 4000, 4001)
    try:
        own = Rights(user=4000, group=4001, mounts=(Mount(device, "/disk", True, "ext4"),))
        assert await said("echo kept >/disk/file", own) == "0"
        closed = Rights(user=4000, group=4001, mounts=(Mount(device, "/disk", kind="ext4"),))
        text = await said("cat /disk/file; ls -n /disk; echo x >/disk/file", closed)
        assert text.startswith("kept\n")
        assert "4000 4001" in text
        assert "Read-only" in text
        assert device not in Path("/proc/mounts").read_text()
    finally:
        await disks.release("u1")


async def test_one_that_is_given_up_while_it_starts_is_gone_too() -> None:
    async def one() -> None:
        async with spawn.run(
            (SH, "-c", "sleep 1000"), Rights(), seconds=1000, stdin=True
        ) as helper:
            await helper.end()

    before = set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
    for turns in range(12):
        task = asyncio.create_task(one())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(task, return_exceptions=True)
    after = set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
    assert after <= before
