"""The agent is killed at each step of a Git import: a whole workspace of one commit, or none."""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.agent.steps import AgentStep
from isolet.base import errors, names
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecutionObserved, ExecutionWanted, GitSource, Medium, Workspace
from tests.git_repo import Repo
from tests.integration.process.test_agent_process import Agent, environment, ready, spec
from tests.witness import Witness

pytestmark = pytest.mark.faults

OF_GIT = [step for step in AgentStep if step.value.startswith(("agent.commit.", "agent.tree."))]
UNPACKING = [AgentStep.CREATE_AFTER, AgentStep.START_AFTER, AgentStep.RUNNING_AFTER]
"""Steps of any sandbox, beside which a tree waits to be unpacked or is."""

PINNED = {*OF_GIT, *UNPACKING} - {AgentStep.COMMIT_BEFORE}
COMMAND = ("sh", "-c", "cat README; sha256sum <data | cut -c1-64")


@dataclass
class Scene:
    """An agent that dies at a step, and the repository that it serves."""

    agent: Agent
    client: HTTPAgent
    repo: Repo
    trap: Path

    async def dies(self) -> None:
        async with asyncio.timeout(60):
            while self.agent.process is not None and self.agent.process.poll() is None:
                await asyncio.sleep(0.02)
        self.agent.process = None
        assert not self.trap.exists(), "it died of the trap"

    async def put(self, wanted: ExecutionWanted) -> None:
        with contextlib.suppress(errors.Unavailable):
            await self.client.put(wanted, None)

    async def ended(self, uid: str) -> ExecutionObserved:
        async with asyncio.timeout(90):
            while True:
                with contextlib.suppress(errors.Unavailable):
                    seen = await self.client.get(uid)
                    if seen.outcome is not None:
                        return seen
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Agent, Repo, Path]]:
    root = Path(tempfile.mkdtemp(prefix="isolet-"))
    root.chmod(0o755)
    agent, repo, trap = Agent(root), Repo(root / "project"), root / "step"
    with (root / "policy.toml").open("a") as policy:
        policy.write(f'[git.repositories.project]\npath = "{repo.folder}"\n')
    os.environ["ISOLET_STOP_AT"] = f"@{trap}"
    try:
        agent.start()
        yield agent, repo, trap
    finally:
        del os.environ["ISOLET_STOP_AT"]
        agent.leave()


@pytest.fixture
async def scene(served: tuple[Agent, Repo, Path]) -> AsyncIterator[Scene]:
    agent, repo, trap = served
    if agent.process is None:
        agent.start()
    found = Scene(agent, agent.local(), repo, trap)
    await ready(found.client)
    yield found
    trap.unlink(missing_ok=True)
    if agent.process is None or agent.process.poll() is not None:
        agent.start()
        await ready(found.client)
    host = ExecutionHost(found.client)
    for seen in await host.list():
        await host.reclaim(seen.uid)
    assert list((agent.root / "state" / "trees").iterdir()) == []
    await found.client.close()


@pytest.mark.parametrize("medium", list(Medium))
@pytest.mark.parametrize("step", [*OF_GIT, *UNPACKING], ids=lambda step: step.value)
async def test_one_commit_whole_and_one_start(
    scene: Scene, step: AgentStep, medium: Medium
) -> None:
    data = os.urandom(3 << 20)
    first = scene.repo.commit({"README": f"first {step}\n", "data": data})
    git = GitSource(repository="project", revision="main")
    workspace = Workspace(medium=medium, git=git)
    uid = f"{step.value}-{medium.value}"
    wanted = ExecutionWanted(
        uid=uid,
        name="killed",
        spec=spec(*COMMAND).model_copy(update={"workspace": workspace}),
        active_deadline_seconds=60,
    )
    began = time.time()
    scene.trap.write_text(step.value)
    await scene.put(wanted)
    await scene.dies()
    second = scene.repo.commit({"README": "second\n"})
    scene.agent.start()
    await ready(scene.client)
    await scene.put(wanted)
    seen = await scene.ended(uid)
    assert seen.outcome is not None
    assert seen.outcome.succeeded, seen.outcome
    assert seen.git is not None
    assert seen.git.commit == (first if step in PINNED else second)
    text = f"first {step}" if seen.git.commit == first else "second"
    output = (await scene.client.output(uid, "stdout", 0, 1 << 20)).data.decode()
    assert output.split("\n")[:2] == [text, hashlib.sha256(data).hexdigest()]
    witness = Witness(environment("ISOLET_DOCKER_SOCKETS").split()[0])
    starts = witness.starts(began, time.time(), scene.agent.installation)
    assert starts.count(names.container_name(scene.agent.installation, uid)) == 1
