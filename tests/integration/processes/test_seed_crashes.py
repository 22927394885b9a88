"""The cases about a host that dies: the agent is killed at each step and started again."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isolet.agent.operations import State, uid_of
from isolet.agent.runner import ProcessRunner
from isolet.agent.steps import AgentStep
from isolet.base import errors, names
from isolet.client.http import HTTPAgent
from isolet.plan import reasons
from isolet.wire.execution import ExecutionSpec, ExecutionWanted, Medium
from tests.integration.process.test_agent_process import Agent, agent, ready
from tests.integration.processes.conftest import LIMITS, in_seconds
from witness import Witness

__all__ = ["agent"]

SCRIPT = "cat f; mkdir out; echo 42 > out/r; sleep 1; echo done"

OF_A_PROCESS = [
    AgentStep.RECORD_BEFORE,
    AgentStep.RECORD_AFTER,
    AgentStep.LAUNCH_BEFORE,
    AgentStep.LAUNCH_AFTER,
    AgentStep.DISK_BEFORE,
    AgentStep.DISK_AFTER,
    AgentStep.VOLUME_AFTER,
    AgentStep.CREATE_BEFORE,
    AgentStep.CREATE_AFTER,
    AgentStep.DISPATCH_BEFORE,
    AgentStep.DISPATCH_AFTER,
    AgentStep.START_AFTER,
    AgentStep.RUNNING_AFTER,
    AgentStep.COLLECT_BEFORE,
    AgentStep.COLLECT_AFTER,
    AgentStep.OUTCOME_BEFORE,
    AgentStep.OUTCOME_AFTER,
]
INSIDE = [
    AgentStep.RECORD_AFTER,
    AgentStep.LAUNCH_AFTER,
    AgentStep.DISPATCH_AFTER,
    AgentStep.INSIDE_START_BEFORE,
    AgentStep.INSIDE_START_AFTER,
    AgentStep.RUNNING_AFTER,
    AgentStep.OUTCOME_BEFORE,
    AgentStep.OUTCOME_AFTER,
]
ENDING = [
    AgentStep.STOP_RECORDED,
    AgentStep.END_BEFORE,
    AgentStep.END_AFTER,
]


class Host:
    """A runner over an agent that can be killed at a step."""

    def __init__(self, agent: Agent, client: HTTPAgent, witness: Witness, trap) -> None:
        self.agent = agent
        self.client = client
        self.runner = ProcessRunner(client)
        self.witness = witness
        self.trap = trap
        self.began = time.time()

    async def dies_at(self, step: AgentStep) -> None:
        """From now on it dies when it comes to this step."""
        self.trap.write_text(step.value)

    async def is_dead(self) -> None:
        async with asyncio.timeout(60):
            while self.agent.process is not None and self.agent.process.poll() is None:
                await asyncio.sleep(0.02)
        self.agent.process = None

    async def comes_back(self) -> None:
        self.agent.start()
        await ready(self.client)

    def starts(self, operation: str) -> int:
        name = names.container_name(self.agent.installation, uid_of("acme", operation))
        found = self.witness.starts(self.began - 1, time.time(), self.agent.installation)
        return found.count(name)


@pytest.fixture
def trap(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "step"
    monkeypatch.setenv("ISOLET_STOP_AT", f"@{path}")
    return path


@pytest.fixture
async def killable(agent: Agent, trap, witness) -> AsyncIterator[Host]:
    agent.start()
    client = agent.local()
    await ready(client)
    yield Host(agent, client, witness, trap)
    trap.unlink(missing_ok=True)
    if agent.process is None:
        agent.start()
        await ready(client)
    runner = ProcessRunner(client)
    for seen in (await client.snapshot()).processes:
        await runner._remove(seen.uid)
    for seen in (await client.snapshot()).executions:
        while not (await client.remove(seen.uid, None)).nothing_left:
            await asyncio.sleep(0.05)
    await client.close()


async def start_and_die(host: Host, request, step: AgentStep) -> list[str]:
    """Start it, wait for the death, come back and say the same again; what there was meanwhile."""
    await host.dies_at(step)
    with contextlib.suppress(errors.Unavailable):
        await host.runner.start(request)
    await host.is_dead()
    left = host.witness.containers(host.agent.installation)
    await host.comes_back()
    await host.runner.start(request)
    return left


@pytest.mark.faults
@pytest.mark.parametrize("step", OF_A_PROCESS, ids=lambda s: s.value)
async def test_case_13_to_18_a_host_that_dies_at(killable: Host, request_of, step):
    """13 record, 14 create, 15 stage, 16 dispatch, 17 start, 18 exit: one container, one start."""
    from isolet.wire.process import StagedFile

    request = request_of(
        "sh",
        "-c",
        SCRIPT,
        medium=Medium.DISK,
        files=(StagedFile(path="f", content=b"staged\n"),),
        artifacts=("out/*",),
    )
    left = await start_and_die(killable, request, step)
    async with asyncio.timeout(60):
        ended = await killable.runner.wait("acme", "one")
    assert (ended.state, ended.exit_code) == (State.EXITED, 0), ended.message
    assert len(left) == (OF_A_PROCESS.index(step) >= OF_A_PROCESS.index(AgentStep.CREATE_AFTER))
    if step is AgentStep.DISPATCH_AFTER:  # only its removal proves that it never ran
        assert left != [ended.container_id]
    else:
        assert set(left) <= {ended.container_id}  # adopted, not made again
    found = await killable.runner.read_output("acme", "one")
    assert (found.stdout, found.incomplete) == (b"staged\ndone\n", False)
    assert (await killable.runner.read_artifact("acme", "one", "out/r")).content == b"42\n"
    assert killable.starts("one") == 1


@pytest.mark.faults
@pytest.mark.parametrize("step", INSIDE, ids=lambda s: s.value)
async def test_a_process_in_a_session_survives_at(killable: Host, request_of, shell, step):
    client = killable.client
    spec = ExecutionSpec(image=shell, resources=LIMITS)
    wanted = ExecutionWanted(uid="s", name="s", spec=spec, active_deadline_seconds=300)
    await client.put(wanted, None)
    async with asyncio.timeout(60):
        while (await client.get("s")).started_at is None:
            await asyncio.sleep(0.05)
    script = "echo ran >> /workspace/ran; cat; sleep 1.5; echo done; exit 5"
    request = request_of("sh", "-c", script, execution_uid="s", stdin=b"in\n")
    await start_and_die(killable, request, step)
    async with asyncio.timeout(60):
        ended = await killable.runner.wait("acme", "one")
    assert (ended.state, ended.exit_code) == (State.EXITED, 5), ended.message
    assert (await killable.runner.read_output("acme", "one")).stdout == b"in\ndone\n"
    assert await client.get_file("s", "ran") == b"ran\n"


@pytest.mark.faults
@pytest.mark.parametrize("step", ENDING, ids=lambda s: s.value)
async def test_a_cancel_survives_at(killable: Host, request_of, step):
    await killable.runner.start(request_of("sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
    await killable.dies_at(step)
    with contextlib.suppress(errors.Unavailable):
        await killable.runner.cancel("acme", "one")
    await killable.is_dead()
    await killable.comes_back()
    async with asyncio.timeout(60):
        ended = await killable.runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.CANCELLED)


@pytest.mark.faults
async def test_case_31_a_deadline_holds_without_the_host(killable: Host, request_of):
    deadline = in_seconds(15)
    await killable.runner.start(request_of("sh", "-c", "echo on; sleep 600", deadline_at=deadline))
    async with asyncio.timeout(60):
        while (await killable.runner.read_output("acme", "one")).stdout != b"on\n":
            await asyncio.sleep(0.05)
    killable.agent.end(signal.SIGKILL)
    name = names.container_name(killable.agent.installation, uid_of("acme", "one"))
    async with asyncio.timeout(60):
        while killable.witness.inspect(name)["State"]["Running"]:
            await asyncio.sleep(0.1)
    assert 0 <= time.time() - deadline.timestamp() < 60
    await killable.comes_back()
    async with asyncio.timeout(60):
        ended = await killable.runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    assert (await killable.runner.read_output("acme", "one")).stdout == b"on\n"


@pytest.mark.faults
async def test_a_deadline_in_a_session_holds_without_the_host(killable: Host, request_of, shell):
    client = killable.client
    spec = ExecutionSpec(image=shell, resources=LIMITS)
    wanted = ExecutionWanted(uid="s", name="s", spec=spec, active_deadline_seconds=300)
    await client.put(wanted, None)
    async with asyncio.timeout(60):
        while (await client.get("s")).started_at is None:
            await asyncio.sleep(0.05)
    await killable.runner.start(request_of("sleep", "600", execution_uid="s", timeout_seconds=12))
    sibling = request_of("sleep", "600", execution_uid="s", operation_id="two")
    await killable.runner.start(sibling)
    killable.agent.end(signal.SIGKILL)
    session = names.container_name(killable.agent.installation, "s")
    async with asyncio.timeout(60):
        while killable.witness.inspect(session)["State"]["Running"]:
            await asyncio.sleep(0.1)
    await killable.comes_back()
    async with asyncio.timeout(60):
        ended = await killable.runner.wait("acme", "one")
        other = await killable.runner.wait("acme", "two")
    assert (ended.state, ended.reason) == (State.CANCELLED, reasons.DEADLINE_EXCEEDED)
    assert other.reason == reasons.SANDBOX_DESTROYED
