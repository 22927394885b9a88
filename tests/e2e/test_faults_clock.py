"""The wall clock steps by ten minutes under an agent on a real engine: no life changes.

The machine's clock is everybody's and stays as it is. What is stepped is what the agent reads as
the wall time, which it does in one place (tests/arch sees to that); the engine, whose time the
judge goes by, does not step. That a step moves no deadline as a rule of decision is a law in
tests/unit/plan/test_sandbox.py.
"""

import os
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from isolet.agent import run
from isolet.agent.host import ExecutionHost
from isolet.agent.settings import AgentSettings
from isolet.base.clock import SystemClock
from isolet.wire.execution import ExecutionSpec, Resources
from tests.e2e.faults_watch import Tape
from tests.e2e.world import World

pytestmark = pytest.mark.faults

MIB = 1 << 20
SECONDS = 20
SHORTEST, LONGEST = 5.0, 60.0
"""A step that was believed would end it at once or leave it ten minutes more.

Where the engine's time of the start makes no sense, life counts from the dispatch before it, which
is earlier by as long as the engine takes to start it.
"""
INSTALLATION = "stepped"


class Stepped(SystemClock):
    """The system's clocks, with a wall clock that somebody sets."""

    by = timedelta()

    def now(self) -> datetime:
        return super().now() + type(self).by


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For the agent; the file system that it mounts there goes with it."""
    yield tmp_path
    subprocess.run(["umount", str(tmp_path / "run" / "launch")], check=False, capture_output=True)


@pytest.fixture
def tape(world: World) -> Iterator[Tape]:
    tape = Tape(world.witness("node-0"), INSTALLATION)
    yield tape
    tape.close()


def a_command(seconds: int) -> ExecutionSpec:
    limits = Resources(
        cpu_millis=500,
        memory_bytes=64 * MIB,
        workspace_bytes=4 * MIB,
        tmp_bytes=MIB,
        shm_bytes=MIB,
        pids=16,
        output_bytes=MIB,
    )
    image = os.environ["ISOLET_IMAGE_SHELL"]
    return ExecutionSpec(image=image, resources=limits, command=("sleep", str(seconds)))


def lived(tape: Tape, uid: str) -> float:
    """Seconds from start to end, as the engine tells."""
    return tape.until("die", uid).at - tape.until("start", uid).at


@pytest.mark.parametrize("minutes", [10, -10])
async def test_a_step_of_the_clock_changes_no_life(
    world: World, tape: Tape, folder: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    monkeypatch.setattr(run, "SystemClock", Stepped)
    monkeypatch.setattr(Stepped, "by", timedelta())
    settings = AgentSettings(
        node="node-0",
        installation=INSTALLATION,
        state_dir=folder / "state",
        run_dir=folder / "run",
        engine_socket=world.stack.layout.node(0).socket,
        watchdog=False,
    )
    async with run.embedded(settings) as service:
        await service.qualified()
        host = ExecutionHost(service)
        before = await host.provision(a_command(120), deadline_seconds=SECONDS)
        monkeypatch.setattr(Stepped, "by", timedelta(minutes=minutes))
        after = await host.provision(a_command(120), deadline_seconds=SECONDS)
        short = await host.provision(a_command(2), deadline_seconds=120)
        for seen in (before, after):
            assert (await host.wait(seen.uid)).outcome.reason == "DeadlineExceeded"
            assert SHORTEST <= lived(tape, seen.uid) <= LONGEST
        assert (await host.wait(short.uid)).outcome.reason == "Succeeded"
        for seen in (before, after, short):
            await host.reclaim(seen.uid)
    assert world.witness("node-0").containers(INSTALLATION) == []
