"""Processes in a running session: several at once, ends that take the session, files."""

import asyncio
import re
import time

import pytest

from isolet.agent.operations import State
from isolet.agent.runner import ProcessRunner
from isolet.agent.service.admission import MAX_INSIDE
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import ExecRequest, ExecutionSpec, Medium
from isolet.wire.process import OnOverflow, OutputPolicy, StagedFile
from tests.integration.processes.conftest import LIMITS


async def start(runner, request_of, session, operation, *command, **changes):
    return await runner.start(
        request_of(*command, execution_uid=session, operation_id=operation, **changes)
    )


async def ends(runner, operation):
    async with asyncio.timeout(60):
        return await runner.wait("acme", operation)


async def test_several_at_once_do_not_meet(runner, request_of, session):
    for number in range(4):
        script = f"cat f-{number}; sleep 1; echo err-{number} >&2; exit {number}"
        staged = StagedFile(path=f"f-{number}", content=b"%d\n" % number)
        await start(
            runner, request_of, session, f"op-{number}", "sh", "-c", script, files=(staged,)
        )
    for number in range(4):
        ended = await ends(runner, f"op-{number}")
        assert (ended.state, ended.exit_code) == (State.EXITED, number)
        found = await runner.read_output("acme", f"op-{number}")
        assert (found.stdout, found.stderr) == (b"%d\n" % number, b"err-%d\n" % number)


async def test_the_session_and_its_room_stay(runner, request_of, session, host, node):
    await start(runner, request_of, session, "one", "sh", "-c", "head -c 100000 /dev/zero")
    assert (await ends(runner, "one")).exit_code == 0
    look = ExecRequest(command=("sh", "-c", "ls -A /tmp /.isolet"))
    async with asyncio.timeout(60):  # The room is given back once the outcome is known.
        while re.search(rb"isolet-|p-", (await host.exec(session, look)).stdout):
            await asyncio.sleep(0.1)


ENDS = {
    "a cancel": ({}, reasons.CANCELLED),
    "a timeout": ({"timeout_seconds": 6}, reasons.DEADLINE_EXCEEDED),
    "an overflow": (
        {"output": OutputPolicy(on_overflow=OnOverflow.FAIL, limit_bytes=1000)},
        reasons.OUTPUT_LIMIT_EXCEEDED,
    ),
}


@pytest.mark.parametrize("name", ENDS)
async def test_what_ends_one_early_ends_the_session(runner, request_of, session, host, name):
    changes, reason = ENDS[name]
    script = "trap '' TERM; echo on; (setsid sleep 600 &) ; head -c 1500 /dev/zero; sleep 600"
    await start(runner, request_of, session, "sibling", "sleep", "600")
    await start(runner, request_of, session, "one", "sh", "-c", script, **changes)
    async with asyncio.timeout(60):
        while not (await runner.read_output("acme", "one")).stdout:
            await asyncio.sleep(0.05)
    began = time.monotonic()
    if name == "a cancel":
        await runner.cancel("acme", "one")
    ended = await ends(runner, "one")
    assert (ended.state in (State.CANCELLED, State.FAILED), ended.reason) == (True, reason)
    assert time.monotonic() - began < 60
    sibling = await ends(runner, "sibling")
    assert sibling.reason in (reasons.SANDBOX_DESTROYED, reasons.EXECUTION_ENDED)
    assert "Process one" in sibling.message
    of_session = await host.wait(session)
    assert of_session.outcome.reason == reason
    assert (await runner.read_output("acme", "one")).stdout.startswith(b"on\n")


async def test_one_is_disposed_of_and_keeps_what_it_said(runner, request_of, session, node):
    script = "echo said; until [ -e go ]; do sleep 0.1; done"
    await start(runner, request_of, session, "one", "sh", "-c", script)
    with pytest.raises(errors.Conflict) as caught:
        await runner.dispose("acme", "one")
    assert caught.value.reason == reasons.STILL_RUNNING
    await node.service.put_file(session, "go", b"", 0o644)
    assert (await ends(runner, "one")).state is State.EXITED
    assert (await runner.dispose("acme", "one")).state is State.DISPOSED
    assert (await runner.poll("acme", "one")).state is State.DISPOSED
    assert (await runner.read_output("acme", "one")).stdout == b"said\n"
    assert (await runner.poll("acme", "one")).exit_code == 0


TREE = (
    "mkdir -p a/b a/c/d; echo 1 > a/b/x.txt; echo 2 > a/c/y.txt; echo 3 > a/c/d/z.txt;"
    " ln -s /etc/passwd a/b/link.txt; ln -s a/c more; mkdir -p other; echo 4 > other/y.txt"
)


@pytest.mark.parametrize(
    "globs", [("a/*/*.txt",), ("**/y.txt", "a/?/*.txt"), ("a/**",), ("*", "*/*")]
)
async def test_globs_find_the_same_in_a_session_and_after_the_end(
    runner, request_of, host, shell, globs
):
    spec = ExecutionSpec(image=shell, resources=LIMITS)
    session = (await host.provision(spec, uid="session", deadline_seconds=120)).uid
    await start(runner, request_of, session, "in", "sh", "-c", TREE, artifacts=globs)
    own = request_of("sh", "-c", TREE, artifacts=globs, operation_id="own", medium=Medium.DISK)
    await runner.start(own)
    found, seen = {}, {}
    for operation in ("in", "own"):
        ended = await ends(runner, operation)
        found[operation] = [(a.path, a.size, a.digest) for a in ended.artifacts]
    for observed in (await runner._agent.snapshot()).processes:
        seen[observed.name] = sorted((p.path, p.reason) for p in observed.artifact_problems)
    assert found["in"] == found["own"]
    assert found["in"]
    assert seen["in"] == seen["own"]
    assert all(reason == reasons.ARTIFACT_REJECTED for _, reason in seen["in"])


async def test_a_glob_looks_into_so_many_folders(runner, request_of, session):
    script = "i=0; while [ $i -lt 120 ]; do mkdir -p d/$i; i=$((i+1)); done; echo 1 > d/x"
    await start(runner, request_of, session, "one", "sh", "-c", script, artifacts=("**/x", "d/x"))
    assert [a.path for a in (await ends(runner, "one")).artifacts] == ["d/x"]
    (seen,) = (await runner._agent.snapshot()).processes
    assert [(p.path, p.reason) for p in seen.artifact_problems] == [
        ("**/x", reasons.ARTIFACT_TOO_LARGE)
    ]


async def test_the_end_of_the_session_ends_them(runner, request_of, session, host):
    await start(runner, request_of, session, "one", "sleep", "90")
    await host.terminate(session)
    assert (await ends(runner, "one")).reason == reasons.EXECUTION_ENDED
    with pytest.raises(errors.Conflict):
        await start(runner, request_of, session, "two", "true")


async def test_there_is_a_limit(runner, request_of, session):
    for number in range(MAX_INSIDE):
        await start(runner, request_of, session, f"op-{number}", "sleep", "600")
    with pytest.raises(errors.Unavailable) as caught:
        await start(runner, request_of, session, "more", "true")
    assert caught.value.reason == "TooManyProcesses"


async def test_a_session_with_a_process_in_it_is_not_idle(runner, request_of, host, shell):
    spec = ExecutionSpec(image=shell, resources=LIMITS, idle_timeout_seconds=2)
    uid = (await host.provision(spec, uid="idle", deadline_seconds=120)).uid
    await start(runner, request_of, uid, "one", "sh", "-c", "sleep 5; echo done")
    assert (await ends(runner, "one")).exit_code == 0
    assert (await host.wait(uid)).outcome.reason == reasons.IDLE_TIMEOUT


async def test_one_that_cannot_start_leaves_the_session(runner, request_of, session, host):
    await start(runner, request_of, session, "one", "/no/such")
    ended = await ends(runner, "one")
    assert (ended.state, ended.reason) == (State.FAILED, reasons.START_FAILED)
    assert (await host.exec(session, ExecRequest(command=("true",)))).exit_code == 0


async def test_the_result_is_found_by_the_next_agent(node, request_of, session):
    runner = ProcessRunner(node.service)
    await start(runner, request_of, session, "one", "sh", "-c", "echo a; sleep 2; echo b; exit 4")
    await node.close()
    await asyncio.sleep(3)
    runner = ProcessRunner(await node.open())
    ended = await ends(runner, "one")
    assert (ended.state, ended.exit_code) == (State.EXITED, 4)
    assert (await runner.read_output("acme", "one")).stdout == b"a\nb\n"


# Files of live sessions.


async def test_files_go_in_and_out(node, session):
    service = node.service
    content = bytes(range(256)) * 500
    await service.put_file(session, "a/b c/d", content, 0o640)
    assert await service.get_file(session, "a/b c/d") == content
    await service.put_file(session, "a/b c/d", b"", 0o600)
    assert await service.get_file(session, "a/b c/d") == b""
    (entry,) = await service.list_files(session, "a/b c")
    assert (entry.path, entry.kind, entry.size, entry.mode) == ("a/b c/d", "file", 0, 0o600)
    assert [e.kind for e in await service.list_files(session, "")] == ["folder"]


BAD_PATHS = ["", "/etc/passwd", "../x", "a/../b", "./a", "a//b", "a/", "a\0b"]


async def test_a_path_that_is_not_plain_is_invalid(node, session):
    for path in BAD_PATHS:
        with pytest.raises(errors.Invalid):
            await node.service.get_file(session, path)
        with pytest.raises(errors.Invalid):
            await node.service.put_file(session, path, b"x", 0o644)


async def test_links_are_refused_and_nothing_outside_is_touched(node, host, session):
    script = "mkdir real; echo 1 > real/f; ln -s real l; ln -s real/f lf; ln -s /tmp out; mkfifo p"
    await host.exec(session, ExecRequest(command=("sh", "-c", script)))
    service = node.service
    for path in ("l/f", "lf", "out/x", "real", "p"):
        with pytest.raises(errors.Refused) as caught:
            await service.get_file(session, path)
        assert caught.value.reason == reasons.ARTIFACT_REJECTED, path
        with pytest.raises(errors.Refused):
            await service.put_file(session, path, b"x", 0o644)
    with pytest.raises(errors.NotFound):
        await service.get_file(session, "none/deep")
    with pytest.raises(errors.Refused):
        await service.list_files(session, "l")
    looked = await host.exec(session, ExecRequest(command=("sh", "-c", "ls -A /tmp; cat real/f")))
    assert looked.stdout == b"1\n"


async def test_sizes_are_bounded(node, host, session):
    await host.exec(session, ExecRequest(command=("sh", "-c", "head -c 1048577 /dev/zero > big")))
    with pytest.raises(errors.Refused) as caught:
        await node.service.get_file(session, "big")
    assert caught.value.reason == reasons.ARTIFACT_TOO_LARGE
    with pytest.raises(errors.Refused) as caught:
        await node.service.put_file(session, "more", b"x" * (16 << 20), 0o644)
    assert caught.value.reason == reasons.WORKSPACE_FULL
