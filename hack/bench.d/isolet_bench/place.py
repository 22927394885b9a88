"""The cluster that is measured on, with Isolet on it: brought up, and ended if it was ours."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from isolet_cluster.errors import ClusterError, say
from isolet_cluster.layout import HACK, Layout, Node, State
from isolet_stack.stack import Stack

from .kube import Kube

NAMESPACE = "bench"
CLASS = "bench"
SHELL = "ISOLET_IMAGE_SHELL"


@dataclass
class Place:
    """Where things are."""

    stack: Stack
    kube: Kube
    image: str
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def up(cls, name: str, *, keep: bool) -> Iterator[Place]:
        layout = Layout.of(name)
        ours = State.load(layout) is None
        try:
            _hack("cluster", "up", "--name", name, "--nodes", "1")
            environment = _environment(name)
            os.environ.update(environment)
            stack = Stack.of(name)
            stack.up()
            kube = Kube.of(stack.kubeconfig)
            place = cls(stack, kube, environment[SHELL], environment)
            place.prepare()
            yield place
        finally:
            if ours and not keep:
                if (layout.data / "stack.json").exists():
                    Stack.of(name).down()
                _hack("cluster", "down", "--name", name)
            else:
                say(f"cluster {name} is left up: hack/stack down and hack/cluster down end it")

    @property
    def node(self) -> Node:
        return self.stack.layout.node(0)

    @property
    def agent_socket(self) -> str:
        return str(self.stack.agent_run("node-0") / "agent.sock")

    def prepare(self) -> None:
        """Namespace and class, and nothing left of an earlier run."""
        self.kube.ensure("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.kube.ensure("/apis/isolet.dev/v1alpha1/executionclasses", a_class(self.image))
        self.clear()

    def clear(self, seconds: float = 120) -> None:
        """Delete every Process and Execution and wait until they are gone."""
        deadline = time.monotonic() + seconds
        self.kube.delete_all(NAMESPACE)
        while left := self.kube.names(NAMESPACE):
            if time.monotonic() > deadline:
                raise ClusterError(f"{len(left)} objects are still there after {seconds:.0f} s")
            time.sleep(0.2)


def a_class(image: str, cpu: str = "500m") -> dict[str, object]:
    """A class that gives every bound, so that the runs say little."""
    bounds = {"cpu": cpu, "memory": "64Mi", "workspace": "16Mi", "tmp": "4Mi", "shm": "1Mi"}
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "ExecutionClass",
        "metadata": {"name": CLASS},
        "spec": {
            "namespaceSelector": {},
            "images": {"allowed": [image], "default": image},
            "resources": {
                "default": {**bounds, "pids": 64, "output": "1Mi"},
                "maximum": {**bounds, "pids": 64, "output": "1Mi"},
            },
            "deadlines": {"defaultSeconds": 600, "maximumSeconds": 600},
            "workspace": {"defaultRetainSeconds": 0, "maximumRetainSeconds": 600},
        },
    }


def an_execution(name: str, *command: str) -> dict[str, object]:
    """A session, or one command."""
    spec: dict[str, object] = {"className": CLASS, "workspace": {"medium": "Memory"}}
    if command:
        spec["command"] = list(command)
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "Execution",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def a_process(name: str, shell: str, session: str | None = None) -> dict[str, object]:
    """A command line, in a sandbox of its own or in a session; its output's end is shown."""
    where: dict[str, object] = {"template": {"className": CLASS, "workspace": {"medium": "Memory"}}}
    if session:
        where = {"executionRef": {"name": session}}
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "Process",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**where, "shell": shell, "output": {"statusTailBytes": 64}},
    }


def _hack(script: str, *arguments: str) -> None:
    done = subprocess.run([str(HACK / script), *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise ClusterError(f"hack/{script} {' '.join(arguments)} failed, see above")


def _environment(name: str) -> dict[str, str]:
    """What `hack/cluster env` exports."""
    done = subprocess.run(
        [str(HACK / "cluster"), "env", "--name", name], capture_output=True, text=True, check=True
    )
    words = [w for line in done.stdout.splitlines() for w in shlex.split(line)[1:]]
    values = dict(word.split("=", 1) for word in words)
    values["PATH"] = values["PATH"].replace("$PATH", os.environ["PATH"])
    return values
