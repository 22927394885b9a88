"""What each part is: how it is started, how it is asked whether it is well."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import leftovers, pki, probe
from .errors import ClusterError, log_tail, say
from .layout import Layout, Node, State, write_file
from .processes import Process, find_part, spawn

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "resourcequota-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-approving-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "deployment-controller",
    "replicaset-controller",
)
AUDIT_POLICY = """\
# Every write, with its user and without its body. Reads are left out: they change nothing.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    verbs: [get, list, watch]
  - level: Metadata
"""
# How long a part that was ready may take to answer before it is taken for hung and started anew.
HUNG_SECONDS = 10


@dataclass(frozen=True)
class Part:
    """One process of the cluster."""

    name: str
    program: str
    ready_seconds: int
    argv: Callable[[], list[str]]
    ready: Callable[[], bool]
    address: Callable[[], str]
    ports: tuple[str, ...] = ()
    prepare: Callable[[], None] = lambda: None
    needs: tuple[str, ...] = ()  # ports of other parts that it learns at its start


class Parts:
    """The parts of one cluster and the work of keeping them up."""

    def __init__(self, layout: Layout, state: State, tools: Path) -> None:
        self.layout = layout
        self.state = state
        self.tools = tools

    # --- which ones there are

    def kube(self) -> list[Part]:
        return [self._etcd(), self._apiserver(), self._controller_manager()]

    def nodes(self) -> list[Part]:
        return [self._dockerd(node) for node in self.layout.nodes(self.state.nodes)]

    def all(self) -> list[Part]:
        return [*(self.kube() if self.state.kube == "own" else []), *self.nodes()]

    def named(self, name: str) -> Part:
        for part in self.all():
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.all())
        raise ClusterError(f"cluster {self.layout.name} has no {name}; it has: {known}")

    # --- their life

    def process(self, part: Part) -> Process | None:
        """Its live process: the recorded one, or one whose start was never recorded."""
        recorded = Process.of(self.state.parts.get(part.name))
        if recorded and recorded.alive():
            return recorded
        return find_part(self.layout.run, part.name, part.program)

    def healthy(self, part: Part, process: Process) -> bool:
        """Whether it answers; one that a killed `up` has just started gets the time to."""
        patience = max(HUNG_SECONDS, part.ready_seconds - process.age())
        deadline = time.monotonic() + patience
        while True:
            if part.ready():
                return True
            if time.monotonic() > deadline or not process.alive():
                return False
            time.sleep(0.1)

    def begin(self, part: Part) -> bool:
        """Starts the part unless it is well already. True when it was started now."""
        process = self.process(part)
        if process:
            if self.outdated(part):
                say(f"{part.name}: pid {process.pid} knows an old address, ending it")
            elif self.healthy(part, process):
                say(f"{part.name}: running (pid {process.pid})")
                self._record(part, process)
                return False
            else:
                say(f"{part.name}: pid {process.pid} does not answer, ending it")
            if not process.kill():
                raise ClusterError(f"{part.name}: pid {process.pid} does not die of SIGKILL")
        self._start(part, again=part.name in self.state.parts)
        return True

    def outdated(self, part: Part) -> bool:
        """Whether another part has moved to another port since this one was started."""
        known = self.state.parts.get(part.name, {}).get("needs")
        return known is not None and known != self._needs(part)

    def _needs(self, part: Part) -> dict[str, int]:
        return {use: self.state.ports[use] for use in part.needs if use in self.state.ports}

    def await_ready(self, part: Part) -> None:
        """Waits until it answers. One that ends before is started a second time.

        Another program may have taken its port meanwhile, which is then replaced; a dockerd gives
        up where its containerd takes more than a few seconds, as on a machine that is busy.
        """
        started = time.monotonic()
        retried = False
        while not part.ready():
            process = Process.of(self.state.parts.get(part.name))
            if process is None or not process.alive():
                if retried:
                    raise self._failed(part, "ended before it was ready")
                retried, started = True, time.monotonic()
                self._start(part, again=True)
            if time.monotonic() - started > part.ready_seconds:
                raise self._failed(part, f"was not ready after {part.ready_seconds} s")
            time.sleep(0.05)
        say(f"{part.name}: ready after {time.monotonic() - started:.1f} s")

    def _start(self, part: Part, again: bool) -> None:
        self._choose_ports(part)
        part.prepare()
        log = self.layout.log(part.name)
        say(f"{part.name}: {'starting it again' if again else 'starting'}")
        self._record(
            part, spawn(self.layout.run, part.name, part.argv(), log, self._environment(part))
        )

    def _record(self, part: Part, process: Process) -> None:
        self.state.parts[part.name] = {**vars(process), "needs": self._needs(part)}
        self.state.save(self.layout)

    def _choose_ports(self, part: Part) -> None:
        """Its old ports when they are free, since clients know them; else others."""
        ports = self.state.ports
        for use in part.ports:
            if use in ports and probe.port_is_free(ports[use]):
                continue
            if use in ports:
                say(
                    f"{part.name}: port {ports[use]} is taken by another program, using another one"
                )
            ports[use] = probe.free_port(ports.values())
        self.state.save(self.layout)

    def _failed(self, part: Part, what: str) -> ClusterError:
        log = self.layout.log(part.name)
        return ClusterError(f"{part.name} {what}. The end of its log {log}:\n{log_tail(log)}")

    def _environment(self, part: Part) -> dict[str, str]:
        """Little and always the same: a caller's secrets do not reach the daemons."""
        environment = {"PATH": f"{self.tools}:{SYSTEM_PATH}", "HOME": "/root", "LANG": "C.UTF-8"}
        if part.program == "dockerd":
            # containerd leaves copies of checkpoints there; `down` removes this one.
            node = self.layout.node(int(part.name.removeprefix("dockerd-")))
            environment["TMPDIR"] = str(node.data / "tmp")
        return environment

    # --- etcd

    def _etcd(self) -> Part:
        ports = self.state.ports

        def argv() -> list[str]:
            client, peer = (f"http://127.0.0.1:{ports[use]}" for use in ("etcd", "etcd-peer"))
            return [
                str(self.tools / "etcd"),
                f"--name={self.layout.name}",
                f"--data-dir={self.layout.data / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={self.layout.name}={peer}",
                # Survives the death of any process; only a crash of the machine could lose writes.
                "--unsafe-no-fsync",
                "--logger=zap",
                "--log-level=warn",
            ]

        def ready() -> bool:
            body = probe.http_get(ports["etcd"], "/health") if "etcd" in ports else None
            return body is not None and json.loads(body).get("health") == "true"

        return Part(
            "etcd",
            "etcd",
            30,
            argv,
            ready,
            lambda: f"127.0.0.1:{ports.get('etcd')}",
            ("etcd", "etcd-peer"),
            lambda: (self.layout.data / "etcd").mkdir(parents=True, exist_ok=True, mode=0o700),
        )

    # --- the API server

    def _apiserver(self) -> Part:
        ports, pki_folder = self.state.ports, self.layout.pki

        def prepare() -> None:
            pki.ensure(pki_folder)
            write_file(self.layout.data / "audit-policy.yaml", AUDIT_POLICY)
            self._write_kubeconfig(self.layout.kubeconfig, "cluster-admin", "admin", token=True)

        def ready() -> bool:
            if "apiserver" not in ports or not pki_folder.is_dir():
                return False
            token = (pki_folder / "admin.token").read_text()
            return (
                probe.https_get(ports["apiserver"], "/readyz", pki_folder / "ca.crt", token)
                is not None
            )

        return Part(
            "apiserver",
            "kube-apiserver",
            120,
            self._apiserver_argv,
            ready,
            lambda: f"https://127.0.0.1:{ports.get('apiserver')}",
            ("apiserver",),
            prepare,
            ("etcd",),
        )

    def _apiserver_argv(self) -> list[str]:
        folder, ports = self.layout.pki, self.state.ports
        return [
            str(self.tools / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
            f"--secure-port={ports['apiserver']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            # A loopback address is not allowed in the endpoints of the Service "kubernetes".
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.layout.run / 'apiserver-certs'}",
            f"--tls-cert-file={folder / 'apiserver.crt'}",
            f"--tls-private-key-file={folder / 'apiserver.key'}",
            f"--client-ca-file={folder / 'ca.crt'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'service-account.key'}",
            f"--service-account-signing-key-file={folder / 'service-account.key'}",
            f"--audit-policy-file={self.layout.data / 'audit-policy.yaml'}",
            f"--audit-log-path={self.layout.audit_log}",
            "--audit-log-maxsize=1024",
            "--audit-log-maxbackup=2",
            f"--requestheader-client-ca-file={folder / 'front-proxy-ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-uid-headers=X-Remote-Uid",
            f"--proxy-client-cert-file={folder / 'front-proxy-client.crt'}",
            f"--proxy-client-key-file={folder / 'front-proxy-client.key'}",
            "--enable-aggregator-routing=true",
            "--profiling=false",
        ]

    def _write_kubeconfig(
        self, path: Path, user: str, certificate: str, token: bool = False
    ) -> None:
        folder = self.layout.pki
        if token:
            credentials = f"token: {(folder / 'admin.token').read_text()}"
        else:
            credentials = (
                f"client-certificate: {folder / certificate}.crt\n"
                f"    client-key: {folder / certificate}.key"
            )
        name = f"isolet-{self.layout.name}"
        write_file(
            path,
            f"""\
apiVersion: v1
kind: Config
current-context: {name}
clusters:
- name: {name}
  cluster:
    server: https://127.0.0.1:{self.state.ports["apiserver"]}
    certificate-authority: {folder / "ca.crt"}
users:
- name: {user}
  user:
    {credentials}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {user}
""",
        )

    # --- the controllers

    def _controller_manager(self) -> Part:
        ports, folder = self.state.ports, self.layout.pki
        kubeconfig = self.layout.data / "controller-manager.kubeconfig"

        def argv() -> list[str]:
            return [
                str(self.tools / "kube-controller-manager"),
                f"--kubeconfig={kubeconfig}",
                "--leader-elect=false",
                f"--controllers={','.join(CONTROLLERS)}",
                f"--service-account-private-key-file={folder / 'service-account.key'}",
                f"--root-ca-file={folder / 'ca.crt'}",
                f"--cluster-signing-cert-file={folder / 'ca.crt'}",
                f"--cluster-signing-key-file={folder / 'ca.key'}",
                "--bind-address=127.0.0.1",
                f"--secure-port={ports['controller-manager']}",
                f"--cert-dir={self.layout.run / 'controller-manager-certs'}",
                "--profiling=false",
            ]

        def ready() -> bool:
            port = ports.get("controller-manager")
            return port is not None and probe.https_get(port, "/healthz", None) is not None

        return Part(
            "controller-manager",
            "kube-controller-manager",
            60,
            argv,
            ready,
            lambda: f"https://127.0.0.1:{ports.get('controller-manager')}",
            ("controller-manager",),
            lambda: self._write_kubeconfig(kubeconfig, "controller-manager", "controller-manager"),
            ("apiserver",),
        )

    # --- the node daemons

    def _dockerd(self, node: Node) -> Part:
        config = node.run / "daemon.json"

        def prepare() -> None:
            for folder in (node.run, node.data / "tmp", node.data_root):
                folder.mkdir(parents=True, exist_ok=True)
            leftovers.forget_stale_pid_files(node)
            write_file(config, json.dumps(self._daemon_config(node), indent=1) + "\n")

        return Part(
            node.part,
            "dockerd",
            90,
            lambda: [str(self.tools / "dockerd"), f"--config-file={config}"],
            lambda: probe.unix_get(node.socket, "/_ping") is not None,
            lambda: f"unix://{node.socket}",
            (),
            prepare,
        )

    def _daemon_config(self, node: Node) -> dict[str, object]:
        config: dict[str, object] = {
            "data-root": str(node.data_root),
            "exec-root": str(node.exec_root),
            "pidfile": str(node.pid_file),
            "hosts": [f"unix://{node.socket}"],
            "storage-driver": "overlay2",
            "live-restore": True,
            # No network of Docker's own: sandboxes have none, and the machine keeps its rules.
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "ip-masq": False,
            "userland-proxy": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "experimental": True,  # memory checkpoints
            "log-driver": "local",
            "log-opts": {"max-size": "64m", "max-file": "2"},
            "init-path": os.path.realpath(self.tools / "docker-init"),
            "runtimes": {
                "runsc": {
                    "path": os.path.realpath(self.tools / "runsc"),
                    "runtimeArgs": ["--network=none", "--host-uds=open"],
                }
            },
        }
        if docker_major(self.tools) < 23:
            # Otherwise every daemon of the machine takes its id from one file in /etc/docker.
            config["deprecated-key-path"] = str(node.data / "key.json")
        return config

    def check_node(self, node: Node) -> None:
        """A daemon that answers can still be the wrong one for us."""
        info = probe.engine_info(node.socket)
        if info is None:
            raise ClusterError(
                f"{node.part} stopped answering; its log: {self.layout.log(node.part)}"
            )
        wrong = [
            name
            for name, right in (
                ("storage driver overlay2", info.get("Driver") == "overlay2"),
                ("runtime runsc", "runsc" in info.get("Runtimes", {})),
                ("live-restore", info.get("LiveRestoreEnabled") is True),
            )
            if not right
        ]
        if wrong:
            log = self.layout.log(node.part)
            raise ClusterError(f"{node.part} runs without: {', '.join(wrong)}; its log: {log}")


def docker_major(tools: Path) -> int:
    done = subprocess.run(
        [str(tools / "dockerd"), "--version"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    digits = done.stdout.removeprefix("Docker version ").split(".")[0]
    return int(digits) if digits.isdigit() else 0
