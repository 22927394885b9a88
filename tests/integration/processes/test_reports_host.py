"""What people reported of systems like this one, for Processes: the host, its engine, its clients.

docs/reports.md has all. A test is named after its report. Here are the cases that need an agent of
their own: behind a proxy that hangs or counts what goes to the engine, or as a separate process.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from isolet.agent.operations import State
from isolet.agent.runner import ProcessRunner
from isolet.agent.server.metrics import ServerMetrics
from isolet.agent.server.server import AgentServer
from isolet.agent.service import inside_look
from isolet.client.http import HTTPAgent
from isolet.plan import reasons
from isolet.wire.execution import ExecutionSpec, ExecutionWanted
from tests.contract.engine.proxy import Proxy
from tests.e2e.test_reports import slow_to_open
from tests.integration.agent.conftest import Node
from tests.integration.process.test_agent_process import Agent, agent, ready
from tests.integration.processes.bench import OWN, PLACES, TOLD, TRAP, Bench
from tests.integration.processes.conftest import LIMITS, leave

__all__ = ["agent"]

FOR_EVER = 1 << 30
ANY = "/v[0-9.]+/containers"

both = pytest.mark.parametrize("where", PLACES)


@pytest.fixture
async def behind(socket: str, shell: str, tmp_path) -> AsyncIterator[tuple[Bench, Proxy]]:
    """An agent whose every call to the engine goes through a proxy."""
    proxy = Proxy(tmp_path / "s", socket)
    await proxy.start()
    node = Node(str(tmp_path / "s"), tmp_path)
    await node.open()
    yield Bench(node, shell), proxy
    await leave(node)
    await proxy.stop()


@both
async def test_a03_a_process_of_which_the_engine_says_nothing_holds_up_no_other(
    behind, witness, where, monkeypatch
):
    monkeypatch.setattr(inside_look, "LOOK_SECONDS", 4.0)
    bench, proxy = behind
    script = f"{TRAP}; echo on; {TOLD}; exit 5"
    operation = await bench.start(where, "sh", "-c", script)
    await bench.prints(operation, b"on\n")
    container = await bench.container(operation, witness)
    name = witness.inspect(container)["Name"].removeprefix("/")
    what = "json" if where == OWN else "exec"
    silence = proxy.rule(f"{ANY}/({container}|{name})/{what}", "hang", times=FOR_EVER)
    await bench.tell(operation, where, witness)
    waited = time.monotonic()
    others = 0
    while (await bench.runner.poll("acme", operation)).reason != reasons.ENGINE_UNAVAILABLE:
        began = time.monotonic()
        ended = await bench.run(OWN, "true")
        assert (ended.exit_code, time.monotonic() - began < 60) == (0, True)
        others += 1
        assert time.monotonic() - waited < 180
    assert others > 0
    assert silence.struck > 0
    silence.times = 0
    async with asyncio.timeout(60):
        ended = await bench.end(operation)
    assert (ended.state, ended.exit_code, ended.stdout) == (State.EXITED, 5, b"on\n")


async def test_b04_a_slow_connection_is_not_charged_to_a_process(behind):
    bench, _ = behind
    server = AgentServer(bench.node.service, metrics=ServerMetrics(CollectorRegistry()))
    socket = bench.node.run / "agent.sock"
    await server.listen_unix(socket)
    try:
        async with (
            slow_to_open(bench.node.root / "slow", socket, 12) as slow,
            closed_after(HTTPAgent(f"unix://{slow}")) as client,
        ):
            result = await ProcessRunner(client).run_shell(
                "sleep 0.5; echo ok", bench.sandbox(), timeout_seconds=10
            )
        assert (result.exit_code, result.timed_out, result.stdout) == (0, False, b"ok\n")
    finally:
        await server.close()


async def test_b06_what_has_expired_is_removed_once(behind):
    bench, proxy = behind
    operation = await bench.start(OWN, "sleep", "60", timeout_seconds=1)
    ended = await bench.end(operation)
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    calls = f"DELETE {ANY}/isolet-|DELETE {ANY}/[0-9a-f]{{64}}|POST {ANY}/.*/(stop|kill)"
    removals = proxy.count(calls)
    assert removals > 0
    for _ in range(20):
        assert (await bench.runner.poll("acme", operation)).state is State.DISPOSED
        await bench.runner.dispose("acme", operation)
        await bench.runner.cancel("acme", operation)
        await bench.runner.reconcile()
    assert proxy.count(calls) == removals


class Bare(Agent):
    """An agent that is started with its standard descriptors closed."""

    def start(self) -> None:
        close = ("sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh")
        self.process = subprocess.Popen([*close, *self.command()])


@pytest.fixture
def bare(agent: Agent) -> Agent:
    agent.__class__ = Bare
    return agent


async def test_d07_an_agent_without_standard_descriptors_passes_input_on(bare, request_of, shell):
    bare.start()
    async with client_of(bare) as client:
        runner = ProcessRunner(client)
        await a_session(client, shell)
        for number, place in enumerate(({}, {"execution_uid": "s"}) * 5):
            operation = f"op-{number}"
            request = request_of("cat", stdin=b"a", operation_id=operation, **place)
            await runner.start(request)
            assert (await runner.wait("acme", operation)).exit_code == 0
            assert (await runner.read_output("acme", operation)).stdout == b"a"
            await runner.dispose("acme", operation)
        await clear(client)


async def a_session(client: HTTPAgent, shell: str) -> None:
    spec = ExecutionSpec(image=shell, resources=LIMITS)
    await client.put(
        ExecutionWanted(uid="s", name="s", spec=spec, active_deadline_seconds=300), None
    )
    async with asyncio.timeout(60):
        while (await client.get("s")).started_at is None:
            await asyncio.sleep(0.05)


async def clear(client: HTTPAgent) -> None:
    runner = ProcessRunner(client)
    for seen in (await client.snapshot()).processes:
        await runner._remove(seen.uid)
    for seen in (await client.snapshot()).executions:
        while not (await client.remove(seen.uid, None)).nothing_left:
            await asyncio.sleep(0.05)


UNTIL_TOLD = "trap 'echo end; exit 0' USR1; cat; until [ -e go ]; do sleep 0.1; done; echo end"


@both
async def test_m09_a_running_command_is_found_again_by_any_client(
    agent, request_of, shell, witness, where
):
    agent.start()
    async with client_of(agent) as client:
        await a_session(client, shell)
        place = {} if where == OWN else {"execution_uid": "s"}
        request = request_of("sh", "-c", UNTIL_TOLD, stdin=b"in\n", **place)
        first = await ProcessRunner(client).start(request)
    for restarted in (False, True, False):
        if restarted:
            agent.end()
            agent.start()
        async with client_of(agent) as client:
            again = await ProcessRunner(client).poll("acme", "one")
            assert (again.state, again.container_id) == (State.RUNNING, first.container_id)
            assert again.started_at == first.started_at
            async with asyncio.timeout(60):
                while (await ProcessRunner(client).read_output("acme", "one")).stdout != b"in\n":
                    await asyncio.sleep(0.1)
    async with client_of(agent) as client:
        if where == OWN:
            witness.docker("kill", "--signal", "USR1", str(first.container_id))
        else:
            await client.put_file("s", "go", b"", 0o644)
        ended = await ProcessRunner(client).wait("acme", "one")
        output = await ProcessRunner(client).read_output("acme", "one")
        assert (ended.exit_code, output.stdout) == (0, b"in\nend\n")
        await clear(client)


@contextlib.asynccontextmanager
async def closed_after(client: HTTPAgent) -> AsyncIterator[HTTPAgent]:
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def client_of(agent: Agent) -> AsyncIterator[HTTPAgent]:
    async with closed_after(agent.local()) as client:
        await ready(client)
        yield client
