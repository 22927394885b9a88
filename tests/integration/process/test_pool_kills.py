"""The agent is killed at each step of making a slot and of giving it away.

The judge is not the agent: a `docker logs` of the slot that the test itself has followed since
before anything was given to it, the log of what was started cold, and the engine's own list.
"""

import asyncio
import contextlib
import signal
import subprocess
from pathlib import Path

import pytest

from isolet.agent.steps import AgentStep
from isolet.base import errors, steps
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecutionObserved, ExecutionWanted, Workspace
from isolet.wire.pool import PoolsWanted, PoolWanted
from tests.integration.process.test_agent_process import Agent, agent, environment, ready, spec
from tests.witness import Witness

__all__ = ["agent"]

RAN = b"ran\n"
WORK = spec("sh", "-c", "echo ran").model_copy(update={"workspace": Workspace(retain_seconds=600)})
POOL = PoolsWanted(
    pools=(
        PoolWanted(
            class_name="warm",
            image=WORK.image,
            resources=WORK.resources,
            minimum=1,
            maximum=1,
            create_concurrency=1,
        ),
    )
)
WANTED = ExecutionWanted(
    uid="u1", name="u1", class_name="warm", spec=WORK, active_deadline_seconds=300
)


class Trapped:
    """An agent that dies at the steps named, one after the other."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.installation = agent.installation
        self.trap = agent.root / "trap"

    async def dies(self) -> None:
        """Wait for the kill, then start it again."""
        process = self.agent.process
        assert process is not None
        assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL
        self.agent.start()


@pytest.fixture
def trapped(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Trapped:
    made = Trapped(agent)
    monkeypatch.setenv(steps.ENV_AT, f"@{made.trap}")
    agent.start()
    return made


async def once(call, within: float = 180.0):
    """Call until it gives something; an agent that is away is asked again."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(errors.Unavailable):
                if found := await call():
                    return found
            await asyncio.sleep(0.1)


async def slot_is_ready(client: HTTPAgent) -> bool:
    found = (await client.node()).pools
    return bool(found) and (found[0].ready, found[0].creating, found[0].retiring) == (1, 0, 0)


async def outcome(client: HTTPAgent) -> ExecutionObserved:
    """As its owner does: wants it until it has ended."""

    async def ended() -> ExecutionObserved | None:
        seen = await client.put(WANTED, None)
        return seen if seen.outcome is not None else None

    return await once(ended)


async def cleared(client: HTTPAgent, witness: Witness, installation: str) -> None:
    """Nothing is left once nothing is wanted."""

    async def asked() -> bool:
        await client.put_pools(PoolsWanted(), None)
        return (await client.remove("u1", None)).nothing_left

    await once(asked)

    async def nothing() -> bool:
        return not await asyncio.to_thread(witness.containers, installation)

    await once(nothing)
    assert (await client.node()).strays == ()


def follow(witness: Witness, container: str, path: Path) -> subprocess.Popen[bytes]:
    """Have the container's output in a file, also when it is removed."""
    command = ["docker", "-H", f"unix://{witness.socket}", "logs", "-f", container]
    with path.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.DEVNULL)


GIVING = {
    "before the transaction": (AgentStep.ASSIGN_BEFORE,),
    "after the transaction": (AgentStep.ASSIGN_AFTER,),
    "before the line": (AgentStep.HAND_BEFORE,),
    "after the line": (AgentStep.HAND_AFTER,),
    "and when it takes the slot back": (AgentStep.HAND_BEFORE, AgentStep.UNASSIGN_AFTER),
}


@pytest.mark.parametrize("where", GIVING.values(), ids=GIVING)
async def test_killed_while_a_slot_is_given(trapped: Trapped, tmp_path: Path, where) -> None:
    witness = Witness(environment("ISOLET_DOCKER_SOCKETS").split()[0])
    client = trapped.agent.local()
    await ready(client)
    await client.put_pools(POOL, None)
    await once(lambda: slot_is_ready(client))
    (slot,) = witness.containers(trapped.installation)
    follower = follow(witness, slot, tmp_path / "slot")
    try:
        for step in where:
            trapped.trap.write_text(step.value)
            with contextlib.suppress(errors.IsoletError):
                await client.put(WANTED, None)
            await trapped.dies()
            await ready(client)
        seen = await outcome(client)
        assert seen.outcome is not None
        assert (seen.outcome.succeeded, seen.outcome.reason) == (True, "Succeeded")
        assert (await client.output("u1", "stdout", 0, 100)).data == RAN
        # A slot that is being made may go again meanwhile; what ran cold is kept for a while.
        there = witness.containers(trapped.installation)
        told = [witness.docker("logs", container, check=False) for container in there]
        if slot not in there:  # What it said is what was followed, once all of that is here.
            await asyncio.to_thread(follower.wait, 60)
            told.append((tmp_path / "slot").read_text())
        said = "\n".join(told).splitlines()
        assert said.count("ran") == 1
        await cleared(client, witness, trapped.installation)
    finally:
        follower.kill()
        follower.wait()
        await client.close()


MAKING = (
    AgentStep.LAUNCH_AFTER,
    AgentStep.CREATE_AFTER,
    AgentStep.DISPATCH_AFTER,
    AgentStep.START_AFTER,
    AgentStep.RUNNING_AFTER,
)


@pytest.mark.parametrize("step", MAKING, ids=str)
async def test_killed_while_a_slot_is_made(trapped: Trapped, step: AgentStep) -> None:
    witness = Witness(environment("ISOLET_DOCKER_SOCKETS").split()[0])
    client = trapped.agent.local()
    await ready(client)
    trapped.trap.write_text(step.value)
    with contextlib.suppress(errors.Unavailable):  # It may die before it has answered.
        await client.put_pools(POOL, None)
    await trapped.dies()
    await ready(client)
    await once(lambda: slot_is_ready(client))
    assert len(witness.containers(trapped.installation)) == 1
    assert (await outcome(client)).outcome.succeeded
    await cleared(client, witness, trapped.installation)
    await client.close()
