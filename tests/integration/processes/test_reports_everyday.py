"""What people reported of systems like this one, for Processes: bounds, and everyday requests.

docs/reports.md has all. A test is named after its report; most are tables over both places, a
sandbox of its own and a session, and one agent serves them all.
"""

import asyncio
import time

import pytest

from isolet.agent.operations import State
from isolet.agent.workspace.artifacts import MAX_FILES
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import EnvVar, Medium
from isolet.wire.process import Code, StagedFile
from tests.integration.agent.conftest import environment
from tests.integration.agent.test_reports import cgroup, gone, processes_with
from tests.integration.processes.bench import INSIDE, MIB, OWN, PLACES, ROOM

pytestmark = pytest.mark.asyncio(loop_scope="module")

both = pytest.mark.parametrize("where", PLACES)
TIMED_OUT = (State.CANCELLED, reasons.DEADLINE_EXCEEDED)


# E: memory, disk, pids, CPU.


@both
@pytest.mark.parametrize("medium", list(Medium))
async def test_e01_e14_a_full_workspace_is_an_error_inside_and_no_kill(bench, where, medium):
    script = (
        "head -c 200m /dev/zero > big; echo code $?; wc -c < big; rm big;"
        " for f in more /tmp/more; do fallocate -l 10G $f; echo code $?; rm -f $f; done; echo alive"
    )
    ended = await bench.sh(where, script, bounds={"medium": medium})
    first, size, *rest = ended.stdout.decode().splitlines()
    assert (first, rest) == ("code 1", ["code 1", "code 1", "alive"])
    assert 8 * MIB < int(size) <= 16 * MIB
    assert b"No space left on device" in ended.stderr
    assert ended.how == (State.EXITED, reasons.SUCCEEDED, 0)


async def test_e03_too_many_files_are_an_error_and_few_are_kept_as_artifacts(bench):
    script = "i=0; while true 2>/dev/null > f$i; do i=$((i+1)); done; touch more; echo made $i"
    operation = await bench.start(
        OWN, "sh", "-c", script, artifacts=("**",), bounds={"medium": Medium.DISK}
    )
    found = await bench.runner.wait("acme", operation)
    (seen,) = [p for p in (await bench.node.service.snapshot()).processes if p.name == operation]
    ended = await bench.end(operation)
    assert b"No space left on device" in ended.stderr
    assert 100 < int(ended.stdout.split()[-1]) < 10_000
    assert len(found.artifacts) == MAX_FILES
    assert {p.reason for p in seen.artifact_problems} == {reasons.ARTIFACT_TOO_LARGE}
    assert 0 < len(seen.artifact_problems) <= 64


@both
async def test_e05_a_fork_bomb_ends_by_its_time_and_disturbs_nobody(bench, witness, where):
    bomb = "f() { f | f & }; f; sleep 60"
    place = await bench.place(where, pids=64)
    operation = await bench.start(where, "sh", "-c", bomb, timeout_seconds=5, **place)
    container = await bench.container(operation, witness)
    ended = asyncio.create_task(bench.end(operation))
    while not ended.done():
        assert (await bench.sh(INSIDE, "echo fine")).told == (0, b"fine\n", b"")
        await asyncio.sleep(0.5)
    assert (ended.result().state, ended.result().reason) == TIMED_OUT
    await gone(lambda: processes_with(container))


async def test_e10_e11_the_kernel_holds_the_bounds_of_a_process(bench, witness):
    operation = await bench.start(OWN, "sleep", "60")
    seen = witness.inspect(await bench.container(operation, witness))
    pid = seen["State"]["Pid"]
    assert cgroup(pid, "memory", "memory.limit_in_bytes", "memory.max") == str(ROOM.memory_bytes)
    swap = cgroup(pid, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max")
    assert swap in (str(ROOM.memory_bytes), "0")
    assert seen["HostConfig"]["NanoCpus"] == ROOM.cpu_millis * 10**6
    await bench.runner.cancel("acme", operation)
    await bench.end(operation)


@both
async def test_e13_room_of_deleted_files_comes_back_to_a_process(bench, where):
    script = "for i in $(seq 12); do head -c 12m /dev/zero > f$i || exit 1; rm f$i; done; echo ok"
    bounds = {"memory_bytes": 96 * MIB}
    assert (await bench.sh(where, script, bounds=bounds)).told == (0, b"ok\n", b"")


# M: everyday requests.


async def test_m01_no_file_of_one_run_is_in_the_next(bench):
    places = "/workspace /tmp /dev/shm"
    first = await bench.sh(OWN, f"for d in {places}; do echo 1 > $d/left || exit 1; done; echo ok")
    assert first.told == (0, b"ok\n", b"")
    assert (await bench.sh(OWN, f"find {places} -type f")).told == (0, b"", b"")


async def test_m02_endless_readers_end_by_their_time_and_the_next_is_served(bench):
    endless = ("cat /dev/zero >/dev/null", "cat /dev/random | head -c 1000000000000 >/dev/null")
    small = {"cpu_millis": 100}
    ends = await asyncio.gather(
        *(bench.sh(OWN, script, timeout_seconds=3, bounds=small) for script in endless * 3)
    )
    assert [(ended.state, ended.reason) for ended in ends] == [TIMED_OUT] * 6
    assert (await bench.sh(OWN, "echo served")).told == (0, b"served\n", b"")


@both
async def test_m03_long_arguments_arrive_or_are_refused_with_the_bound(bench, where):
    print_length = "echo ${#1}"
    most = 131_071
    for size in (130_000, most):
        ended = await bench.run(where, "sh", "-c", print_length, "sh", "x" * size)
        assert ended.told == (0, b"%d\n" % size, b"")
    for size in (most + 1, 140_000, 300_000):
        with pytest.raises(errors.Refused) as caught:
            await bench.start(where, "sh", "-c", print_length, "sh", "x" * size)
        told = f"command.4: has {size} bytes; an argument may have {most}"
        assert (caught.value.reason, caught.value.message) == ("NodePolicy", told)
    many = await bench.run(where, "sh", "-c", "echo $#", "sh", *["word"] * 20_000)
    assert many.told == (0, b"20000\n", b"")
    with pytest.raises(errors.IsoletError, match="arguments and environment"):
        await bench.start(where, "true", *["word"] * 200_000)
    with pytest.raises(errors.Invalid, match=r"shell.*131071"):
        await bench.start(where, shell="x" * 140_000)


@both
async def test_m04_arguments_arrive_literally(bench, where):
    words = ("$(id)", "a b", "*", ";", "--help", "", "'", '"', "\\n", "ü\n", "-n")
    ended = await bench.run(where, "printf", "%s|", *words)
    assert ended.told == (0, "".join(f"{word}|" for word in words).encode(), b"")


@both
async def test_m05_a_working_folder_outside_runs_nothing(bench, where):
    for cwd in ("../etc", "/etc", "data/../..", "a/./b", "a\0b"):
        with pytest.raises(errors.Invalid, match="cwd"):
            await bench.start(where, "touch", "/workspace/ran", cwd=cwd)
    files = (StagedFile(path="file", content=b""),)
    for cwd in ("missing", "file"):
        ended = await bench.run(where, "touch", "/workspace/ran", cwd=cwd, files=files)
        assert ended.how == (State.FAILED, reasons.START_FAILED, None)
        assert "working folder" in ended.message
    if where == INSIDE:
        assert (await bench.sh(where, "rm -f out; ln -s /etc out")).exit_code == 0
        ended = await bench.run(where, "touch", "/workspace/ran", cwd="out")
        assert ended.how == (State.FAILED, reasons.START_FAILED, None)
        assert (await bench.sh(where, "test ! -e /workspace/ran")).exit_code == 0
    assert (await bench.run(where, "pwd", cwd="")).told == (0, b"/workspace\n", b"")


@both
async def test_m06_one_id_is_one_request_and_one_run(bench, witness, where):
    since = time.time()
    count = "echo ran >> /workspace/ran; cat /workspace/ran"
    first = await bench.request(where, "sh", "-c", f"rm -f ran; {count}")
    await bench.runner.start(first)
    ended = await bench.runner.wait("acme", first.operation_id)
    output = await bench.runner.read_output("acme", first.operation_id)
    assert (ended.exit_code, output.stdout) == (0, b"ran\n")
    assert await bench.runner.start(first) == ended  # after the exit: the same result
    place = {"sandbox": first.sandbox} if where == OWN else {"execution_uid": first.execution_uid}
    changes = ({"shell": "true"}, {"command": first.command, "env": (_variable("1"),)})
    for change in changes:
        request = await bench.request(where, **place, **change, operation_id=first.operation_id)
        with pytest.raises(errors.Conflict):
            await bench.runner.start(request)
    await bench.end(first.operation_id)
    disposed = await bench.runner.start(first)  # after disposal: still not another run
    assert (disposed.terminal, disposed.exit_code) == (True, 0)
    assert await bench.runner.read_output("acme", first.operation_id) == output
    if where == OWN:
        assert len(witness.starts(since, time.time() + 1, bench.node.installation)) == 1
    else:
        assert (await bench.sh(where, "cat /workspace/ran")).stdout == b"ran\n"


def _variable(value: str) -> EnvVar:
    return EnvVar(name="A", value=value.encode())


async def test_m07_an_entrypoint_neither_wraps_nor_swallows(bench):
    bounds = {"image": environment("ISOLET_IMAGE_ENTRYPOINT")}
    assert (await bench.run(OWN, "echo", "ok", bounds=bounds)).told == (0, b"ok\n", b"")


UNSUITABLE = {
    "ISOLET_IMAGE_NO_SH": "no sh",
    "ISOLET_IMAGE_NO_TAR": "no tar",
    "ISOLET_IMAGE_SECRET_ENV": "API_TOKEN",
}


@pytest.mark.parametrize("image", UNSUITABLE)
async def test_m08_an_image_that_lacks_a_tool_is_refused_by_its_name(bench, witness, image):
    since = time.time()
    ended = await bench.run(OWN, "true", bounds={"image": environment(image)})
    assert ended.how == (State.FAILED, reasons.IMAGE_UNSUITABLE, None)
    assert UNSUITABLE[image] in ended.message
    with pytest.raises(errors.Unavailable, match=UNSUITABLE[image]):
        await bench.runner.run_shell("true", bench.sandbox(image=environment(image)))
    assert witness.starts(since, time.time() + 1, bench.node.installation) == []


LANGUAGES = {
    "python": ("import sys; print(6 * 7, 'ü', sys.stdin.read()); sys.exit(3)", "42 ü in\n", 3),
    "python3": ("print(open('f').read(), end='')", "staged\n", 0),
    "sh": ("echo $((6 * 7)); cat; cat f; exit 4", "42\ninstaged\n", 4),
    "shell": ("cat f | tr a-z A-Z", "STAGED\n", 0),
}


@both
@pytest.mark.parametrize("language", LANGUAGES)
async def test_source_runs_in_its_interpreter(bench, where, language, python):
    source, stdout, code = LANGUAGES[language]
    place = await bench.place(where, image=python)
    files = (StagedFile(path="f", content=b"staged\n"),)
    ended = await bench.run(
        where, code=Code(language=language, source=source), stdin=b"in", files=files, **place
    )
    assert ended.told == (code, stdout.encode(), b"")


@both
@pytest.mark.parametrize(("language", "program"), [("bash", "bash"), ("js", "node")])
async def test_an_interpreter_that_the_image_has_not_is_named(bench, where, language, program):
    ended = await bench.run(where, code=Code(language=language, source="1"))
    assert ended.how == (State.FAILED, reasons.START_FAILED, None)
    assert f"'{program}' was not found" in ended.message
