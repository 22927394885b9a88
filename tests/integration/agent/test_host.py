"""The execution host on a real engine: what a caller of the library sees."""

import pytest

from isolet.agent.host import ExecutionHost
from isolet.plan import reasons
from isolet.wire.execution import EnvVar, ExecRequest, Medium


async def test_a_command_runs_once_and_its_output_and_code_are_kept(host: ExecutionHost, spec):
    seen = await host.provision(spec("sh", "-c", "echo out; echo err >&2; exit 3"))
    result = await host.wait(seen.uid)
    assert result.outcome.reason == reasons.NON_ZERO_EXIT
    assert result.outcome.exit_code == 3
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.truncated, result.incomplete) == (False, False)


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
