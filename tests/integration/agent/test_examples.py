"""The examples that a user can start, run as they are."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_host(socket: str, shell: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "host.py"), socket, shell],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "session: 0 6",
        "session: CommandTimeout",
        "session: nothing left",
        "rewind: good",
        "once: NonZeroExit 3 65532",
        "once: NonZeroExit 3 65532",
    ]
