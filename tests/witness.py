"""A witness that shares no code with the agent: it asks the engine through Docker's own client."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
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

    def containers(self, installation: str, *, status: str = "") -> list[str]:
        """Ids of all, or of those in a state, but the agent's own probes, which come and go."""
        # In one look: a probe that is gone by a second one would look like something else.
        out = self.docker(
            *("ps", "-a", "--no-trunc"),
            *("--filter", f"label=dev.isolet.installation={installation}"),
            *(("--filter", f"status={status}") if status else ()),
            *("--format", '{{.ID}} {{.Label "dev.isolet.kind"}}'),
        )
        found = [line.partition(" ") for line in out.splitlines()]
        return [container for container, _, kind in found if kind.strip() != "probe"]

    def volumes(self, installation: str) -> list[str]:
        label = f"label=dev.isolet.installation={installation}"
        return self.docker("volume", "ls", "-q", "--filter", label).splitlines()

    def starts(self, since: float, until: float, installation: str) -> list[str]:
        """Names of containers started in a span of wall time, one entry a start; no probes'."""
        out = self.docker(
            "events",
            *("--since", f"{since:.6f}", "--until", f"{until:.6f}"),
            *("--filter", "event=start"),
            *("--filter", f"label=dev.isolet.installation={installation}"),
            *("--format", "{{json .}}"),
        )
        started = [json.loads(line)["Actor"]["Attributes"] for line in out.splitlines()]
        return [of["name"] for of in started if of.get("dev.isolet.kind") != "probe"]


def files_below(*folders: Path) -> Iterator[Path]:
    """Every file there is; a folder that goes while it is looked through has none."""
    for folder in folders:
        for place, _, names in os.walk(folder):
            yield from (path for path in (Path(place, name) for name in names) if path.is_file())


def contents_below(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file and what is in it; one that goes while it is looked at is none."""
    for path in files_below(*folders):
        with contextlib.suppress(FileNotFoundError):
            yield path, path.read_bytes()


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
