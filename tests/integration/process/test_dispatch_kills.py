"""The agent is killed at each step of a run in a warm gVisor slot: it runs at most once.

The judge is not the agent: a `docker logs` of the slot that the test itself has followed since
before the run was given to it, and the engine's own list.
"""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isolet.agent.dispatch.steps import DispatchStep
from isolet.base import errors, steps
from isolet.client.dispatch import HTTPDispatch
from isolet.wire.dispatch import Budgets, DispatchLine, DispatchWanted, ReserveRequest
from isolet.wire.execution import Outcome
from isolet.wire.pool import PoolsWanted
from tests.dispatches import CLASS, a_pool, a_run
from tests.integration.process.test_agent_process import an_agent, environment, ready
from tests.integration.process.test_pool_kills import Trapped, follow, once, slot_is_ready
from tests.witness import Witness, contents_below

RAN = "ran here"
BEFORE_OWNERSHIP = (DispatchStep.ASSIGN_BEFORE,)
IN_DOUBT = (DispatchStep.ASSIGN_AFTER, DispatchStep.BEGIN_AFTER, DispatchStep.DELIVER_BEFORE)
"""Owned, and nothing was handed over: it never runs, and nobody says that it succeeded."""
BRIEF, LONG = Budgets(startup_seconds=2), Budgets()
"""What is in doubt waits for its startup budget; what ran must not meet it on a slow machine."""


def pools() -> PoolsWanted:
    """One slot of a runner."""
    one = a_pool(environment("ISOLET_IMAGE_RUNNER"))
    half = one.resources.model_copy(update={"cpu_millis": 500})
    return PoolsWanted(pools=(one.model_copy(update={"resources": half}),))


def asked(uid: str, budgets: Budgets) -> tuple[bytes, DispatchWanted]:
    """A document whose runner says once that it runs, and goes on for a while."""
    work = [{"echo": RAN}, {"sleep": 0.5}, {"echo": 42}]
    document = json.dumps({"run_id": uid, "secret": "hunter2", "payload": work}).encode()
    return document, a_run(document, uid, budgets=budgets)


class Node:
    """An agent with one warm slot, and its engine."""

    def __init__(self, trapped: Trapped, folder: Path) -> None:
        self.trapped, self.folder = trapped, folder
        self.witness = Witness(environment("ISOLET_DOCKER_SOCKETS").split()[0])

    def containers(self) -> list[str]:
        return self.witness.containers(self.trapped.installation)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[HTTPDispatch]:
        """A caller; the pool is whole."""
        caller = HTTPDispatch(f"unix://{self.trapped.agent.run}/agent.sock")
        await ready(caller)
        await caller.put_pools(pools(), None)
        await once(lambda: slot_is_ready(caller))
        yield caller
        await caller.close()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator["Said"]:
        """The engine's word of the one slot's output."""
        (slot,) = await asyncio.to_thread(self.containers)
        follower = follow(self.witness, slot, self.folder / slot)
        try:
            yield Said(slot, self.folder / slot, follower)
        finally:
            follower.kill()
            follower.wait()


@dataclass(frozen=True)
class Said:
    """What a slot prints, followed by a process that is none of the agent's."""

    slot: str
    file: Path
    follower: "subprocess.Popen[bytes]"

    async def runs(self) -> int:
        """How often its runner said that it runs, once the slot has ended and all of it is here."""
        await asyncio.to_thread(self.follower.wait, 60)
        return self.file.read_text().count(RAN)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as patch, an_agent() as agent:
        trapped = Trapped(agent)
        patch.setenv(steps.ENV_AT, f"@{trapped.trap}")
        agent.start()
        made = Node(trapped, tmp_path_factory.mktemp("slots"))
        yield made
        asyncio.run(_cleared(made))


async def _cleared(node: Node) -> None:
    async with node.client() as client:
        await client.put_pools(PoolsWanted(), None)

        async def nothing() -> bool:
            return not await asyncio.to_thread(node.containers)

        await once(nothing)


async def begin(client: HTTPDispatch, uid: str, budgets: Budgets, *, cancel: bool = False) -> None:
    """As a front door does; an agent that dies meanwhile leaves the caller without an answer."""
    document, wanted = asked(uid, budgets)
    with contextlib.suppress(errors.IsoletError):
        kept = await client.reserve(ReserveRequest(class_name=CLASS))
        await client.begin(kept, wanted, document)
        if cancel:
            async for line in client.follow(uid, 0):
                if line.event is not None:
                    break
            await client.cancel(uid)


async def outcome(client: HTTPDispatch, uid: str) -> Outcome:
    """Once it has one, as the operator sees it."""

    async def ended() -> Outcome | None:
        return (await client.get(uid)).outcome

    return await once(ended)


async def told(client: HTTPDispatch, uid: str) -> list[DispatchLine]:
    """What can be read of a run from its beginning, after its end."""
    return [line async for line in client.follow(uid, 0) if not line.heartbeat]


async def disposed(node: Node, client: HTTPDispatch, uid: str, slot: str) -> None:
    """Nothing is left of the run, nor of its slot."""

    async def gone() -> bool:
        return (await client.remove(uid, None)).nothing_left

    await once(gone)
    assert slot not in await asyncio.to_thread(node.containers)
    assert (await client.node()).strays == ()


@pytest.mark.parametrize("step", DispatchStep, ids=str)
async def test_killed_at(node: Node, step: DispatchStep) -> None:
    uid, trapped = f"uid-{step.replace('.', '-')}", node.trapped
    budgets = BRIEF if step in IN_DOUBT else LONG
    async with node.client() as client, node.watched() as said:
        trapped.trap.write_text(step)
        await begin(client, uid, budgets, cancel=step is DispatchStep.STOP_BEFORE)
        await trapped.dies()
        await ready(client)
        if step in BEFORE_OWNERSHIP:
            with pytest.raises(errors.NotFound):
                await client.get(uid)
            assert said.slot in node.containers(), "nobody had it: the slot is as good as before"
            await begin(client, uid, budgets)
        end = await outcome(client, uid)
        if step in IN_DOUBT:
            assert (end.reason, await said.runs()) == ("StartUnconfirmed", 0)
        else:
            assert (end.reason, await said.runs()) == ("Succeeded", 1)
            lines = await told(client, uid)
            sequences = [line.event.sequence for line in lines if line.event is not None]
            assert sequences == [1, 2, 3, 4]
            assert lines[-1].ended == end
        await disposed(node, client, uid, said.slot)
        await once(lambda: slot_is_ready(client))
        await begin(client, uid, budgets)
        (pool,) = (await client.node()).pools
        assert (pool.ready, pool.assigned) == (1, 0), "it was here before, and gets no slot"
    found = contents_below(trapped.agent.root / "state")
    assert [path for path, content in found if b"hunter2" in content] == []


async def test_a_result_is_read_however_late_the_agent_comes(node: Node) -> None:
    trapped = node.trapped
    async with node.client() as client, node.watched() as said:
        trapped.trap.write_text(DispatchStep.DELIVER_AFTER)
        await begin(client, "late", BRIEF)
        assert trapped.agent.process is not None
        await asyncio.to_thread(trapped.agent.process.wait, 60)
        assert await asyncio.to_thread(node.witness.docker, "wait", said.slot) == "0"
        await asyncio.sleep(BRIEF.startup_seconds)
        trapped.agent.start()
        await ready(client)
        end = await outcome(client, "late")
        assert (end.reason, await said.runs()) == ("Succeeded", 1)
        assert (await told(client, "late"))[-1].ended == end
        await disposed(node, client, "late", said.slot)
