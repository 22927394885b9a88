"""Where everything of one cluster is kept, and what is remembered about it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ClusterError, say

HACK = Path(__file__).resolve().parents[2]
LOCK_SECONDS = 900
# A unix socket's path has at most 107 bytes; the longest ones we cause are a few folders down.
LONGEST_BELOW_RUN = len("/node-00/exec/containerd/containerd-debug.sock")
LONGEST_BELOW_DATA = len("/node-00/tmp/pty1234567890/pty.sock")


@dataclass(frozen=True)
class Node:
    """The files of one node daemon."""

    name: str
    run: Path
    data: Path

    @property
    def part(self) -> str:
        return "dockerd-" + self.name.removeprefix("node-")

    @property
    def socket(self) -> Path:
        return self.run / "docker.sock"

    @property
    def pid_file(self) -> Path:
        return self.run / "docker.pid"

    @property
    def exec_root(self) -> Path:
        return self.run / "exec"

    @property
    def containerd_pid_file(self) -> Path:
        return self.exec_root / "containerd" / "containerd.pid"

    @property
    def bundles(self) -> Path:
        return self.exec_root / "containerd" / "daemon" / "io.containerd.runtime.v2.task" / "moby"

    @property
    def data_root(self) -> Path:
        return self.data / "docker"


@dataclass(frozen=True)
class Layout:
    """The folders of one cluster: sockets, pid files and logs in `run`, what is big in `data`."""

    name: str
    run: Path
    data: Path

    @classmethod
    def of(cls, name: str) -> Layout:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,19}", name):
            raise ClusterError(f"cluster name {name!r}: want 1 to 20 of a-z, 0-9 and -")
        run = Path(os.environ.get("ISOLET_RUN_ROOT") or "/run/isolet") / name
        data = Path(os.environ.get("ISOLET_DATA_ROOT") or "/var/lib/isolet-hack") / name
        for variable, path, below in (
            ("ISOLET_RUN_ROOT", run, LONGEST_BELOW_RUN),
            ("ISOLET_DATA_ROOT", data, LONGEST_BELOW_DATA),
        ):
            if not path.is_absolute():
                raise ClusterError(f"{variable} must be an absolute path, not {path.parent}")
            if len(str(path)) + below > 107:
                raise ClusterError(
                    f"{path} is too long: sockets below it would pass the limit of 107 bytes; "
                    f"set {variable} to a shorter folder"
                )
        return cls(name, Path(os.path.realpath(run)), Path(os.path.realpath(data)))

    @property
    def state_file(self) -> Path:
        return self.data / "state.json"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.data / "audit.log"

    @property
    def pki(self) -> Path:
        return self.data / "pki"

    @property
    def images_file(self) -> Path:
        return self.run / "images.json"

    def log(self, part: str) -> Path:
        return self.run / "logs" / f"{part}.log"

    def node(self, index: int) -> Node:
        name = f"node-{index}"
        return Node(name, self.run / name, self.data / name)

    def nodes(self, count: int) -> list[Node]:
        return [self.node(index) for index in range(count)]

    def nodes_on_disk(self) -> list[Node]:
        """Every node that left a folder, whatever the state file says."""
        names = set()
        for folder in (self.run, self.data):
            if folder.is_dir():
                names |= {p.name for p in folder.iterdir() if re.fullmatch(r"node-\d+", p.name)}
        return [self.node(int(name.removeprefix("node-"))) for name in sorted(names)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One `up`, `down` or `images` at a time; the kernel lets go when its holder dies."""
        self.run.parent.mkdir(parents=True, exist_ok=True)
        path = self.run.parent / f".{self.name}.lock"
        with path.open("w") as lock:
            deadline = time.monotonic() + LOCK_SECONDS
            told = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ClusterError(f"{path} was held for {LOCK_SECONDS} s") from None
                    if not told:
                        say(f"another hack/cluster works on {self.name}, waiting for it")
                        told = True
                    time.sleep(0.2)
            yield


@dataclass
class State:
    """What `up` has started. Written before and after each step, so a killed `up` is understood."""

    nodes: int = 0
    kube: str = "none"  # none | own | external
    external_kubeconfig: str = ""
    ending: bool = False  # `down` has begun: only `down` may follow
    ports: dict[str, int] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, layout: Layout) -> State | None:
        try:
            return cls(**json.loads(layout.state_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ClusterError(
                f"{layout.state_file} cannot be read ({error}); `hack/cluster down` removes it all"
            ) from None

    def save(self, layout: Layout) -> None:
        write_file(layout.state_file, json.dumps(vars(self), indent=1) + "\n")


def write_file(path: Path, text: str, mode: int = 0o600) -> None:
    """Whole or not at all: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.chmod(mode)
    aside.replace(path)
