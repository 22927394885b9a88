"""Finding and ending what a cluster left on the machine: processes, mounts, loop devices, cgroups.

Only what carries the cluster's own folders, marks or container ids is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .errors import ClusterError, say
from .layout import Layout, Node
from .processes import Process, all_pids, arguments, mark_of, parent_of, program_of, stopped

# Programs that name our folder among their arguments because they belong to us. A pager or an
# editor that shows one of our files must not be taken for one of them.
OURS = re.compile(
    r"dockerd|containerd(-shim.*)?|runsc.*|runc|etcd|kube-apiserver|kube-controller-manager"
)
SHIM = re.compile(r"containerd-shim.*")
CGROUPS = Path("/sys/fs/cgroup")
END_SECONDS = 30


# --- processes


def names_folder(argv: Iterable[str], folder: Path) -> bool:
    inside = re.compile(rf"(?:^|[=:/,]){re.escape(str(folder))}(?:/|$)")
    return any(inside.search(argument) for argument in argv)


def marked_pids(layout: Layout) -> dict[int, str]:
    """Processes started by us or below us, with the part that they stem from."""
    prefix = f"{layout.run}#"
    found = {}
    for pid in all_pids():
        mark = mark_of(pid)
        if mark and mark.startswith(prefix):
            found[pid] = mark.removeprefix(prefix)
    return found


def pids_naming(folders: Iterable[Path]) -> set[int]:
    folders = list(folders)
    found = set()
    for pid in all_pids():
        argv = arguments(pid)
        if not argv or not OURS.fullmatch(os.path.basename(argv[0])):
            continue
        if any(names_folder(argv[1:], folder) for folder in folders):
            found.add(pid)
    return found


def with_descendants(pids: set[int]) -> set[int]:
    parents = {pid: parent_of(pid) for pid in all_pids()}
    found = set(pids)
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return found


def live_shims(node: Node) -> dict[int, str]:
    """Shims of this node's containers: pid and container id."""
    found = {}
    for pid in all_pids():
        argv = arguments(pid)
        if (
            argv
            and SHIM.fullmatch(os.path.basename(argv[0]))
            and names_folder(argv[1:], node.exec_root)
        ):
            found[pid] = argv[argv.index("-id") + 1] if "-id" in argv[:-1] else ""
    return found


def containerd_of(node: Node) -> Process | None:
    """The containerd that a node's daemon has started, if it lives."""
    try:
        pid = int(node.containerd_pid_file.read_text())
    except (OSError, ValueError):
        return None
    argv = arguments(pid)
    if argv and os.path.basename(argv[0]) == "containerd" and names_folder(argv, node.run):
        return Process.now(pid)
    return None


def forget_stale_pid_files(node: Node) -> None:
    """dockerd trusts them when any process at all has that number now."""
    node.pid_file.unlink(missing_ok=True)
    if not containerd_of(node):
        node.containerd_pid_file.unlink(missing_ok=True)


def let_go_on(layout: Layout) -> None:
    """A daemon that a test has stopped and forgotten is not dead: it only has to go on."""
    for pid in marked_pids(layout):
        program, process = program_of(pid), Process.now(pid)
        if process and stopped(pid) and OURS.fullmatch(program) and not SHIM.fullmatch(program):
            say(f"{program}: pid {pid} is stopped, letting it go on")
            process.signal(signal.SIGCONT)


def container_ids(node: Node) -> set[str]:
    """Of every container that this node's daemon or containerd ever knew and has not forgotten."""
    found: set[str] = set()
    for folder in (node.data_root / "containers", node.bundles):
        if folder.is_dir():
            found |= {p.name for p in folder.iterdir() if re.fullmatch(r"[0-9a-f]{64}", p.name)}
    return found


def cgroups_of(ids: set[str]) -> list[Path]:
    """The cgroups of these containers in every hierarchy, innermost first."""
    if not ids:
        return []
    # The whole path counts: a container may have made cgroups below its own.
    return [
        Path(path, name)
        for path, names, _ in os.walk(CGROUPS, topdown=False)
        for name in names
        if ids.intersection(re.findall(r"[0-9a-f]{64}", f"{path}/{name}"))
    ]


def pids_in(cgroups: Iterable[Path]) -> set[int]:
    found = set()
    for cgroup in cgroups:
        try:
            found |= {int(line) for line in (cgroup / "cgroup.procs").read_text().split()}
        except OSError:
            continue
    return found


def thaw(cgroups: Iterable[Path]) -> None:
    """A frozen process does not die until it is thawed."""
    for cgroup in cgroups:
        for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            if (cgroup / file).exists():
                try:
                    (cgroup / file).write_text(word)
                except OSError:
                    continue


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        process = Process.now(pid)
        if process and pid != os.getpid():
            process.signal(9)


def end_until_none(find: Callable[[], set[int]], what: str) -> int:
    """Kills what `find` finds until it finds nothing: a dying process may still start another."""
    deadline = time.monotonic() + END_SECONDS
    ended: set[int] = set()
    while True:
        left = {pid for pid in find() if Process.now(pid)}
        if not left:
            return len(ended)
        if time.monotonic() > deadline:
            shown = ", ".join(f"{pid} ({program_of(pid)})" for pid in sorted(left))
            raise ClusterError(f"{what}: still alive after {END_SECONDS} s of SIGKILL: {shown}")
        kill_all(left)
        ended |= left
        time.sleep(0.05)


# --- mounts and loop devices


def _below(path: str, folders: Iterable[Path]) -> bool:
    return any(path == str(folder) or path.startswith(f"{folder}/") for folder in folders)


def mounts() -> Iterator[tuple[str, str]]:
    """(mount point, source) in mount order."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        source = fields[fields.index("-") + 2]
        yield _unescaped(fields[4]), _unescaped(source)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def loops_below(folders: Iterable[Path]) -> list[str]:
    folders = list(folders)
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = file.read_text().strip().removesuffix(" (deleted)")
        except OSError:
            continue
        if _below(backing, folders):
            found.append(f"/dev/{file.parts[3]}")
    return found


def unmount_below(folders: Iterable[Path], loops: Iterable[str] = ()) -> int:
    """Last mounted first; what is busy is taken out of sight and goes when its user does."""
    folders, loops = list(folders), set(loops)
    count = 0
    for _ in range(5):  # mounts can lie over one another
        points = [point for point, source in mounts() if _below(point, folders) or source in loops]
        if not points:
            return count
        for point in reversed(points):
            if _run("umount", point) or _run("umount", "-l", point):
                count += 1
    left = [point for point, source in mounts() if _below(point, folders) or source in loops]
    if left:
        raise ClusterError(f"cannot unmount: {', '.join(left[:5])}")
    return count


def detach_loops(folders: Iterable[Path]) -> int:
    folders = list(folders)
    loops = loops_below(folders)
    unmount_below([], loops)
    for device in loops:
        _run("losetup", "-d", device)
    deadline = time.monotonic() + END_SECONDS
    while left := loops_below(folders):
        if time.monotonic() > deadline:
            raise ClusterError(f"cannot detach: {', '.join(left)}")
        time.sleep(0.05)
    return len(loops)


def _run(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0


# --- the whole of it


def shim_sockets(node: Node) -> list[Path]:
    """The node's ones in the folder of the machine where containerd keeps shims' sockets."""
    found = []
    if node.bundles.is_dir():
        for bundle in node.bundles.iterdir():
            try:
                address = (bundle / "address").read_text().strip()
            except OSError:
                continue
            path = Path(address.removeprefix("unix://"))
            if re.fullmatch(r"/run/containerd/s/[0-9a-f]{64}", str(path)):
                found.append(path)
    return found


def remove_cgroups(cgroups: Iterable[Path]) -> None:
    for cgroup in cgroups:
        for _ in range(20):
            try:
                cgroup.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)  # its last process is on its way out
            else:
                break


def end_containers(node: Node, part: str, layout: Layout) -> int:
    """Ends what lives of a node whose daemon is dead: containerd, shims, sandboxes."""
    ids = container_ids(node)
    cgroups = cgroups_of(ids)
    sockets = shim_sockets(node)
    thaw(cgroups)

    def find() -> set[int]:
        marked = {pid for pid, of in marked_pids(layout).items() if of == part}
        return with_descendants(marked | pids_naming([node.run, node.data])) | pids_in(
            cgroups_of(ids)
        )

    ended = end_until_none(find, node.part)
    remove_cgroups(cgroups_of(ids))
    for socket in sockets:
        socket.unlink(missing_ok=True)
    return ended


def like_a_reboot(node: Node, layout: Layout) -> int:
    """Leaves a node as a reboot would: nothing runs, /run is empty, the data is there."""
    ended = end_containers(node, node.part, layout)
    unmount_below([node.exec_root])
    remove_tree(node.exec_root)
    node.pid_file.unlink(missing_ok=True)
    return ended


def remove_tree(folder: Path) -> None:
    """Never through a mount: what is mounted there may be somebody's."""
    if any(_below(point, [folder]) for point, _ in mounts()):
        raise ClusterError(f"something is still mounted below {folder}, not removing it")
    if folder.is_dir():
        shutil.rmtree(folder)


def purge(layout: Layout) -> tuple[int, int, int]:
    """Everything of this cluster, processes to folders. Says how much there was."""
    folders = [layout.run, layout.data]
    ended = end_until_none(
        lambda: {pid for pid, part in marked_pids(layout).items() if program_of(pid) == "dockerd"},
        "node daemons",
    )
    for node in layout.nodes_on_disk():
        ended += end_containers(node, node.part, layout)
    ended += end_until_none(
        lambda: with_descendants(set(marked_pids(layout)) | pids_naming(folders)),
        f"cluster {layout.name}",
    )
    unmounted = unmount_below(folders)
    detached = detach_loops(folders)
    remove_tree(layout.run)
    remove_tree(layout.data)
    return ended, unmounted, detached
