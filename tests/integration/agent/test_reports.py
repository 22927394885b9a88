"""What people reported of systems like this one, tried on one agent; docs/reports.md has all.

A test is named after its report. One agent serves them all; a few stand behind a proxy that hangs,
drops or cuts what goes to the engine.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from isolet.agent.engine.api import Timeouts
from isolet.agent.engine.base import EngineInfo
from isolet.agent.host import ExecutionHost
from isolet.agent.service.qualify import Qualifier, runtime_problem
from isolet.agent.workspace.launch import LaunchFolders
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import EnvVar, ExecRequest, Medium
from tests.contract.engine.proxy import Proxy
from tests.integration.agent.conftest import Node
from witness import Witness, loops_below

MIB = 1 << 20
SOCKET = "ISOLET_DOCKER_SOCKETS"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """The agent of this module; nothing may be left of it."""
    node = Node(os.environ[SOCKET].split()[0], tmp_path_factory.mktemp("agent"))
    await node.open()
    yield node
    await clear(node)
    witness = Witness(os.environ[SOCKET].split()[0])
    assert witness.containers(node.installation) == []
    assert witness.volumes(node.installation) == []
    assert loops_below(node.root) == []
    await leave(node)


async def clear(node: Node) -> None:
    host = ExecutionHost(node.service)
    for seen in await host.list():
        await host.reclaim(seen.uid)


async def leave(node: Node) -> None:
    await node.close()
    await LaunchFolders(node.run / "launch").close()
    shutil.rmtree(node.run, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="module")
async def host(one: Node) -> AsyncIterator[ExecutionHost]:
    yield ExecutionHost(one.service)
    await clear(one)


@pytest.fixture
def witness(socket: str) -> Witness:
    return Witness(socket)


async def say(host: ExecutionHost, uid: str, script: str, timeout: float = 60) -> str:
    command = ("sh", "-c", f"exec 2>&1; {script}")
    result = await host.exec(uid, ExecRequest(command=command, timeout_seconds=timeout))
    return result.stdout.decode()


def container_of(witness: Witness, uid: str) -> str:
    (found,) = witness.docker("ps", "-aq", "--no-trunc", "--filter", f"label={UID}={uid}").split()
    return found


UID = "dev.isolet.uid"


def processes_with(text: str) -> list[str]:
    """Command lines of the host that hold a text."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if text in line:
            found.append(line.replace("\0", " "))
    return found


async def gone(look, seconds: float = 60) -> None:
    """Wait until what is looked for is no more."""
    async with asyncio.timeout(seconds):
        while look():
            await asyncio.sleep(0.1)


# A: exit codes, signals, out-of-memory.


async def test_a05_a_forced_stop_is_no_memory_trouble(host, one, spec):
    seen = await host.provision(spec("sh", "-c", "trap '' TERM; echo on; sleep 600"), uid="a05")
    async with asyncio.timeout(60):
        while not (await one.service.output(seen.uid, "stdout", 0, 10)).data:
            await asyncio.sleep(0.05)
    ended = await host.terminate(seen.uid)
    assert (ended.outcome.reason, ended.outcome.exit_code) == (reasons.CANCELLED, 137)


async def test_a06_a_hog_that_is_a_child_takes_the_sandbox_along_and_it_is_said(
    host, spec, witness
):
    hog = "tail -c 200m /dev/zero | tail -n 1 >/dev/null & wait; echo after; exit 0"
    seen = await host.provision(spec("sh", "-c", hog, retain_seconds=60), uid="a06")
    result = await host.wait(seen.uid)
    state = witness.inspect(container_of(witness, "a06"))["State"]
    if state["ExitCode"] == 0:
        assert (result.outcome.reason, result.stdout) == (reasons.SUCCEEDED, b"after\n")
    else:
        assert (result.outcome.reason, result.stdout) == (reasons.OOM_KILLED, b"")


async def test_a09_not_executable_is_told_apart_from_not_found(host, spec):
    seen = await host.provision(spec(), uid="a09")
    await say(host, seen.uid, "echo '#!/bin/sh' > s; chmod 644 s")
    for program, words in (("./s", "is not an executable"), ("./t", "was not found")):
        with pytest.raises(errors.Refused, match=words) as caught:
            await host.exec(seen.uid, ExecRequest(command=(program,)))
        assert (caught.value.reason, program in caught.value.message) == ("StartFailed", True)
    assert await say(host, seen.uid, "echo alive") == "alive\n"


async def test_a11_children_of_a_shell_do_not_outlive_it(host, spec, witness):
    seen = await host.provision(spec("sh", "-c", "sleep 1000 & sleep 1000"), uid="a11")
    container = container_of(witness, "a11")
    assert processes_with(container)
    began = time.monotonic()
    ended = await host.terminate(seen.uid)
    assert ended.outcome.reason == reasons.CANCELLED
    assert time.monotonic() - began < 60
    await gone(lambda: processes_with(container))


async def test_a12_a_stop_at_the_moment_of_the_exit_is_no_error(host, spec):
    async def one_of(number: int) -> tuple[str, int | None]:
        uid = f"a12-{number}"
        await host.provision(spec("sleep", "1"), uid=uid)
        await asyncio.sleep(1 - 0.05 + 0.1 * (number % 12) / 11)
        outcome = (await host.terminate(uid)).outcome
        return outcome.reason, outcome.exit_code

    for batch in range(4):
        ends = await asyncio.gather(*(one_of(4 * batch + n) for n in range(4)))
        for reason, code in ends:
            # It may have ended by itself when the wish to end it was already recorded.
            assert code in {reasons.SUCCEEDED: (0,), reasons.CANCELLED: (0, 137, 143)}[reason]


async def test_a14_orphans_do_not_use_up_the_pids(host, spec):
    seen = await host.provision(spec(resources={"pids": 16}), uid="a14")
    for _ in range(60):
        assert await say(host, seen.uid, "(sleep 0.1 &) ; echo ok") == "ok\n"
    # The last ones end only now, and whoever reaps them may have to wait for its turn.
    async with asyncio.timeout(60):
        zombies = "cat /proc/[0-9]*/stat | grep -c ' Z ' || true"
        while int(await say(host, seen.uid, zombies)) > 1:
            await asyncio.sleep(0.3)


@pytest.mark.parametrize(("script", "code"), [("false | true", 0), ("true | exit 3", 3)])
async def test_a15_the_shells_own_code_is_the_code(host, spec, script, code):
    seen = await host.provision(spec("sh", "-c", script))
    assert (await host.wait(seen.uid)).outcome.exit_code == code


async def test_a16_an_odd_stop_signal_of_the_image_delays_nothing(host, spec, witness, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM isolet/shell:dev\nSTOPSIGNAL SIGRTMIN+3\n")
    image = witness.docker("build", "-q", str(tmp_path))
    try:
        assert witness.inspect(image)["Config"]["StopSignal"] == "SIGRTMIN+3"
        seen = await host.provision(spec("sleep", "600", image=image), uid="a16")
        began = time.monotonic()
        ended = await host.terminate(seen.uid)
        assert ended.outcome.reason == reasons.CANCELLED
        assert time.monotonic() - began < 60
        await host.reclaim("a16")
    finally:
        witness.docker("rmi", "-f", image)


# B: timeouts and deadlines.


async def test_b02_nothing_happens_after_the_time_is_over(host, spec, witness):
    command = ("sh", "-c", "sleep 3; touch late")
    wanted = spec(*command, medium=Medium.DISK, retain_seconds=60)
    seen = await host.provision(wanted, uid="b02", deadline_seconds=1)
    assert (await host.wait(seen.uid)).outcome.reason == reasons.DEADLINE_EXCEEDED
    container = container_of(witness, "b02")
    assert not witness.inspect(container)["State"]["Running"]
    await gone(lambda: processes_with(container))  # its shim ends a little after it


async def test_b08_idle_and_busy_have_the_same_wall_time(host, spec):
    scripts = {"b08-idle": "sleep 600", "b08-busy": "while :; do :; done"}
    results = {}

    async def run(uid: str, script: str) -> None:
        wanted = spec("sh", "-c", script, resources={"cpu_millis": 200})
        await host.provision(wanted, uid=uid, deadline_seconds=3)
        assert (await host.wait(uid)).outcome.reason == reasons.DEADLINE_EXCEEDED
        (seen,) = [s for s in await host.list() if s.uid == uid]
        results[uid] = (seen.ended_at - seen.started_at).total_seconds()

    await asyncio.gather(*(run(uid, script) for uid, script in scripts.items()))
    assert all(3 <= seconds < 60 for seconds in results.values()), results


async def test_b13_a_command_ends_with_its_sessions_deadline(host, spec):
    seen = await host.provision(spec(), uid="b13", deadline_seconds=8)
    began = time.monotonic()
    request = ExecRequest(command=("sleep", "600"), timeout_seconds=600)
    with pytest.raises(errors.Refused) as caught:
        await host.exec(seen.uid, request)
    assert caught.value.reason == reasons.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 60
    assert (await host.wait(seen.uid)).outcome.reason == reasons.DEADLINE_EXCEEDED


# E: memory, disk, pids, CPU.


async def test_e03_too_many_files_are_an_error_inside_and_nothing_more(host, spec):
    seen = await host.provision(spec(medium=Medium.DISK), uid="e03")
    fill = "i=0; while [ $i -lt 300000 ] && true 2>/dev/null > f$i; do i=$((i+1)); done"
    told = await say(host, seen.uid, f"{fill}; touch more; echo made $i", timeout=120)
    assert "No space left on device" in told
    assert 100 < int(told.split()[-1]) < 300000
    assert await say(host, seen.uid, "echo alive") == "alive\n"


async def test_e05_a_fork_bomb_ends_by_its_time_and_disturbs_nobody(host, spec, witness):
    quiet = await host.provision(spec(), uid="e05-quiet")
    bomb = "f() { f | f & }; f; sleep 60"
    seen = await host.provision(spec("sh", "-c", bomb), uid="e05-bomb", deadline_seconds=5)
    container = container_of(witness, "e05-bomb")
    ended = asyncio.create_task(host.wait(seen.uid))
    while not ended.done():
        assert await say(host, quiet.uid, "echo fine") == "fine\n"
        await asyncio.sleep(0.5)
    assert ended.result().outcome.reason == reasons.DEADLINE_EXCEEDED
    await gone(lambda: processes_with(container))


def cgroup(pid: int, controller: str, *names: str) -> str:
    """A file of the cgroup that a process is in, under whichever version there is."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup", controllers if controllers else "")
        for name in names:
            file = root / path.lstrip("/") / name
            if file.exists():
                return file.read_text().strip()
    raise AssertionError(f"no {names} for pid {pid}")


async def test_e10_e11_the_kernel_holds_the_bounds_of_the_process_that_runs(host, spec, witness):
    seen = await host.provision(spec(resources={"cpu_millis": 500}), uid="e11")
    container = container_of(witness, "e11")
    pid = witness.inspect(container)["State"]["Pid"]
    assert "runsc" in Path(f"/proc/{pid}/cmdline").read_text()
    assert cgroup(pid, "memory", "memory.limit_in_bytes", "memory.max") == str(64 * MIB)
    swap = cgroup(pid, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max")
    assert swap in (str(64 * MIB), "0")

    def used() -> float:
        text = cgroup(pid, "cpuacct", "cpuacct.usage", "cpu.stat")
        return int(text) / 1e9 if text.isdecimal() else int(text.split()[1]) / 1e6

    loops = "for i in 1 2 3 4; do (while :; do :; done) & done; sleep 6"
    began, before = time.monotonic(), used()
    busy = asyncio.create_task(say(host, seen.uid, loops))
    await asyncio.sleep(5)
    share = (used() - before) / (time.monotonic() - began)
    assert 0.1 < share <= 0.55
    await host.terminate(seen.uid)
    await asyncio.gather(busy, return_exceptions=True)


async def test_e13_room_of_deleted_files_comes_back(host, spec):
    resources = {"memory_bytes": 128 * MIB, "workspace_bytes": 64 * MIB}
    seen = await host.provision(spec(resources=resources), uid="e13")
    script = (
        "for i in $(seq 12); do head -c 50331648 /dev/zero > f$i || exit 1; rm f$i; done; echo ok"
    )
    assert await say(host, seen.uid, script) == "ok\n"


async def test_e14_preallocation_in_tmp_is_bounded_too(host, spec):
    seen = await host.provision(spec(), uid="e14")
    told = await say(host, seen.uid, "fallocate -l 10G /tmp/big; echo code $?; rm -f /tmp/big")
    assert "code 1" in told
    assert await say(host, seen.uid, "echo alive") == "alive\n"


# I: the engine and the node.


async def test_i05_no_exit_code_is_lost(host, spec):
    async def run(number: int) -> None:
        command = ("true",) if number % 2 else ("sh", "-c", "exit 9")
        uid = f"i05-{number}"
        await host.provision(spec(*command), uid=uid)
        outcome = (await host.wait(uid)).outcome
        assert outcome.exit_code == (0 if number % 2 else 9), outcome

    for batch in range(8):
        await asyncio.gather(*(run(5 * batch + n) for n in range(5)))


async def test_i06_only_what_is_ours_is_a_stray_and_it_goes_only_when_asked(
    one, host, witness, shell
):
    def made(name: str, *labels: str) -> str:
        flags = [word for label in labels for word in ("--label", label)]
        witness.docker("create", "--network=none", "--name", name, *flags, shell, "true")
        return name

    other = f"dev.isolet.installation={one.installation}x"
    ours = f"dev.isolet.installation={one.installation}"
    foreign = [
        made(f"isolet-{'0' * 39}1"),
        made(f"isolet-{'0' * 39}2", other, f"{UID}=lost"),
        made(f"isolet-{'0' * 39}3", "dev.isolet.installation", f"{UID}=lost"),
    ]
    orphan = made(f"isolet-{'0' * 39}4", ours, f"{UID}=lost")
    names = "{{.Names}}"
    try:
        service = one.service
        async with asyncio.timeout(60):
            while not (found := (await service.node()).strays):
                await asyncio.sleep(0.2)
        assert [stray.name for stray in found] == [orphan]
        listed = witness.docker("ps", "-a", "--format", names).split()
        assert {orphan, *foreign} <= set(listed)
        assert list(await service.remove_strays([orphan, *foreign], None)) == []
        listed = witness.docker("ps", "-a", "--format", names).split()
        assert orphan not in listed
        assert set(foreign) <= set(listed)
    finally:
        for name in foreign:
            witness.docker("rm", "-f", name)
        witness.docker("rm", "-f", orphan, check=False)


async def test_i10_many_commands_and_many_ends_leave_no_process(host, spec, witness):
    uids = [f"i10-{number}" for number in range(8)]
    await asyncio.gather(*(host.provision(spec(), uid=uid) for uid in uids))
    containers = [container_of(witness, uid) for uid in uids]
    for _ in range(10):
        await asyncio.gather(*(say(host, uids[0], "true") for _ in range(4)))
    ended = await asyncio.gather(*(host.terminate(uid) for uid in (*uids, *uids)))
    assert all(seen.nothing_left for seen in ended)
    await gone(lambda: [line for c in containers for line in processes_with(c)])


@pytest.mark.parametrize(
    ("runtimes", "words"),
    [
        ({}, "knows no runtime 'runsc': add it to daemon.json"),
        ({"runsc": ("/bin/runsc", ())}, "lacks --network=none --host-uds=open: add it to its"),
        ({"runsc": ("/bin/runsc", ("--network=none",))}, "lacks --host-uds=open"),
    ],
)
async def test_i11_a_runtime_that_is_not_set_up_is_named_with_its_cure(one, runtimes, words):
    info = await one.service._context.engine.info()
    assert isinstance(info, EngineInfo)
    assert runtime_problem(info, "runsc") is None
    assert words in (runtime_problem(replace(info, runtimes=runtimes), "runsc") or "")


async def test_i11_without_the_runtime_nothing_else_is_used(one):
    context = one.service._context
    policy = context.policy.model_copy(update={"runtimes": ("not-there",)})
    found = await Qualifier(replace(context, policy=policy)).run()
    assert (found.is_serving, found.runtimes) == (False, ())
    (said,) = [c for c in found.conditions if c.type == "RuntimeQualified"]
    assert (said.status, "daemon.json" in said.message) == ("False", True)


@pytest.mark.parametrize("medium", list(Medium))
async def test_i14_a_user_that_is_not_root_can_work(host, spec, medium):
    seen = await host.provision(spec(medium=medium, user="10001:10001"))
    told = await say(
        host,
        seen.uid,
        "id -u; pwd; printf '#!/bin/sh\\necho ran\\n' > s && chmod +x s && ./s;"
        " mkdir -p a/b && echo x > a/b/c && cat a/b/c; echo y > /dev/shm/f && cat /dev/shm/f;"
        " echo z > /tmp/f && cat /tmp/f",
    )
    assert told == "10001\n/workspace\nran\nx\ny\nz\n"


# K: environment.


async def test_k05_empty_and_telling_names_are_the_users_own(host, spec, monkeypatch):
    for name in ("HOME", "DOCKER_HOST"):
        monkeypatch.setenv(name, "/of/the/agent")
    values = {"HOME": b"", "DOCKER_HOST": b"x", "PATH": b""}
    env = tuple(EnvVar(name=name, value=value) for name, value in values.items())
    seen = await host.provision(spec("/bin/cat", "/proc/self/environ", env=env))
    result = await host.wait(seen.uid)
    told = dict(item.split(b"=", 1) for item in result.stdout.split(b"\0") if item)
    assert {name: told[name.encode()] for name in values} == values


# Behind a proxy: an engine that hangs, drops answers, or falls silent.


@pytest.fixture
def timeouts() -> Timeouts:
    return Timeouts()


@pytest_asyncio.fixture(loop_scope="module")
async def behind(
    socket: str, tmp_path: Path, timeouts: Timeouts
) -> AsyncIterator[tuple[Node, Proxy]]:
    proxy = Proxy(tmp_path / "s", socket)
    await proxy.start()
    node = Node(str(tmp_path / "s"), tmp_path)
    node.timeouts = timeouts
    await node.open()
    yield node, proxy
    await clear(node)
    await leave(node)
    await proxy.stop()


async def cut(proxy: Proxy) -> None:
    """Break every connection there is."""
    tasks = list(proxy._tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# So patient that whoever waits for the answer that does not come is seen to.
@pytest.mark.parametrize("timeouts", [Timeouts(read=600.0)], ids=["patient"])
async def test_a03_i08_one_container_that_hangs_holds_up_no_other(behind, spec):
    node, proxy = behind
    host = ExecutionHost(node.service)
    await host.provision(spec(), uid="stuck")
    witness = Witness(proxy.upstream)
    container = container_of(witness, "stuck")
    name = witness.inspect(container)["Name"].removeprefix("/")
    rule = proxy.rule(f"GET /v[0-9.]+/containers/({container}|{name})/json", "hang", times=1 << 30)
    ending = asyncio.create_task(host.terminate("stuck"))
    async with asyncio.timeout(60):
        while not rule.struck:
            await asyncio.sleep(0.05)
    for number in range(3):
        await host.provision(spec("true"), uid=f"other-{number}")
        began = time.monotonic()
        assert (await host.wait(f"other-{number}")).outcome.exit_code == 0
        assert time.monotonic() - began < 60
    assert not ending.done(), "it hangs still"
    rule.times = 0
    await cut(proxy)
    assert (await ending).nothing_left


async def test_i02_a_create_whose_answer_is_lost_makes_one_container(behind, spec):
    node, proxy = behind
    host = ExecutionHost(node.service)
    rule = proxy.rule("POST /v[0-9.]+/containers/create", "drop")
    since = time.time()
    await host.provision(spec("echo", "once"), uid="i02")
    assert (await host.wait("i02")).stdout == b"once\n"
    assert rule.struck == 1
    assert proxy.count("POST /v[0-9.]+/containers/create") >= 1
    witness = Witness(proxy.upstream)
    assert len(witness.starts(since, time.time() + 1, node.installation)) == 1


async def test_i04_exits_in_a_gap_of_the_event_stream_are_recorded(behind, spec):
    node, proxy = behind
    host = ExecutionHost(node.service)
    uids = [f"i04-{number}" for number in range(3)]
    await asyncio.gather(
        *(host.provision(spec("sh", "-c", f"sleep 1; exit {n + 4}"), uid=uid)
          for n, uid in enumerate(uids))
    )  # fmt: skip
    nothing = proxy.rule("", "hang", times=1 << 30)
    await cut(proxy)
    await asyncio.sleep(3)
    nothing.times = 0
    await cut(proxy)
    began = time.monotonic()
    ends = await asyncio.gather(*(host.wait(uid) for uid in uids))
    assert [end.outcome.exit_code for end in ends] == [4, 5, 6]
    assert time.monotonic() - began < 120
