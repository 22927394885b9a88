"""A witness that shares no code with the agent: it asks the engine through Docker's own client."""

import json
import subprocess
from pathlib import Path
from typing import Any


class Witness:
    """What the engine and the kernel say, for one daemon."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def docker(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["docker", "-H", f"unix://{self.socket}", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()

    def inspect(self, name: str) -> dict[str, Any]:
        return json.loads(self.docker("inspect", name))[0]

    def containers(self, installation: str) -> list[str]:
        label = f"label=dev.isolet.installation={installation}"
        out = self.docker("ps", "-aq", "--no-trunc", "--filter", label)
        return [i for i in out.splitlines() if "probe" not in self._kind(i)]

    def _kind(self, container: str) -> str:
        return self.docker(
            "inspect", "-f", '{{index .Config.Labels "dev.isolet.kind"}}', container, check=False
        )

    def volumes(self, installation: str) -> list[str]:
        label = f"label=dev.isolet.installation={installation}"
        return self.docker("volume", "ls", "-q", "--filter", label).splitlines()

    def starts(self, since: float, until: float, installation: str) -> list[str]:
        """Names of containers started in a span of wall time, one entry a start."""
        out = self.docker(
            "events",
            *("--since", f"{since:.6f}", "--until", f"{until:.6f}"),
            *("--filter", "event=start"),
            *("--filter", f"label=dev.isolet.installation={installation}"),
            *("--format", "{{json .}}"),
        )
        events = [json.loads(line) for line in out.splitlines()]
        return [event["Actor"]["Attributes"]["name"] for event in events]


def loops_below(folder: Path) -> list[str]:
    """Loop devices whose backing file lies below a folder."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().startswith(str(folder)):
                found.append(backing.parts[3])
        except OSError:
            continue
    return found
