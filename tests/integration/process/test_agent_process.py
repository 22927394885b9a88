"""An agent as a process of its own, on a real engine: started, called over both doors, killed."""

import asyncio
import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from isolet.agent import deadlines, watchdog
from isolet.agent.host import ExecutionHost
from isolet.agent.run import is_gvisor
from isolet.base import errors, names
from isolet.base.tls import TLSFiles
from isolet.cli import pki
from isolet.client.http import HTTPAgent
from isolet.wire.execution import (
    Amendment,
    ExecRequest,
    ExecutionObserved,
    ExecutionSpec,
    ExecutionWanted,
    Resources,
    State,
    Step,
)
from tests.ports import free_port
from tests.witness import Witness

MIB = 1 << 20
NODE = "node-0"


def environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f'{name} is not set: run through hack/test, or eval "$(hack/cluster env)"')
    return value


class Agent:
    """Its folders, its configuration, and the process of the moment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"
        self.port = free_port()
        self.installation = f"test-{uuid.uuid4().hex[:8]}"
        self.process: subprocess.Popen[bytes] | None = None
        now = datetime.datetime.now(datetime.UTC)
        issuer = pki.authority(now)
        pki.write(root / "pki" / NODE, pki.node(issuer, NODE, ["127.0.0.1"], now), issuer)
        for who in ("operator", "stream"):
            pki.write(root / "pki" / who, pki.client(issuer, f"isolet:{who}", now), issuer)
        (root / "policy.toml").write_text('[capacity]\nexecutions = 3\n[maximum]\nmemory = "1Gi"\n')
        (root / "agent.toml").write_text(
            f'node = "{NODE}"\ninstallation = "{self.installation}"\n'
            f'stateDir = "{root}/state"\nrunDir = "{root}/run"\n'
            f'engineSocket = "{environment("ISOLET_DOCKER_SOCKETS").split()[0]}"\n'
            f'listen = "127.0.0.1:{self.port}"\ntlsDir = "{root}/pki/{NODE}"\n'
            f'policyFile = "{root}/policy.toml"\n'
        )

    def command(self) -> list[str]:
        return [sys.executable, "-m", "isolet", "agent", "--config", f"{self.root}/agent.toml"]

    def start(self) -> None:
        log = (self.root / "log").open("ab")
        with log:
            self.process = subprocess.Popen(self.command(), stderr=log, stdin=subprocess.DEVNULL)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def leave(self) -> None:
        """Have neither it nor a watchdog of it run, nor its folder be there."""
        if self.process is not None:
            self.end(signal.SIGKILL)
        until = time.monotonic() + 60
        while pids := self._watchdogs():  # They write to the folder, which can't be removed then.
            assert time.monotonic() < until, f"watchdogs {pids} do not end"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        subprocess.run(("umount", f"{self.run}/launch"), check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.root)

    def _watchdogs(self) -> list[int]:
        """Its own, and one whose place that has just taken."""
        found, mine = [], os.fsencode(self.run / "deadlines.json")
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parts[2]))
        return found

    def log(self) -> str:
        return (self.root / "log").read_text()

    def watchdog_pid(self) -> int:
        return int(json.loads((self.run / "watchdog.pid").read_text())["pid"])

    def local(self) -> HTTPAgent:
        return HTTPAgent(f"unix://{self.run}/agent.sock")

    def remote(self, who: str) -> HTTPAgent:
        files = TLSFiles.in_folder(self.root / "pki" / who)
        return HTTPAgent(f"https://127.0.0.1:{self.port}", node=NODE, files=files)


@contextlib.contextmanager
def an_agent() -> Iterator[Agent]:
    """An agent, not started yet; nothing of it is left at the end."""
    root = Path(tempfile.mkdtemp(prefix="isolet-"))
    made = Agent(root)
    yield made
    made.leave()


def is_over(pid: int) -> bool:
    """Whether a process has ended; whoever started it may not have looked yet."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.fixture
def agent() -> Iterator[Agent]:
    with an_agent() as made:
        yield made


@pytest.fixture
async def local(agent: Agent) -> AsyncIterator[HTTPAgent]:
    agent.start()
    client = agent.local()
    await ready(client)
    yield client
    if agent.process is None:
        agent.start()
        await ready(client)
    host = ExecutionHost(client)
    for seen in await host.list():
        await host.reclaim(seen.uid)
    await client.close()


async def ready(client: HTTPAgent) -> None:
    """Wait until the agent has qualified its runtime."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(errors.Unavailable):
                node = await client.node()
                if node.runtimes:
                    return
            await asyncio.sleep(0.1)


def spec(*command: str, **changes: int) -> ExecutionSpec:
    sizes = {
        "cpu_millis": 500,
        "memory_bytes": 64 * MIB,
        "workspace_bytes": 16 * MIB,
        "tmp_bytes": 4 * MIB,
        "shm_bytes": MIB,
        "pids": 64,
        "output_bytes": MIB,
    }
    return ExecutionSpec(
        image=environment("ISOLET_IMAGE_SHELL"),
        resources=Resources(**{**sizes, **changes}),
        command=command,
    )


def wanted(uid: str, what: ExecutionSpec, seconds: int = 120) -> ExecutionWanted:
    return ExecutionWanted(uid=uid, name=uid, spec=what, active_deadline_seconds=seconds)


async def until(
    client: HTTPAgent, uid: str, reached: Callable[[ExecutionObserved], bool]
) -> ExecutionObserved:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(errors.Unavailable):
                seen = await client.get(uid)
                if reached(seen):
                    return seen
            await asyncio.sleep(0.05)


def running(seen: ExecutionObserved) -> bool:
    assert seen.outcome is None, seen.outcome
    return seen.step is Step.RUNNING


def ended(seen: ExecutionObserved) -> bool:
    return seen.outcome is not None


async def test_a_sandbox_over_both_doors(agent: Agent, local: HTTPAgent) -> None:
    operator, stream = agent.remote("operator"), agent.remote("stream")
    told: set[str] = set()

    async def follow() -> None:
        async for change in operator.watch(0):
            told.update({change.execution.uid} if change.execution else ())

    following = asyncio.create_task(follow())
    await operator.put(wanted("run", spec("sh", "-c", "echo out; echo err >&2; exit 3")), None)
    await operator.put(wanted("session", spec()), None)
    seen = await until(operator, "run", ended)
    assert seen.outcome is not None
    assert (seen.outcome.reason, seen.outcome.exit_code) == ("NonZeroExit", 3)
    assert (await stream.output("run", "stdout", 0, 100)).data == b"out\n"
    assert (await stream.output("run", "stderr", 0, 100)).data == b"err\n"
    await until(operator, "session", running)
    result = await stream.exec("session", ExecRequest(command=("cat",), stdin=b"\x00\xff"))
    assert (result.exit_code, result.stdout) == (0, b"\x00\xff")
    with pytest.raises(errors.Refused):
        await stream.put(wanted("x", spec("true")), None)
    with pytest.raises(errors.Refused, match="maximum of 1073741824"):
        await operator.put(wanted("x", spec("true", memory_bytes=2 << 30)), None)
    end = Amendment(active_deadline_seconds=120, state=State.TERMINATED)
    await operator.amend("session", end, None)
    seen = await until(local, "session", ended)
    assert seen.outcome is not None
    assert seen.outcome.succeeded
    async with asyncio.timeout(60):  # Each of them is on its way by itself.
        while told != {"run", "session"} and not following.done():
            await asyncio.sleep(0.05)
    following.cancel()
    assert told == {"run", "session"}
    for client in (operator, stream):
        await client.close()


async def test_work_goes_on_while_the_agent_is_killed(agent: Agent, local: HTTPAgent) -> None:
    count = "i=0; while [ $i -lt 20 ]; do echo $((i+from)); i=$((i+1)); sleep 0.1; done"
    waits = 'until [ "$on" ]; do sleep 0.1; done'
    words = f"trap 'on=yes' USR1; echo ready; from=0; {count}; {waits}; from=20; {count}"
    await local.put(wanted("count", spec("sh", "-c", words)), None)
    async with asyncio.timeout(60):
        while not (await local.output("count", "stdout", 0, MIB)).data:
            await asyncio.sleep(0.05)
    before = agent.watchdog_pid()
    assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    assert watchdog.is_alive(agent.run / "watchdog.jsonl")
    await asyncio.sleep(0.5)
    container = names.container_name(agent.installation, "count")
    witness = Witness(environment("ISOLET_DOCKER_SOCKETS").split()[0])
    witness.docker("kill", "--signal", "USR1", container)
    agent.start()
    seen = await until(local, "count", ended)
    assert seen.outcome is not None
    assert seen.outcome.succeeded
    chunk = await local.output("count", "stdout", 0, MIB)
    assert chunk.data.split() == [b"ready", *(str(n).encode() for n in range(40))]
    # The new agent has put a watchdog of its own in the old one's place.
    assert agent.watchdog_pid() != before
    async with asyncio.timeout(60):
        while not is_over(before):
            await asyncio.sleep(0.05)


async def test_the_deadline_holds_without_an_agent(agent: Agent, local: HTTPAgent) -> None:
    await local.put(wanted("late", spec("sleep", "600"), seconds=10), None)
    seen = await until(local, "late", running)
    assert seen.deadline_at is not None
    agent.end(signal.SIGKILL)
    async with asyncio.timeout(60):
        while len(deadlines.read_journal(agent.run / "watchdog.jsonl")) < 2:
            await asyncio.sleep(0.1)
    agent.start()
    seen = await until(local, "late", ended)
    assert seen.outcome is not None
    assert seen.outcome.reason == "DeadlineExceeded"
    lines = deadlines.read_journal(agent.run / "watchdog.jsonl")
    assert [line.confirmed for line in lines] == [False, True]
    assert 0 <= lines[0].boottime - lines[0].deadline_boottime < 60


async def test_a_watchdog_that_dies_is_started_again(agent: Agent, local: HTTPAgent) -> None:
    before = agent.watchdog_pid()
    os.kill(before, signal.SIGKILL)
    for _ in range(600):
        if agent.watchdog_pid() != before and watchdog.is_alive(agent.run / "watchdog.jsonl"):
            break
        await asyncio.sleep(0.1)
    assert agent.watchdog_pid() != before
    assert watchdog.is_alive(agent.run / "watchdog.jsonl")
    assert await local.node()


async def test_term_leaves_sandboxes_and_the_watchdog(agent: Agent, local: HTTPAgent) -> None:
    await local.put(wanted("stays", spec("sleep", "60")), None)
    await until(local, "stays", running)
    began = time.monotonic()
    assert agent.end() == 0
    assert time.monotonic() - began < 30  # The grace of a Pod.
    assert watchdog.is_alive(agent.run / "watchdog.jsonl")
    assert not (agent.run / "agent.sock").exists()
    agent.start()
    assert running(await until(local, "stays", lambda seen: True))
    with pytest.raises(errors.Conflict):
        await local.put(wanted("stays", spec("sleep", "61")), None)


async def test_a_second_agent_on_the_same_folders_does_not_start(
    agent: Agent, local: HTTPAgent
) -> None:
    code, line = await asyncio.to_thread(_fails, agent)
    assert (code, line[:27]) == (1, "Error: another agent uses /")
    assert await local.node()


def _fails(agent: Agent) -> tuple[int, str]:
    ended = subprocess.run(agent.command(), capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr.splitlines()[-1]


def test_what_is_missing_at_the_start_is_one_line(agent: Agent) -> None:
    (agent.root / "policy.toml").write_text("[capacity]\ncpus = 4\n")
    code, line = _fails(agent)
    assert (code, line) == (
        2,
        f"Error: policy file {agent.root}/policy.toml: capacity.cpus: there is no such key",
    )
    (agent.root / "policy.toml").write_text("")
    key = agent.root / "pki" / NODE / "tls.key"
    key.rename(agent.root / "key")
    code, line = _fails(agent)
    assert (code, line) == (1, f"Error: {key}: No such file or directory")
    (agent.root / "key").rename(key)
    (agent.root / "state" / "node.key").unlink()
    code, line = _fails(agent)
    assert code == 1
    assert "node.key is gone" in line
    with socket.create_server(("127.0.0.1", agent.port)):
        shutil.rmtree(agent.root / "state")
        code, line = _fails(agent)
    assert code == 1
    assert "in use" in line


def test_this_process_is_no_gvisor() -> None:
    assert not is_gvisor(os.getpid())
    assert not is_gvisor(2**22 + 1)
