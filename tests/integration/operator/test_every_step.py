"""SIGKILL at every step that the code lists, and afterwards nothing is doubled, lost or left.

Life goes on in rounds that between them make every effect of the operator. A supervisor starts it
again each time it dies, as a kubelet would, with the next step as its trap.
"""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from isolet.operator.steps import STEPS
from isolet.wire.node import Stray
from tests.integration.operator.harness import NAMESPACE, World, until
from tests.integration.operator.processes import (
    CONSTANTS,
    SHORT_LEASE,
    OperatorProcess,
    served,
    trap,
)
from tests.unit.api.objects import DROP

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

WAIT = 300.0


class Supervisor:
    """Keeps one operator running, and kills it at one step after the other."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.left = list(STEPS)
        self.struck: list[str] = []
        self.deaths: list[tuple[str, int]] = []
        self.process: OperatorProcess | None = None

    async def run(self) -> None:
        while True:
            step = self.left[0] if self.left else ""
            noted = self.folder / f"noted-{len(self.deaths)}"
            self.process = OperatorProcess(
                self.world,
                self.folder,
                lease=SHORT_LEASE,
                **(trap(step, noted, "kill") if step else {}),
            )
            while self.process.alive:
                await asyncio.sleep(0.05)
            self.deaths.append((step, int(self.process.process.returncode)))
            if noted.exists():
                self.struck.append(step)
                self.left.remove(step)

    async def end_in_order(self) -> None:
        """SIGTERM, which is the only thing that makes a leader hand over its lease."""
        process = self.process
        if process is not None and process.led():
            process.send(signal.SIGTERM)
            await until(lambda: not process.alive, "ended", WAIT)


class Round:
    """One round of life with every kind of end."""

    def __init__(self, world: World, number: int, a: Any, b: Any, c: Any) -> None:
        self.world, self.number, self.a, self.b, self.c = world, number, a, b, c

    def name(self, what: str) -> str:
        return f"{what}-{self.number}"

    async def live(self) -> None:
        await asyncio.gather(
            self.succeed(),
            self.fail(),
            self.cancel(),
            self.force(),
            self.stray(),
            self.restore(),
            self.warm(),
        )

    async def _run(self, what: str, node: Any, **spec: Any) -> str:
        selector = {"kubernetes.io/hostname": node.name}
        uid = await self.world.create(self.name(what), nodeSelector=selector, **spec)
        await until(lambda: uid in node.live, f"{what} runs", WAIT)
        return uid

    async def succeed(self) -> None:
        uid = await self._run("good", self.a, ttlSecondsAfterFinished=1)
        await asyncio.sleep(1.5)
        await self.a.end(uid)
        await self.world.until_gone(self.name("good"), seconds=WAIT)

    async def fail(self) -> None:
        uid = await self._run("bad", self.a)
        await self.a.end(uid, "NonZeroExit", succeeded=False, exit_code=1, message="exit code 1")
        await self.world.until_condition("Succeeded", "False", self.name("bad"), seconds=WAIT)
        await self.world.delete(self.name("bad"))
        await self.world.until_gone(self.name("bad"), seconds=WAIT)

    async def cancel(self) -> None:
        await self._run("taken-back", self.a)
        change = {"spec": {"desiredState": "Terminated"}}
        await self.world.patch(change, self.name("taken-back"))
        await self.world.until_condition(
            "Succeeded", "False", self.name("taken-back"), reason="Cancelled", seconds=WAIT
        )
        await self.world.delete(self.name("taken-back"))
        await self.world.until_gone(self.name("taken-back"), seconds=WAIT)

    async def restore(self) -> None:
        """A Checkpoint of a session on one node, and another session that starts from it there."""
        world, saved = self.world, self.name("saved")
        await self._run("session", self.a, command=DROP)
        await world.checkpoint(saved, executionRef={"name": self.name("session")})
        await world.until_condition("Ready", "True", saved, kind="Checkpoint", seconds=WAIT)
        source = {"restoreFrom": {"checkpointName": saved}, "image": DROP, "command": DROP}
        await self._run("restored", self.c, **source)
        for name in ("session", "restored"):
            await world.delete(self.name(name))
            await world.until_gone(self.name(name), seconds=WAIT)
        await world.delete(saved, "Checkpoint")
        await world.until_gone(saved, kind="Checkpoint", seconds=WAIT)

    async def force(self) -> None:
        uid = await self._run("forced", self.b)
        await self.b.lose()
        name = self.name("forced")
        note = {"metadata": {"annotations": {"isolet.dev/force-release": "test"}}}
        await self.world.patch(note, name)
        await self.world.delete(name)
        await self.world.until_gone(name, seconds=WAIT)
        await self.b.return_()
        await until(lambda: uid not in self.b.live, "buried", WAIT)
        await until(self._no_tombstones, "the tombstone dropped", WAIT)

    async def _no_tombstones(self) -> bool:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps?labelSelector=isolet.dev%2Ftombstone"
        items = (await self.world.call("request", "GET", path)).must()["items"]
        mine = [i for i in items if self.b.name in i["data"]["tombstone.json"]]
        return not mine

    async def warm(self) -> None:
        """The class asks for another number of warm slots."""
        size = 1 + self.number % 2
        change = {"spec": {"warmPool": {"size": size}}}
        await self.world.patch(change, self.world.class_name, "ExecutionClass")
        for agent in (self.a, self.c):
            await until(
                lambda agent=agent: [pool.maximum for pool in agent.pools.pools] == [size],
                "the pool is asked for",
                WAIT,
            )

    async def stray(self) -> None:
        name = self.name("stray")
        self.a.strays += (Stray(kind="volume", name=name, uid="nobody", age_seconds=9000),)
        await until(lambda: all(s.name != name for s in self.a.strays), "stray removed", WAIT)


async def test_killed_at_every_step(
    world: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("p")
    monkeypatch.setitem(CONSTANTS, "isolet.plan.orphans.TOMBSTONE_LEAST", 0)
    await world.add_class()
    async with served(world, folder, over_tls=True) as add:
        a, b, c = await add("a"), await add("b"), await add("c")
        supervisor = Supervisor(world, folder)
        supervising = asyncio.create_task(supervisor.run())
        try:
            for number in range(40):
                await Round(world, number, a, b, c).live()
                await supervisor.end_in_order()
                if not supervisor.left:
                    break
        finally:
            supervising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervising
            if supervisor.process is not None:
                await supervisor.process.close()
        assert supervisor.left == [], "steps without a kill"
        assert set(supervisor.struck) == set(STEPS)
        for agent in (a, b, c):
            assert len(agent.starts) == len(set(agent.starts)), "started twice"
            assert agent.live == set()
            assert all(record.nothing_left for record in agent.records.values())
        for plural in ("executions", "checkpoints"):
            path = f"/apis/isolet.dev/v1alpha1/namespaces/{world.namespace}/{plural}"
            assert (await world.call("request", "GET", path)).must()["items"] == []
