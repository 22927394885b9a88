"""hack/cluster: real etcd, API server, controllers and node daemons on this machine.

  up [--nodes N] [--no-kube] [--no-images]   start what is not running, and say so
  down                                       end all of it and remove its folders
  status                                     one row for each part
  env                                        export lines for eval "$(hack/cluster env)"
  kill PART                                  SIGKILL one part (etcd, apiserver, controller-manager,
                                             dockerd-0, containerd-0, ...)
  restart PART                               kill it, if it lives, and start it again
  freeze PART, thaw PART                     SIGSTOP and SIGCONT

--name NAME says which cluster (default: $ISOLET_CLUSTER, else dev). Where ISOLET_KUBECONFIG names a
cluster of yours, that one is used and only the node daemons are started. Folders:
ISOLET_RUN_ROOT (/run/isolet) and ISOLET_DATA_ROOT (/var/lib/isolet-hack).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import leftovers
from .errors import ClusterError, say
from .layout import HACK, Layout, State
from .parts import Part, Parts
from .processes import Process

TOOLS_KUBE = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "openssl"]
TOOLS_NODE = [
    "dockerd",
    "docker",
    "docker-init",
    "containerd",
    "containerd-shim-runc-v2",
    "runc",
    "runsc",
    "mount",
    "losetup",
    "mkfs.ext4",
    "debugfs",
]


def tools_for(kube: str) -> list[str]:
    """What a cluster needs; one of node daemons only is spared the long build of Kubernetes."""
    return TOOLS_NODE + {"own": TOOLS_KUBE, "external": ["kubectl"], "none": []}[kube]


def tools_folder(names: list[str]) -> Path:
    """Installs and builds what is missing, with its progress on stderr."""
    done = subprocess.run(
        [str(HACK / "tools"), *names], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise ClusterError("hack/tools failed, see above")
    return Path(done.stdout.strip())


# --- up


def up(layout: Layout, arguments: argparse.Namespace) -> None:
    require_machine()
    external = os.environ.get("ISOLET_KUBECONFIG", "") or remembered_kubeconfig(layout)
    own_kube = not arguments.no_kube and not external
    tools = tools_folder(tools_for("own" if own_kube else "external" if external else "none"))
    started = time.monotonic()
    with layout.locked():
        state = State.load(layout)
        if state is None or state.ending:
            remove_remains(layout)
            state = State()
        choose(layout, state, arguments, own_kube, external)
        parts = Parts(layout, state, tools)
        recover(layout, parts)
        begin_all(parts)
    if external:
        check_external(tools, external)
    if not arguments.no_images:
        make_images(layout)
    say(f"cluster {layout.name} is up after {time.monotonic() - started:.1f} s")
    say(f'eval "$(hack/cluster env --name {layout.name})"')


def remembered_kubeconfig(layout: Layout) -> str:
    """Your own cluster, once named, stays the one until `down`."""
    state = State.load(layout)
    return state.external_kubeconfig if state and not state.ending else ""


def require_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterError("root is needed: node daemons mount, make cgroups and loop devices")
    if not any(Path("/sys/fs/cgroup").iterdir()):
        raise ClusterError("/sys/fs/cgroup is empty: mount the cgroup file systems first")


def remove_remains(layout: Layout) -> None:
    """Of a cluster whose `down` was cut short, or whose record is gone."""
    if layout.run.exists() or layout.data.exists():
        say(f"removing what an earlier cluster {layout.name} left")
        leftovers.purge(layout)


def choose(
    layout: Layout, state: State, arguments: argparse.Namespace, own_kube: bool, external: str
) -> None:
    """What the cluster is to have, written down before anything is started."""
    if external and state.kube == "own":
        raise ClusterError(
            f"cluster {layout.name} runs an API server of its own, but ISOLET_KUBECONFIG is set: "
            "`hack/cluster down` first, or use another --name"
        )
    if own_kube:
        state.kube = "own"
    elif external:
        if not Path(external).is_file():
            raise ClusterError(f"ISOLET_KUBECONFIG: {external} is not a file")
        state.kube, state.external_kubeconfig = "external", os.path.abspath(external)
    wanted = arguments.nodes or state.nodes or 1
    if wanted < state.nodes:
        say(f"cluster {layout.name} has {state.nodes} nodes and keeps them; for fewer, down first")
    state.nodes = max(wanted, state.nodes)
    state.save(layout)


def recover(layout: Layout, parts: Parts) -> None:
    """Puts right what a kill left: for a node with nothing alive, as after a reboot."""
    leftovers.let_go_on(layout)
    if not any(parts.process(part) for part in parts.all()) and not any(
        leftovers.live_shims(node) for node in layout.nodes_on_disk()
    ):
        ended = sum(leftovers.like_a_reboot(node, layout) for node in layout.nodes_on_disk())
        folders = [layout.run, layout.data]
        unmounted, detached = leftovers.unmount_below(folders), leftovers.detach_loops(folders)
        if ended or unmounted or detached:
            say(
                f"cleared what a killed run left: {ended} processes, {unmounted} mounts, "
                f"{detached} loop devices"
            )
        return
    for node, part in zip(layout.nodes(parts.state.nodes), parts.nodes(), strict=True):
        if parts.process(part):
            continue
        if not leftovers.live_shims(node) and not leftovers.containerd_of(node):
            leftovers.like_a_reboot(node, layout)


def begin_all(parts: Parts) -> None:
    """Node daemons start while the API server does; each waits only for what it needs."""
    nodes = [(part, parts.begin(part)) for part in parts.nodes()]
    if parts.state.kube == "own":
        for part in parts.kube():
            if parts.begin(part):
                parts.await_ready(part)
    for part, begun in nodes:
        if begun:
            parts.await_ready(part)
    for node in parts.layout.nodes(parts.state.nodes):
        parts.check_node(node)


def check_external(tools: Path, kubeconfig: str) -> None:
    done = subprocess.run(
        [str(tools / "kubectl"), "--kubeconfig", kubeconfig, "--request-timeout=10s", "version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise ClusterError(
            f"the cluster of ISOLET_KUBECONFIG does not answer: {done.stderr.strip()[-400:]}"
        )


def make_images(layout: Layout) -> None:
    done = subprocess.run(
        [str(HACK / "images"), "--name", layout.name], stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise ClusterError("the daemons are up, but hack/images failed, see above")


# --- down


def down(layout: Layout, arguments: argparse.Namespace) -> None:
    with layout.locked():
        if not layout.run.exists() and not layout.data.exists():
            say(f"there is no cluster {layout.name}")
            return
        try:
            state = State.load(layout) or State()
        except ClusterError as error:
            say(str(error))
            state = State()
        state.ending = True
        state.save(layout)
        for name in reversed(list(state.parts)):
            process = Process.of(state.parts[name])
            if process and process.alive() and not process.kill():
                raise ClusterError(f"{name}: pid {process.pid} does not die of SIGKILL")
        ended, unmounted, detached = leftovers.purge(layout)
        say(
            f"cluster {layout.name} is gone: {len(state.parts)} parts, {ended} processes of "
            f"theirs, {unmounted} mounts, {detached} loop devices"
        )


# --- looking at it


def loaded(layout: Layout) -> State:
    state = State.load(layout)
    if state is None or state.ending:
        raise ClusterError(f"there is no cluster {layout.name}: hack/cluster up")
    return state


def status(layout: Layout, arguments: argparse.Namespace) -> int:
    state = loaded(layout)
    parts = Parts(layout, state, Path("/nonexistent"))
    rows = [("PART", "STATE", "PID", "ADDRESS", "LOG")]
    for part in parts.all():
        process = parts.process(part)
        word = "dead" if process is None else "running" if part.ready() else "not answering"
        rows.append(
            (
                part.name,
                word,
                str(process.pid) if process else "-",
                part.address(),
                str(layout.log(part.name)),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
    if state.kube == "external":
        print(f"Kubernetes: the cluster of {state.external_kubeconfig}")
    return 0 if all(row[1] == "running" for row in rows[1:]) else 1


def env(layout: Layout, arguments: argparse.Namespace) -> None:
    state = loaded(layout)
    tools = tools_folder(tools_for(state.kube))
    nodes = layout.nodes(state.nodes)
    kubeconfig = {"own": str(layout.kubeconfig), "external": state.external_kubeconfig}.get(
        state.kube, ""
    )
    values = {
        "ISOLET_CLUSTER": layout.name,
        "ISOLET_RUN": str(layout.run),
        "ISOLET_DATA": str(layout.data),
        "ISOLET_NODES": " ".join(node.name for node in nodes),
        "ISOLET_DOCKER_SOCKETS": " ".join(str(node.socket) for node in nodes),
    }
    if kubeconfig:
        values["KUBECONFIG"] = kubeconfig
        values["ISOLET_KUBECTL"] = str(tools / "kubectl")
    if state.kube == "own":
        values["ISOLET_AUDIT_LOG"] = str(layout.audit_log)
    if layout.images_file.exists():
        for name, image in json.loads(layout.images_file.read_text()).items():
            values[f"ISOLET_IMAGE_{name.upper().replace('-', '_')}"] = image
    for name, value in values.items():
        print(f"export {name}={shlex.quote(value)}")
    # Left to the shell to expand: ours may differ from the caller's.
    print(f'export PATH={shlex.quote(str(tools))}:"$PATH"')


# --- test aids


def target(layout: Layout, parts: Parts, name: str) -> Process | None:
    if name.startswith("containerd-"):
        part = parts.named(name.replace("containerd-", "dockerd-"))
        node = next(node for node in layout.nodes(parts.state.nodes) if node.part == part.name)
        return leftovers.containerd_of(node)
    return parts.process(parts.named(name))


def send(layout: Layout, name: str, number: signal.Signals) -> None:
    parts = Parts(layout, loaded(layout), Path("/nonexistent"))
    process = target(layout, parts, name)
    if process is None:
        raise ClusterError(f"{name} is not running")
    gone = process.kill() if number == signal.SIGKILL else process.signal(number)
    if not gone:
        raise ClusterError(f"{name}: {number.name} to pid {process.pid} had no effect")
    say(f"{name}: {number.name} to pid {process.pid}")


def kill(layout: Layout, arguments: argparse.Namespace) -> None:
    send(layout, arguments.part, signal.SIGKILL)


def freeze(layout: Layout, arguments: argparse.Namespace) -> None:
    send(layout, arguments.part, signal.SIGSTOP)


def thaw(layout: Layout, arguments: argparse.Namespace) -> None:
    send(layout, arguments.part, signal.SIGCONT)


def restart(layout: Layout, arguments: argparse.Namespace) -> None:
    if arguments.part.startswith("containerd-"):
        raise ClusterError(
            "a containerd is started by its dockerd: kill it, dockerd starts it again"
        )
    with layout.locked():
        state = loaded(layout)
        names = TOOLS_NODE if arguments.part.startswith("dockerd") else TOOLS_KUBE
        parts = Parts(layout, state, tools_folder(names))
        part: Part = parts.named(arguments.part)
        process = parts.process(part)
        if process and not process.kill():
            raise ClusterError(f"{part.name}: pid {process.pid} does not die of SIGKILL")
        # One that comes back on another port takes those with it that know the old one.
        for again in [part, *(other for other in parts.all() if other.name != part.name)]:
            if (again is part or parts.outdated(again)) and parts.begin(again):
                parts.await_ready(again)


# --- the call


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="hack/cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=os.environ.get("ISOLET_CLUSTER") or "dev")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up_parser = commands.add_parser("up", parents=[named], help="start what is not running")
    up_parser.add_argument(
        "--nodes", type=node_count, help="node daemons (default: as before, else 1)"
    )
    up_parser.add_argument("--no-kube", action="store_true", help="node daemons only")
    up_parser.add_argument("--no-images", action="store_true", help="leave out the sandbox images")
    for name, text in (
        ("down", "end all of it"),
        ("status", "one row for each part"),
        ("env", "export lines for a shell"),
    ):
        commands.add_parser(name, parents=[named], help=text)
    for name in ("kill", "restart", "freeze", "thaw"):
        commands.add_parser(name, parents=[named], help=f"{name} one part").add_argument("part")
    return whole


def node_count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 16")
    return int(text)


COMMANDS = {
    "up": up,
    "down": down,
    "status": status,
    "env": env,
    "kill": kill,
    "restart": restart,
    "freeze": freeze,
    "thaw": thaw,
}


def main() -> int:
    arguments = parser().parse_args()
    try:
        return COMMANDS[arguments.command](Layout.of(arguments.name), arguments) or 0
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
    return 1
