"""The execution host on a real engine: what a caller of the library sees."""

import asyncio

import pytest

from isolet.agent.host import ExecutionHost
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.checkpoint import CheckpointSpec, CheckpointWanted
from isolet.wire.execution import (
    EnvVar,
    ExecRequest,
    ExecutionObserved,
    ExecutionWanted,
    Medium,
)
from isolet.wire.process import ProcessSpec, ProcessWanted


async def test_a_command_runs_once_and_its_output_and_code_are_kept(host: ExecutionHost, spec):
    seen = await host.provision(spec("sh", "-c", "echo out; echo err >&2; exit 3"))
    result = await host.wait(seen.uid)
    assert result.outcome.reason == reasons.NON_ZERO_EXIT
    assert result.outcome.exit_code == 3
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.truncated, result.incomplete) == (False, False)


async def test_a_request_that_is_repeated_before_it_is_answered_is_one_request(node, spec):
    """Its caller lost patience or leadership; told of a conflict it would give the work up."""
    session, service = await ExecutionHost(node.service).provision(spec()), node.service
    checkpoint = CheckpointSpec(execution_uid=session.uid)
    process = ProcessSpec(execution_uid=session.uid, command=("true",))
    asked = {
        "e": (service.put, ExecutionWanted, {"spec": spec("true"), "active_deadline_seconds": 60}),
        "p": (service.put_process, ProcessWanted, {"spec": process}),
        "c": (service.put_checkpoint, CheckpointWanted, {"spec": checkpoint}),
    }
    for uid, (put, kind, rest) in asked.items():
        wanted = kind(uid=uid, name=uid, **rest)
        answers = await asyncio.gather(put(wanted, None), put(wanted, None))
        assert [answer.uid for answer in answers] == [uid, uid]
        assert (await node.store.get(uid)).created_at


async def test_of_two_requests_under_one_uid_at_a_time_one_is_refused(node, spec):
    one, other = (
        ExecutionWanted(uid="u1", name="u1", active_deadline_seconds=60, spec=spec(*command))
        for command in (("echo", "one"), ("echo", "other"))
    )
    put = node.service.put
    answers = await asyncio.gather(put(one, None), put(other, None), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ExecutionObserved, errors.Conflict]


@pytest.mark.parametrize("medium", list(Medium))
async def test_a_session_takes_commands_and_leaves_nothing(host: ExecutionHost, spec, medium):
    seen = await host.provision(spec(medium=medium))
    request = ExecRequest(
        command=("sh", "-c", 'cat > f; wc -c < f; echo "$GREETING"; id -u'),
        env=(EnvVar(name="GREETING", value=b"a\nb"),),
        stdin=b"x" * 70000,
    )
    result = await host.exec(seen.uid, request)
    assert (result.exit_code, result.stdout) == (0, b"70000\na\nb\n65532\n")
    ended = await host.terminate(seen.uid)
    assert ended.nothing_left
    assert ended.outcome.succeeded
    assert ended.outcome.reason == reasons.TERMINATED
    assert await host.terminate(seen.uid) == ended
