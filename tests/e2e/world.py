"""A whole Isolet on real parts, as a user and as a witness see it."""

import contextlib
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isolet_stack.stack import ROOT, Stack
from witness import Witness, loops_below

Object = dict[str, Any]


@dataclass
class World:
    """The stack, one namespace of the test's own, and those who look on."""

    stack: Stack
    namespace: str = "default"
    images: dict[str, str] = field(default_factory=dict)

    # As a user.

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """kubectl in the test's namespace."""
        return self.stack.kube("-n", self.namespace, *arguments, stdin=stdin, check=check)

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """What a kubectl call that must fail says."""
        done = subprocess.run(
            [*self._kubectl, "-n", self.namespace, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode != 0, done.stdout
        return done.stderr

    @property
    def _kubectl(self) -> list[str]:
        return [self.stack.kubectl, "--kubeconfig", str(self.stack.kubeconfig)]

    def apply(self, document: Object) -> None:
        """kubectl apply."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def get(self, kind: str, name: str) -> Object | None:
        """The object, or None."""
        out = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(out) if out.strip() else None

    def patch(self, kind: str, name: str, change: Object, check: bool = True) -> str:
        """A merge patch."""
        return self.kubectl(
            "patch", kind, name, "--type=merge", "-p", json.dumps(change), check=check
        )

    def delete(self, kind: str, name: str, wait: bool = False) -> None:
        """kubectl delete."""
        self.kubectl("delete", kind, name, "--ignore-not-found", f"--wait={str(wait).lower()}")

    def execution(self, name: str, *command: str, **spec: Any) -> Object:
        """Apply an Execution with small bounds; returns what was applied."""
        document = an_execution(name, *command, **spec)
        self.apply(document)
        return document

    def process(self, name: str, **spec: Any) -> None:
        """Apply a Process; with neither template nor executionRef in a small sandbox of its own."""
        self.apply(a_process(name, **spec))

    def until(
        self, kind: str, name: str, reached: Callable[[Object | None], Any], seconds: float = 150
    ) -> Object:
        """Wait until the object is as asked; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.get(kind, name)
            if reached(seen):
                return seen or {}
            if time.monotonic() > deadline:
                shown = json.dumps((seen or {}).get("status"), indent=1)
                raise AssertionError(f"{kind}/{name} is not as awaited after {seconds} s: {shown}")
            time.sleep(0.1)

    def finished(self, name: str, seconds: float = 150, kind: str = "execution") -> Object:
        """Wait for the end of an Execution, or of another kind; returns its status."""
        return self.until(kind, name, is_finished, seconds)["status"]

    def running(self, name: str, seconds: float = 150) -> Object:
        """Wait until an Execution runs; returns the object."""
        return self.until(
            "execution", name, lambda o: o and o.get("status", {}).get("startTime"), seconds
        )

    def gone(self, kind: str, name: str, seconds: float = 150) -> None:
        """Wait until there is no such object."""
        self.until(kind, name, lambda o: o is None, seconds)

    @contextlib.contextmanager
    def in_namespace(self) -> Iterator["World"]:
        """A namespace of the test's own; all in it is gone at the end."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.stack.kube("create", "namespace", name)
        try:
            yield World(self.stack, name, self.images)
        finally:
            # The kinds first and waited for; the namespace itself goes in its own time.
            for kind in ("executions", "processes", "checkpoints"):
                self.stack.kube("-n", name, "delete", kind, "--all", "--timeout=120s")
            self.stack.kube("delete", "namespace", name, "--wait=false")

    # As a witness.

    def witness(self, node: str) -> Witness:
        """The engine of a node, asked without any code of ours."""
        index = int(node.removeprefix("node-"))
        return Witness(str(self.stack.layout.node(index).socket))

    def left_on(self, node: str) -> dict[str, list[str]]:
        """What carries our labels or lies in our folders on a node."""
        witness, installation = self.witness(node), self.stack.installation
        folder = self.stack.agent_folder(node)
        launches = self.stack.agent_run(node) / "launch"
        return {
            "containers": witness.containers(installation),
            "volumes": witness.volumes(installation),
            "loops": loops_below(folder),
            "disks": [p.name for p in (folder / "disks" / "ready").glob("*.img")],
            "launches": [p.name for p in launches.glob("*") if p.name != ".staging"],
            "copies": [f"{p.parent.name}/{p.name}" for p in (folder / "checkpoints").glob("*/*")],
            "trees": [p.name for p in (folder / "trees").glob("*")],
        }

    def nothing_left(self, seconds: float = 150) -> None:
        """Wait until no node has anything of ours."""
        empty: dict[str, list[str]] = {
            "containers": [],
            "volumes": [],
            "loops": [],
            "disks": [],
            "launches": [],
            "copies": [],
            "trees": [],
        }
        deadline = time.monotonic() + seconds
        while True:
            left = {node: self.left_on(node) for node in self.stack.nodes()}
            if all(found == empty for found in left.values()):
                return
            assert time.monotonic() < deadline, left
            time.sleep(0.2)

    def starts(self, since: float) -> list[str]:
        """Names of our containers that any engine started since a wall time."""
        found = []
        for node in self.stack.nodes():
            found += self.witness(node).starts(since, time.time() + 1, self.stack.installation)
        return [name for name in found]

    def audit(self) -> Iterator[Object]:
        """The API server's own record of every request."""
        with Path(self.stack.layout.audit_log).open() as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


def is_finished(seen: Object | None) -> bool:
    """Whether an Execution has its outcome."""
    return condition(seen, "Finished").get("status") == "True"


def condition(seen: Object | None, kind: str) -> Object:
    """One condition, empty if it is not there."""
    conditions = (seen or {}).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def an_execution(name: str, *command: str, **spec: Any) -> Object:
    """An Execution with small bounds; keywords are fields of its spec."""
    base: Object = {
        "className": "test",
        "image": os.environ["ISOLET_IMAGE_SHELL"],
        "resources": {"cpu": "500m", "memory": "64Mi", "workspace": "16Mi"},
        "workspace": {"medium": "Memory"},
        "activeDeadlineSeconds": 600,
    }
    if command:
        base["command"] = list(command)
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "Execution",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def a_process(name: str, **spec: Any) -> Object:
    """A Process; keywords are fields of its spec."""
    if "executionRef" not in spec:
        spec = {"template": a_template(), **spec}
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "Process",
        "metadata": {"name": name},
        "spec": spec,
    }


def a_template(**template: Any) -> Object:
    """A small sandbox of its own for a Process."""
    base: Object = {
        "className": "test",
        "image": os.environ["ISOLET_IMAGE_SHELL"],
        "resources": {"cpu": "500m", "memory": "64Mi", "workspace": "16Mi"},
    }
    return {**base, **template}


def a_class(name: str = "test", **spec: Any) -> Object:
    """A class that allows what the tests need."""
    images = [v for k, v in os.environ.items() if k.startswith("ISOLET_IMAGE_")]
    base: Object = {
        "namespaceSelector": {},
        "images": {"allowed": [*images, "sha256:" + "0" * 64, "isolet/shell:dev"]}
        | {"resolveTags": True},
        "resources": {
            "default": {"cpu": "500m", "memory": "64Mi", "workspace": "16Mi", "tmp": "4Mi"}
            | {"shm": "1Mi", "pids": 64, "output": "1Mi"},
            "maximum": {"cpu": "4", "memory": "2Gi", "workspace": "1Gi", "tmp": "64Mi"}
            | {"shm": "64Mi", "pids": 512, "output": "64Mi"},
        },
        "env": {"allowSecretRefs": True},
        "deadlines": {"defaultSeconds": 600, "maximumSeconds": 3600},
        "workspace": {"defaultRetainSeconds": 0, "maximumRetainSeconds": 600}
        | {"gitRepositories": ["samples/project", "samples/none", "elsewhere"]},
    }
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": "ExecutionClass",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


__all__ = [
    "ROOT",
    "World",
    "a_class",
    "a_process",
    "a_template",
    "an_execution",
    "condition",
    "is_finished",
]
