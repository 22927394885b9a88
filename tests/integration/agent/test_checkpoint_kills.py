"""The agent is killed at each step of a Checkpoint and of a restore: whole or absent, never half.

The judge is the engine, GNU tar on the files of the copy, and what the sandbox's own tools see.
"""

import asyncio
import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.agent.steps import AgentStep
from isolet.base import errors, names
from isolet.client.http import HTTPAgent
from isolet.plan import reasons
from isolet.wire.checkpoint import CheckpointObserved
from isolet.wire.execution import ExecRequest, ExecutionWanted, Medium, Workspace
from isolet.wire.restore import Restore
from tests.integration.agent import checkpoints
from tests.integration.process.test_agent_process import Agent, environment, ready, spec
from tests.witness import Witness

pytestmark = pytest.mark.faults

SCRIPT = """\
umask 022; mkdir -p d; echo small >d/small; ln d/small e
head -c 400000 /dev/zero | tr '\\0' a >d/big
(while :; do echo x >>/tmp/ticks; sleep 0.05; done) >/dev/null 2>&1 &
"""

TAKEN = [step for step in AgentStep if step.value.startswith("agent.checkpoint-")]
REMOVED = [AgentStep.CHECKPOINT_DISPOSE_BEFORE, AgentStep.CHECKPOINT_DISPOSE_AFTER]
RESTORED = [step for step in AgentStep if step.value.startswith("agent.restore")]


class Killable:
    """An agent as a process, that can be killed at a step."""

    def __init__(self, agent: Agent, trap: Path) -> None:
        self.agent = agent
        self.trap = trap
        self.client: HTTPAgent = agent.local()
        self.host = ExecutionHost(self.client)
        self.witness = Witness(environment("ISOLET_DOCKER_SOCKETS").split()[0])
        self.folders = agent.root / "state" / "checkpoints"

    async def is_dead(self) -> None:
        async with asyncio.timeout(60):
            while self.agent.process is not None and self.agent.process.poll() is None:
                await asyncio.sleep(0.02)
        self.agent.process = None

    async def comes_back(self) -> None:
        self.agent.start()
        await ready(self.client)

    def container(self, uid: str) -> dict:
        return self.witness.inspect(names.container_name(self.agent.installation, uid))

    async def ended(self, uid: str) -> CheckpointObserved:
        async with asyncio.timeout(90):
            while True:
                with contextlib.suppress(errors.Unavailable):
                    seen = await self.client.get_checkpoint(uid)
                    if seen.outcome is not None:
                        return seen
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def one_agent() -> Iterator[tuple[Agent, Path]]:
    root = Path(tempfile.mkdtemp(prefix="isolet-"))
    made, trap = Agent(root), root / "step"
    policy = root / "policy.toml"
    policy.write_text(policy.read_text().replace("executions = 3", "executions = 50"))
    os.environ["ISOLET_STOP_AT"] = f"@{trap}"
    try:
        made.start()
        yield made, trap
    finally:
        del os.environ["ISOLET_STOP_AT"]
        made.leave()


@pytest.fixture
async def killable(one_agent: tuple[Agent, Path]) -> AsyncIterator[Killable]:
    agent, trap = one_agent
    if agent.process is None:
        agent.start()
    found = Killable(agent, trap)
    await ready(found.client)
    yield found
    trap.unlink(missing_ok=True)
    if agent.process is None or agent.process.poll() is not None:
        agent.process = None
        await found.comes_back()
    for seen in await found.host.list():
        await found.host.reclaim(seen.uid)
    for copy in await found.host.checkpoints():
        await found.host.delete_checkpoint(copy.uid)
    assert list(found.folders.glob("*/*")) == []
    await found.client.close()


@pytest.fixture
def name() -> str:
    """A uid that this agent has never heard."""
    return f"c-{uuid.uuid4().hex[:8]}"


async def a_session(killable: Killable, medium: Medium) -> str:
    what = spec().model_copy(update={"workspace": Workspace(medium=medium)})
    uid = (await killable.host.provision(what)).uid
    done = await killable.host.exec(uid, ExecRequest(command=("sh", "-c", SCRIPT)))
    assert (done.exit_code, done.stderr) == (0, b"")
    return uid


async def says(killable: Killable, uid: str, script: str) -> bytes:
    return (await killable.host.exec(uid, ExecRequest(command=("sh", "-c", script)))).stdout


async def goes_on(killable: Killable, uid: str) -> None:
    """The background process of the session runs, and nothing is paused."""
    assert not killable.container(uid)["State"]["Paused"]
    before = await says(killable, uid, "wc -c </tmp/ticks")
    async with asyncio.timeout(60):
        while await says(killable, uid, "wc -c </tmp/ticks") == before:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("medium", list(Medium))
@pytest.mark.parametrize("step", [s for s in TAKEN if s not in REMOVED], ids=lambda s: s.value)
async def test_a_checkpoint_survives_at(
    killable: Killable, name: str, step: AgentStep, medium: Medium
):
    uid = await a_session(killable, medium)
    killable.trap.write_text(step.value)
    with contextlib.suppress(errors.Unavailable, errors.Unconfirmed):
        await killable.client.put_checkpoint(checkpoints.wanted(name, uid), None)
    await killable.is_dead()
    await killable.comes_back()
    seen = await killable.ended(name)
    assert (seen.outcome.reason, seen.on_node) == (reasons.CHECKPOINT_READY, True), seen.outcome
    folder = killable.folders / "whole" / name
    assert checkpoints.by_tar(folder, "d/big") == b"a" * 400_000
    assert checkpoints.by_tar(folder, "d/small") == b"small\n"
    assert len(checkpoints.lines(folder)) == seen.manifest.entries == 5
    assert list((killable.folders / "aside").iterdir()) == []
    await goes_on(killable, uid)


@pytest.mark.parametrize("step", REMOVED, ids=lambda s: s.value)
async def test_its_removal_survives_at(killable: Killable, name: str, step: AgentStep):
    uid = await a_session(killable, Medium.DISK)
    await killable.host.checkpoint(uid, uid=name)
    killable.trap.write_text(step.value)
    with contextlib.suppress(errors.Unavailable, errors.Unconfirmed):
        await killable.client.remove_checkpoint(name, None)
    await killable.is_dead()
    await killable.comes_back()
    await killable.host.delete_checkpoint(name)
    assert await killable.host.checkpoints() == ()
    assert list(killable.folders.glob("*/*")) == []


@pytest.mark.parametrize("medium", list(Medium))
@pytest.mark.parametrize("step", RESTORED, ids=lambda s: s.value)
async def test_a_restore_survives_at(
    killable: Killable, name: str, step: AgentStep, medium: Medium
):
    uid = await a_session(killable, medium)
    taken = await killable.host.checkpoint(uid, uid=name)
    await killable.host.reclaim(uid)
    source = Restore(
        checkpoint_uid=name,
        manifest_digest=taken.manifest_digest,
        content_digest=taken.manifest.content_digest,
    )
    again = f"{name}-again"
    # It notes each of its own starts outside of what is restored: it must have begun once.
    command = ("sh", "-c", "echo began >>/workspace/began; ls d >>/workspace/began; sleep 300")
    what = spec(*command).model_copy(
        update={"workspace": Workspace(medium=medium), "restore": source}
    )
    wanted = ExecutionWanted(uid=again, name=again, spec=what, active_deadline_seconds=300)
    killable.trap.write_text(step.value)
    with contextlib.suppress(errors.Unavailable, errors.Unconfirmed):
        await killable.client.put(wanted, None)
    await killable.is_dead()
    await killable.comes_back()
    await killable.client.put(wanted, None)
    async with asyncio.timeout(90):
        while (seen := await killable.client.get(again)).started_at is None:
            assert seen.outcome is None, seen.outcome
            await asyncio.sleep(0.05)
    container = names.container_name(killable.agent.installation, again)
    look = "cd /workspace; wc -c <d/big; cat e began; find . | wc -l"
    async with asyncio.timeout(60):
        # It may still be at its second line.
        while not (
            found := killable.witness.docker("exec", container, "sh", "-c", look).encode()
        ).endswith(b"big\nsmall\n6"):
            await asyncio.sleep(0.05)
    assert found.split() == b"400000 small began big small 6".split()


async def test_a_deadline_holds_while_a_sandbox_stands_still_and_no_agent_is_there(
    killable: Killable, name: str
):
    """The watchdog lets it go on before it kills it: what is killed while it is paused leaks."""
    what = spec().model_copy(update={"workspace": Workspace(medium=Medium.DISK)})
    uid = (await killable.host.provision(what, deadline_seconds=25)).uid
    killable.trap.write_text(AgentStep.CHECKPOINT_FREEZE_AFTER.value)
    with contextlib.suppress(errors.Unavailable, errors.Unconfirmed):
        await killable.client.put_checkpoint(checkpoints.wanted(name, uid), None)
    await killable.is_dead()
    assert killable.container(uid)["State"]["Paused"]
    async with asyncio.timeout(60):
        while killable.container(uid)["State"]["Running"]:
            await asyncio.sleep(0.1)
    await killable.comes_back()
    # What was cut off is taken of the ended disk, which is not let go of before that.
    seen = await killable.ended(name)
    assert (seen.outcome.reason, seen.on_node) == (reasons.CHECKPOINT_READY, True)
    ended = await killable.host.terminate(uid)
    assert (ended.outcome.reason, ended.nothing_left) == (reasons.DEADLINE_EXCEEDED, True)


async def test_a_cancel_does_not_wait_for_a_copy(killable: Killable, name: str):
    """It ends what stands still, and the copy of that moment is worth nothing."""
    uid = await a_session(killable, Medium.DISK)
    await killable.client.put_checkpoint(checkpoints.wanted(name, uid), None)
    ended = await killable.host.terminate(uid)
    assert (ended.outcome.reason, ended.nothing_left) == (reasons.TERMINATED, True)
    seen = await killable.ended(name)
    whole = (killable.folders / "whole" / name).exists()
    assert seen.on_node == whole == seen.outcome.succeeded
