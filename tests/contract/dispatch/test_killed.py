"""An agent is killed at each of its own steps; whatever it was doing, the run happens at most once.

The judges are not the agent's: the file that the runner writes to outside, the process that held
the slot, and the one word on the outcome that was ever written.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isolet.agent.dispatch.steps import DispatchStep
from isolet.base.steps import ENV_AT, ENV_FILE
from isolet.wire.dispatch import DispatchLine
from isolet.wire.execution import Outcome
from tests.arch import tree
from tests.contract.dispatch import process_slots
from tests.contract.dispatch.served import UID

BEFORE_OWNERSHIP = {DispatchStep.ASSIGN_BEFORE}
IN_DOUBT = {
    DispatchStep.ASSIGN_AFTER,
    DispatchStep.BEGIN_AFTER,
    DispatchStep.DELIVER_BEFORE,
}
"""Owned, and nothing was handed over: it never runs, and nobody says that it succeeded."""


class Node:
    """A folder with one warm slot; agents come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = folder / "outside"
        steps = [{"echo": 1}, {"touch": str(self.outside)}, {"sleep": 0.3}, {"echo": 2}]
        document = {"run_id": "run", "secret": "hunter2", "payload": steps}
        (folder / "document").write_text(json.dumps(document))
        self.slot = process_slots.start(folder / "slots" / "slot-1")

    def agent(self, *what: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.contract.dispatch.served", str(self.folder), *what],
            cwd=tree.ROOT,
            env={**os.environ, "PYTHONPATH": f"{tree.ROOT}/controller:{tree.ROOT}", **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def times_run(self) -> int:
        return len(self.outside.read_text().splitlines()) if self.outside.exists() else 0

    def concluded(self) -> Outcome | None:
        path = self.folder / "concluded" / UID
        return Outcome.model_validate_json(path.read_text()) if path.exists() else None

    def close(self) -> None:
        for path in (self.folder / "slots").glob("*/pid"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.slot.wait(60)


@pytest.fixture
def node(tmp_path: Path):
    made = Node(tmp_path)
    yield made
    made.close()


def lines(output: str) -> list[DispatchLine]:
    return [DispatchLine.model_validate_json(line) for line in output.splitlines()]


def test_unharmed_it_runs_once_and_reaches_each_step(node: Node, tmp_path: Path) -> None:
    noted = tmp_path / "steps"
    note = {ENV_AT: "*", "ISOLET_STOP_ACTION": "note", ENV_FILE: str(noted)}
    told = lines(node.agent("run", **note).stdout)
    assert told[-1].ended is not None
    assert told[-1].ended.succeeded
    assert node.times_run() == 1
    assert node.slot.wait(60) == 0
    assert set(noted.read_text().split()) == set(DispatchStep) - {DispatchStep.STOP_BEFORE}


@pytest.mark.parametrize("step", DispatchStep, ids=str)
def test_a_kill_at_any_step_loses_nothing_and_repeats_nothing(
    node: Node, step: DispatchStep
) -> None:
    what = "cancel" if step is DispatchStep.STOP_BEFORE else "run"
    # What is in doubt waits for its startup budget; what ran must not meet it on a busy machine.
    startup = "2" if step in IN_DOUBT else "60"
    killed = node.agent(what, startup, **{ENV_AT: step})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = node.agent("resume")
    assert resumed.returncode == 0, resumed.stderr
    outcome = node.concluded()
    if step in BEFORE_OWNERSHIP:
        assert (outcome, node.times_run()) == (None, 0)
        return
    assert outcome is not None
    assert node.slot.wait(60) == 0, "every process of it is gone"
    if step in IN_DOUBT:
        assert (outcome.reason, node.times_run()) == ("StartUnconfirmed", 0)
    else:
        assert (outcome.reason, node.times_run()) == ("Succeeded", 1)
        told = lines(killed.stdout) + lines(resumed.stdout)
        sequences = {line.event.sequence for line in told if line.event}
        assert sequences in ({1, 2, 3, 4, 5}, set()), "an ended run may have been told before"
    kept = [p.read_bytes() for p in (node.folder / "spool").rglob("*") if p.is_file()]
    assert not any(b"hunter2" in content for content in kept)


def test_what_was_told_of_an_end_stays_true(node: Node) -> None:
    killed = node.agent("run", **{ENV_AT: DispatchStep.CONCLUDE_AFTER})
    assert killed.returncode == -signal.SIGKILL
    before = node.concluded()
    node.agent("resume")
    assert node.concluded() == before
    assert node.times_run() == 1
