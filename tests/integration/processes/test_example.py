"""The example that a user can start, run as it is."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_process(socket: str, shell: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "process.py"), socket, shell],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "report: running",
        "report: exited 0 done",
        "report: out/lines.txt 3 sha256:1121cfc",
        "stubborn: cancelled Cancelled",
        "once: 0 42",
        "disposed: report",
        "disposed: stubborn",
        "reconciled: 2 matched, 0 orphans",
        "pruned: 2",
    ]
