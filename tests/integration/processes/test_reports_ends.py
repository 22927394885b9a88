"""What people reported of systems like this one, for Processes: how they end, and when.

docs/reports.md has all. A test is named after its report; most are tables over both places, a
sandbox of its own and a session, and one agent serves them all.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from isolet.agent.operations import State
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import Medium
from isolet.wire.process import StagedFile
from tests.integration.agent.test_reports import gone, processes_with
from tests.integration.processes.bench import INSIDE, OWN, PLACES
from tests.integration.processes.conftest import in_seconds

pytestmark = pytest.mark.asyncio(loop_scope="module")

both = pytest.mark.parametrize("where", PLACES)


# A: exit codes, signals, out-of-memory.


@both
async def test_a02_a_recorded_end_stays_whatever_is_seen_later(bench, witness, where):
    operation = await bench.start(where, "sh", "-c", "kill -9 $$")
    first = await bench.runner.wait("acme", operation)
    assert (first.state, first.exit_code) == (State.EXITED, 137)
    if where == OWN:
        witness.docker("rm", "-f", await bench.container(operation, witness))
    else:
        await bench.host.terminate(bench.session_uid)
    assert operation not in [s.operation_id for s in (await bench.runner.reconcile()).lost]
    later = await bench.runner.poll("acme", operation)
    assert (later.state, later.exit_code, later.reason) == (State.EXITED, 137, first.reason)


async def test_a05_a_forced_stop_of_a_process_is_no_memory_trouble(bench):
    operation = await bench.start(OWN, "sh", "-c", "trap '' TERM; echo on; sleep 600")
    await bench.prints(operation, b"on\n")
    await bench.runner.cancel("acme", operation)
    ended = await bench.end(operation)
    assert ended.how == (State.CANCELLED, reasons.CANCELLED, 137)


HOG = "tail -c 400m /dev/zero | tail -n 1 >/dev/null & wait; echo after; exit 0"


async def test_a06_a_hog_below_a_process_takes_its_sandbox_along_and_it_is_said(bench):
    ended = await bench.sh(OWN, HOG)
    assert ended.how == (State.EXITED, reasons.OOM_KILLED, 137)
    assert ended.stdout == b""
    inside = await bench.sh(INSIDE, HOG)
    assert (inside.state, inside.reason) == (State.FAILED, reasons.SANDBOX_DESTROYED)
    assert reasons.OOM_KILLED in inside.message


CANNOT_START = {
    "a missing path": (("/no/such/bin",), "'/no/such/bin' was not found"),
    "a name that the image has not": (("bash",), "'bash' was not found"),
    "a folder": (("/etc",), "'/etc' is not an executable file: permission denied"),
    "a file without the bit": (("./s",), "'./s' is not an executable file: permission denied"),
}


@both
@pytest.mark.parametrize("what", CANNOT_START)
async def test_a08_a09_what_cannot_start_is_said_in_seconds_and_told_apart(
    bench, witness, where, what
):
    command, words = CANNOT_START[what]
    since = time.time()
    script = StagedFile(path="s", content=b"#!/bin/sh\n", mode=0o644)
    operation = await bench.start(where, *command, files=(script,))
    ended = await bench.end(operation)
    assert ended.how == (State.FAILED, reasons.START_FAILED, None)
    assert words in ended.message
    assert time.time() - since < 60
    assert ended.told == (None, b"", b"")
    assert witness.containers(bench.node.installation, status="created") == []
    if where == OWN:
        assert len(witness.starts(since, time.time() + 1, bench.node.installation)) == 1


OWN_CODES = {
    "its own 125": ("exit 125", 125),
    "its own 126": ("exit 126", 126),
    "its own 127": ("exit 127", 127),
    "a crash": ("kill -SEGV $$", 139),
    "a pipeline whose last succeeds": ("false | true", 0),
    "a pipeline whose last fails": ("true | exit 3", 3),
}


@both
async def test_a10_a15_a_programs_own_code_is_the_code(bench, where):
    for what, (script, code) in OWN_CODES.items():
        ended = await bench.sh(where, script)
        reason = reasons.NON_ZERO_EXIT if code else reasons.SUCCEEDED
        assert ended.how == (State.EXITED, reason, code), what


@both
async def test_a11_children_of_a_shell_go_with_their_process(bench, witness, where):
    operation = await bench.start(where, "sh", "-c", "echo on; sleep 1000 & sleep 1000")
    await bench.prints(operation, b"on\n")
    running = await bench.container(operation, witness)
    assert processes_with(running)
    began = time.monotonic()
    await bench.runner.cancel("acme", operation)
    ended = await bench.end(operation)
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.CANCELLED)
    assert time.monotonic() - began < 60
    await gone(lambda: processes_with(running))


async def test_a12_a_cancel_at_the_moment_of_the_exit_is_no_error(bench):
    async def one_of(number: int) -> tuple[State, int | None]:
        operation = await bench.start(OWN, "sleep", "1")
        await asyncio.sleep(1 - 0.05 + 0.1 * number / 11)
        await bench.runner.cancel("acme", operation)
        ended = await bench.end(operation)
        return ended.state, ended.exit_code

    for batch in range(3):
        for state, code in await asyncio.gather(*(one_of(4 * batch + n) for n in range(4))):
            assert code in {State.EXITED: (0,), State.CANCELLED: (0, 137, 143)}[state]


async def test_a14_orphans_of_many_processes_do_not_use_up_the_pids(bench):
    place = await bench.place(INSIDE, pids=16)
    for _ in range(20):
        ended = await bench.sh(INSIDE, "(sleep 0.1 &) ; echo ok", **place)
        assert ended.told == (0, b"ok\n", b"")
    count = "cat /proc/[0-9]*/stat | grep -c ' Z ' || true"
    # The last ones end only now, and whoever reaps them may have to wait for its turn.
    async with asyncio.timeout(60):
        while int((await bench.sh(INSIDE, count, **place)).stdout) > 1:
            await asyncio.sleep(0.3)


async def test_a16_an_odd_stop_signal_of_the_image_delays_no_cancel(bench, witness, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM isolet/shell:dev\nSTOPSIGNAL SIGRTMIN+3\n")
    image = witness.docker("build", "-q", str(tmp_path))
    try:
        operation = await bench.start(OWN, "sleep", "600", bounds={"image": image})
        began = time.monotonic()
        await bench.runner.cancel("acme", operation)
        ended = await bench.end(operation)
        assert (ended.state, ended.reason) == (State.CANCELLED, reasons.CANCELLED)
        assert time.monotonic() - began < 60
    finally:
        witness.docker("rmi", "-f", image)


# B: timeouts, deadlines, clocks.


async def test_b02_nothing_of_a_process_happens_after_its_time(bench, witness):
    disk = {"medium": Medium.DISK}
    late = ("sh", "-c", "sleep 4; touch late")
    operation = await bench.start(OWN, *late, timeout_seconds=1, bounds=disk)
    ended = await bench.runner.wait("acme", operation)
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    assert not witness.inspect(await bench.container(operation, witness))["State"]["Running"]
    with pytest.raises(errors.NotFound):
        await bench.runner.read_artifact("acme", operation, "late")
    await bench.runner.dispose("acme", operation)


@both
async def test_b03_b04_b07_what_was_printed_before_the_timeout_is_there_and_marked(bench, where):
    ended = await bench.sh(where, "echo one; sleep 600", timeout_seconds=6)
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    assert ended.message == "ran longer than 6 s"
    assert ended.exit_code != 0
    assert ended.stdout == b"one\n"
    found, _ = await bench.runner.list(states=[State.RUNNING, State.CANCEL_REQUESTED])
    assert found == ()


async def test_b03_b04_a_run_that_was_too_slow_has_no_code_and_its_output(bench):
    result = await bench.runner.run_shell("echo one; sleep 600", bench.sandbox(), timeout_seconds=6)
    assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"one\n")


async def test_b08_an_idle_and_a_busy_process_have_the_same_wall_time(bench):
    scripts = ("sleep 600", "while :; do :; done")
    slow = {"cpu_millis": 100}
    ends = await asyncio.gather(
        *(bench.sh(OWN, script, timeout_seconds=3, bounds=slow) for script in scripts)
    )
    assert [ended.reason for ended in ends] == [reasons.DEADLINE_EXCEEDED] * 2
    assert all(3 <= ended.seconds < 60 for ended in ends)


WRONG_TIMES = {
    "without a zone": datetime(2035, 1, 1),  # noqa: DTZ001
    "milliseconds": 1893456000000,
    "seconds in a text": "1893456000",
    "a day": "2035-01-01",
}
FAR_TIMES = (
    datetime(2035, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    datetime(9999, 12, 31, tzinfo=UTC),
    "2035-01-01T00:00:00Z",
)


@both
async def test_b11_forms_of_a_deadline(bench, where):
    for wrong in WRONG_TIMES.values():
        request = await bench.request(where, "true", deadline_at=wrong)
        with pytest.raises(errors.Invalid, match=r"deadline_?at.*zone"):
            await bench.runner.start(request)
    past = await bench.run(where, "touch", "ran", deadline_at=in_seconds(-1))
    assert past.how == (State.CANCELLED, reasons.DEADLINE_EXCEEDED, None)
    assert past.seconds is None
    for far in FAR_TIMES:
        operation = await bench.start(where, "sleep", "30", deadline_at=far, timeout_seconds=20)
        found = await bench.runner.poll("acme", operation)
        assert found.deadline_at - found.started_at == timedelta(seconds=20)
        await bench.runner.cancel("acme", operation)
        await bench.end(operation)


async def test_b13_b14_the_sessions_time_ends_what_runs_and_leaves_what_has_ended(bench):
    uid = await bench.session(deadline_seconds=15)
    place = {"execution_uid": uid}
    began = time.monotonic()
    finished = await bench.start(INSIDE, "true", **place)
    await bench.runner.wait("acme", finished)
    running = await bench.start(INSIDE, "sleep", "600", timeout_seconds=600, **place)
    ended = await bench.end(running)
    assert time.monotonic() - began < 120
    assert (ended.state, ended.reason) == (State.FAILED, reasons.SANDBOX_DESTROYED)
    assert reasons.DEADLINE_EXCEEDED in ended.message
    with pytest.raises(errors.Conflict):
        await bench.start(INSIDE, "true", **place)
    assert (await bench.end(finished)).how == (State.EXITED, reasons.SUCCEEDED, 0)


async def test_b15_a_missing_image_is_named_in_seconds(bench):
    image = "sha256:" + "0" * 64
    began = time.monotonic()
    ended = await bench.run(OWN, "true", timeout_seconds=600, bounds={"image": image})
    assert ended.how == (State.FAILED, reasons.IMAGE_MISSING, None)
    assert image in ended.message
    assert time.monotonic() - began < 60
