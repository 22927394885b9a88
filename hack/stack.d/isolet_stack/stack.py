"""Certificates, accounts, agents, operators: made, started, killed and ended by process id."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isolet_cluster.errors import ClusterError, say
from isolet_cluster.layout import Layout, State, write_file
from isolet_cluster.probe import free_port
from isolet_cluster.processes import Process, spawn

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "isolet-system"
READY_SECONDS = 180
END_SECONDS = 30
TOKEN_SECONDS = "86400s"


@dataclass
class Stack:
    """Everything of ours on one cluster; what was started is remembered in a file beside it."""

    layout: Layout
    kubeconfig: Path
    kubectl: str
    installation: str = "isolet"
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> Stack:
        """The stack on the running cluster of that name."""
        layout = Layout.of(name)
        state = State.load(layout)
        if state is None or not state.nodes:
            raise ClusterError(f"cluster {name} is not up: run hack/cluster up --name {name}")
        external = state.kube == "external"
        kubeconfig = Path(state.external_kubeconfig) if external else layout.kubeconfig
        stack = cls(layout, kubeconfig, os.environ.get("ISOLET_KUBECTL", "kubectl"))
        if stack.file.exists():
            kept = json.loads(stack.file.read_text())
            stack.parts, stack.ports = kept["parts"], kept["ports"]
        return stack

    @property
    def file(self) -> Path:
        """What we have started."""
        return self.layout.data / "stack.json"

    @property
    def pki(self) -> Path:
        """Certificates of the installation."""
        return self.layout.data / "isolet-pki"

    @property
    def operator_kubeconfig(self) -> Path:
        """Credentials of the operator's own service account."""
        return self.layout.data / "operator.kubeconfig"

    def nodes(self) -> list[str]:
        """Names of the nodes."""
        state = State.load(self.layout)
        return [node.name for node in self.layout.nodes(state.nodes if state else 0)]

    def save(self) -> None:
        """Remember what runs."""
        write_file(self.file, json.dumps({"parts": self.parts, "ports": self.ports}) + "\n")

    # Kubernetes.

    def kube(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the cluster's administrator."""
        done = subprocess.run(
            [self.kubectl, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def install(self) -> None:
        """CRDs, admission policies, the operator's account, certificates, node objects."""
        for folder in ("crds", "deploy/admission", "deploy/operator"):
            self.kube("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / folder))
        self.kube("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
        self._make_operator_kubeconfig()
        self._make_certificates()
        for name in self.nodes():
            self.register(name)

    def register(self, name: str) -> None:
        """Tell the operator of an agent."""
        document = {
            "apiVersion": "isolet.dev/v1alpha1",
            "kind": "ExecutionNode",
            "metadata": {"name": name},
            "spec": {"endpoint": f"https://127.0.0.1:{self.port(name)}"},
        }
        self.kube("apply", "-f", "-", stdin=json.dumps(document))

    def _make_operator_kubeconfig(self) -> None:
        token = self.kube(
            "create", "token", "isolet-operator", "-n", NAMESPACE, f"--duration={TOKEN_SECONDS}"
        ).strip()
        config = json.loads(self.kube("config", "view", "--raw", "--minify", "-o", "json"))
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        write_file(self.operator_kubeconfig, json.dumps(config))

    def _make_certificates(self) -> None:
        if not (self.pki / "ca.crt").exists():
            self.isolet("pki", "init", str(self.pki))
        for name in self.nodes():
            if not (self.node_pki(name) / "tls.crt").exists():
                self.isolet("pki", "node", str(self.pki), name, "--address", "127.0.0.1")
        if not (self.operator_pki / "tls.crt").exists():
            self.isolet("pki", "client", str(self.pki), "isolet:operator")

    def node_pki(self, name: str) -> Path:
        """Certificate, key and authority of one agent."""
        return self.pki / "nodes" / name

    @property
    def operator_pki(self) -> Path:
        """Certificate, key and authority of the operators."""
        return self.pki / "clients" / "operator"

    def isolet(self, *arguments: str) -> str:
        """Run one of our own commands to its end."""
        done = subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment({}),
        )
        if done.returncode != 0:
            raise ClusterError(f"isolet {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # Processes.

    @property
    def command(self) -> list[str]:
        """How Isolet is run from the tree."""
        return [sys.executable, "-m", "isolet"]

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Our environment with the source tree in front."""
        return {**os.environ, "PYTHONPATH": str(ROOT / "controller"), **extra}

    def port(self, name: str) -> int:
        """The agent's port on loopback: found free once, then kept.

        None that the kernel gives to others: while the agent is down nobody must take it.
        """
        if name not in self.ports:
            self.ports[name] = free_port(self.ports.values())
            self.save()
        return self.ports[name]

    def agent_folder(self, name: str) -> Path:
        """State of one agent; below the cluster's data, so that `hack/cluster down` clears it."""
        return self.layout.data / f"agent-{name}"

    def agent_run(self, name: str) -> Path:
        """Run folder of one agent."""
        return self.layout.run / f"agent-{name}"

    def start_agent(self, name: str, extra: Mapping[str, str] | None = None) -> None:
        """Start one node's agent."""
        node = self.layout.node(int(name.removeprefix("node-")))
        argv = [
            *(*self.command, "agent", "--node", name, "--installation", self.installation),
            *("--state-dir", str(self.agent_folder(name)), "--run-dir", str(self.agent_run(name))),
            *("--engine-socket", str(node.socket), "--tls-dir", str(self.node_pki(name))),
            *("--listen", f"127.0.0.1:{self.port(name)}"),
            *("--policy-file", str(self.policy_file())),
            *(("--config", str(self.agent_config)) if self.agent_config.exists() else ()),
        ]
        self._start(f"agent-{name}", argv, extra or {})

    def start_operator(self, name: str = "0", extra: Mapping[str, str] | None = None) -> None:
        """Start an operator; several may run, one leads."""
        argv = [
            *(*self.command, "operator", "--kubeconfig", str(self.operator_kubeconfig)),
            *("--namespace", NAMESPACE, "--installation", self.installation),
            *("--tls-dir", str(self.operator_pki), "--metrics-port", "0"),
        ]
        self._start(f"operator-{name}", argv, extra or {})

    @property
    def agent_config(self) -> Path:
        """What all agents are told beside their options, if the file is there: an object store."""
        return self.layout.data / "agent.toml"

    def policy_file(self) -> Path:
        """The nodes' policy: more CPU is promised than there is, since tests mostly wait."""
        path = self.layout.data / "policy.toml"
        if not path.exists():
            self.repositories.mkdir(parents=True, exist_ok=True)
            git = f'[git.roots]\nsamples = "{self.repositories}"\n'
            write_file(path, f"[capacity]\ncpu = 64\n{git}")
        return path

    @property
    def repositories(self) -> Path:
        """Where all nodes look for Git repository `samples/<name>`."""
        return self.layout.data / "git"

    def _start(self, part: str, argv: list[str], extra: Mapping[str, str]) -> None:
        if self.alive(part):
            return
        log = self.layout.log(part)
        started = spawn(self.layout.run, part, argv, log, self.environment(extra))
        self.parts[part] = vars(started).copy()
        self.save()

    def process(self, part: str) -> Process | None:
        """The process of a part, if one was ever started."""
        return Process.of(self.parts.get(part))

    def alive(self, part: str) -> bool:
        """Whether it runs."""
        process = self.process(part)
        return process is not None and process.alive()

    def kill(self, part: str) -> None:
        """SIGKILL."""
        process = self.process(part)
        if process is not None:
            process.kill()

    def end(self, part: str) -> None:
        """SIGTERM and wait; SIGKILL if that takes too long."""
        import signal

        process = self.process(part)
        if process is None or not process.alive():
            return
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while process.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.alive():
            say(f"{part} did not end in {END_SECONDS} s; killing it")
            process.kill()

    # All of it.

    def up(self) -> None:
        """Install, start what is not running, wait until every node is ready."""
        self.install()
        self.start_missing()
        self.wait_started()
        self.wait_ready()

    def start_missing(self) -> None:
        """Start the agents and the operator that do not run."""
        for name in self.nodes():
            self.start_agent(name)
        self.start_operator()

    def wait_started(self) -> None:
        """Until every agent listens: what an ExecutionNode says may be from before."""
        deadline = time.monotonic() + READY_SECONDS
        waiting = self.nodes()
        parts = [f"agent-{name}" for name in waiting] + ["operator-0"]
        while waiting:
            waiting = [name for name in waiting if not _listens(self.port(name))]
            self._demand_alive(parts)
            if waiting and time.monotonic() > deadline:
                raise ClusterError(
                    f"agent-{waiting[0]} does not listen on port {self.port(waiting[0])} in"
                    f" {READY_SECONDS} s: see {self.layout.log(f'agent-{waiting[0]}')}"
                )
            time.sleep(0.1)

    def _demand_alive(self, parts: Iterable[str]) -> None:
        for part in parts:
            if not self.alive(part):
                raise ClusterError(f"{part} has ended: see {self.layout.log(part)}")

    def wait_ready(self) -> None:
        """Until every ExecutionNode says Ready."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            left = [name for name in self.nodes() if not self._is_ready(name)]
            if not left:
                return
            self._demand_alive(self.parts)
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{', '.join(left)} not Ready in {READY_SECONDS} s: "
                    f"kubectl describe executionnode {left[0]}, and {self.layout.run}/logs"
                )
            time.sleep(0.3)

    def _is_ready(self, name: str) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        out = self.kube("get", "executionnode", name, "-o", f"jsonpath={path}", check=False)
        return out.strip() == "True"

    def down(self) -> None:
        """End operators, then agents and their watchdogs. Sandboxes go with the cluster."""
        for part in sorted(self.parts, reverse=True):
            self.end(part)
        for name in self.nodes():
            self._end_watchdog(name)
        self.file.unlink(missing_ok=True)

    def _end_watchdog(self, name: str) -> None:
        file = self.agent_run(name) / "watchdog.pid"
        try:
            kept = json.loads(file.read_text())
        except (OSError, ValueError):
            return
        process = Process.now(int(kept["pid"]))
        if process is not None and process.start == int(kept["start"]):
            process.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
