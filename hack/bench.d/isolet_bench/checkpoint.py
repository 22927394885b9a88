"""hack/bench checkpoint: a workspace taken and restored, beside a plain copy of the same bytes.

The floor of a Checkpoint is `cp -a` of the workspace's own files, from the disk as the engine has
it mounted to the file system on which the agent keeps copies; a sync of that is shown. Both read
what was just written, so from the page cache, and they take turns.

A restore is held to that floor as well, and beside a second one: `cp -a` of that copy to where a
restore has to bring it, a new disk of the same kind (ext4 on a loop device). Making that disk
counts for the restore and not for the floor, as do the digests and the sandbox's start, which is
shown by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isolet.agent.host import ExecutionHost
from isolet.client.http import HTTPAgent
from isolet.wire.execution import ExecRequest, ExecutionSpec, Medium, Resources, Workspace
from isolet_cluster.errors import ClusterError, say

from . import raw
from .place import Place
from .report import Report, Table, Target, median

MIB = 1 << 20
TIMES = 2
START = "start of a session"
COPY = "cp"
TO_A_DISK = "cp to a new disk"
FLOORS = (("checkpoint", COPY), ("restore", COPY), ("restore", TO_A_DISK))
SHOWN = (
    COPY,
    "cp and sync",
    TO_A_DISK,
    "the same, unmounted",
    START,
    "checkpoint",
    "restore",
)
SECONDS = 900

FEW = "for i in $(seq {count}); do head -c {size} /dev/zero | tr '\\0' $((i % 10)) >f$i; done"
MANY = """\
p=$(head -c {size} /dev/zero | tr '\\0' x); i=0
while [ $i -lt {count} ]; do
[ $((i % 500)) -ne 0 ] || {{ d=d$((i / 500)); mkdir $d; }}
echo $i$p >$d/f$i; i=$((i + 1)); done
"""


def run(place: Place, options: argparse.Namespace) -> Report:
    """Both kinds of workspace, as asked."""
    report = Report("checkpoint")
    report.conditions = {"cpus": os.cpu_count(), "load": f"{os.getloadavg()[0]:.1f}"}
    kinds = {
        "few": (
            f"{options.mib} MiB in 16 files",
            FEW.format(count=16, size=options.mib * MIB // 16),
        ),
        "many": (f"{options.files} files", MANY.format(count=options.files, size=1000)),
    }
    # To an operator these are orphans, and it would remove them.
    place.stack.end("operator-0")
    try:
        for kind, (title, script) in kinds.items():
            if options.only in (None, kind):
                asyncio.run(_measure(place, report, kind, title, script, options))
    finally:
        place.stack.start_operator()
    return report


async def _measure(
    place: Place, report: Report, kind: str, title: str, script: str, options: argparse.Namespace
) -> None:
    agent = HTTPAgent(f"unix://{place.agent_socket}")
    host = ExecutionHost(agent)
    uid = f"bench-{uuid.uuid4()}"
    try:
        say(f"filling a workspace: {title}")
        await host.provision(_spec(place, options), uid=uid, deadline_seconds=3600)
        request = ExecRequest(command=("sh", "-c", script), timeout_seconds=SECONDS)
        done = await host.exec(uid, request)
        if done.exit_code:
            raise ClusterError(f"the workspace could not be filled: {done.stderr!r}")
        files = _mountpoint(place, uid)
        runs = [await _round(place, host, uid, files, options) for _ in range(options.n)]
    finally:
        await host.reclaim(uid)
        await agent.close()
    size = runs[0]["bytes"]
    table = report.table(f"{title}, {size / MIB:.0f} MiB, n={options.n}", "", "s", "MB/s", "x cp")
    seconds = {what: median([each[what] for each in runs]) for what in SHOWN}
    for what in SHOWN:
        _row(table, what, seconds[what], size, seconds[COPY])
    report.numbers[kind] = runs
    for what, floor in FLOORS:
        ratio = seconds[what] / seconds[floor]
        report.targets.append(Target(f"{title}: {what} beside {floor}", ratio, TIMES, "x"))


def _row(table: Table, what: str, seconds: float, size: float, floor: float) -> None:
    speed = "" if what == START else f"{size / seconds / 1e6:.0f}"
    table.add(what, f"{seconds:.2f}", speed, f"{seconds / floor:.2f}")


async def _round(
    place: Place, host: ExecutionHost, uid: str, files: Path, options: argparse.Namespace
) -> dict[str, float]:
    """One of each."""
    floors = await asyncio.to_thread(_copied, files, place, _disk_bytes(options))
    began = time.monotonic()
    empty = await host.provision(
        _spec(place, options), uid=f"bench-{uuid.uuid4()}", deadline_seconds=3600
    )
    started = time.monotonic() - began
    await host.reclaim(empty.uid)
    began = time.monotonic()
    seen = await host.checkpoint(uid, timeout_seconds=SECONDS)
    taken = time.monotonic() - began
    assert seen.manifest is not None
    began = time.monotonic()
    again = await host.restore(seen.uid, deadline_seconds=3600, timeout_seconds=SECONDS)
    restored = time.monotonic() - began
    await host.reclaim(again.uid)
    await host.delete_checkpoint(seen.uid)
    return {
        "bytes": seen.manifest.size_bytes,
        **floors,
        START: started,
        "checkpoint": taken,
        "restore": restored,
    }


def _copied(files: Path, place: Place, disk_bytes: int) -> dict[str, float]:
    """The floors of copying, in seconds."""
    folder = place.stack.agent_folder("node-0")
    target = folder / "bench-copy"
    found = {}
    try:
        began = time.monotonic()
        _call("cp", "-a", str(files), str(target))
        found[COPY] = time.monotonic() - began
        _call("sync", "-f", str(target))
        found["cp and sync"] = time.monotonic() - began
        with _disk(folder / "bench-disk", disk_bytes) as point:
            began = time.monotonic()
            _call("cp", "-a", str(target), str(point))
            found[TO_A_DISK] = time.monotonic() - began
            _call("umount", str(point))
            found["the same, unmounted"] = time.monotonic() - began
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return found


@contextmanager
def _disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk like those of workspaces, mounted; who uses it unmounts it."""
    image, point = folder / "image", folder / "mounted"
    point.mkdir(parents=True)
    try:
        _call("fallocate", "-l", str(size), str(image))
        _call("mkfs.ext4", "-q", "-m0", "-O", "^has_journal", "-E", "nodiscard", str(image))
        attach = ("losetup", "--direct-io=on", "--find", "--show", str(image))
        device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
        try:
            _call("mount", "-t", "ext4", device, str(point))
            yield point
        finally:
            subprocess.run(["umount", str(point)], check=False, stderr=subprocess.DEVNULL)
            _call("losetup", "--detach", device)
    finally:
        shutil.rmtree(folder)


def _call(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _mountpoint(place: Place, uid: str) -> Path:
    """Where the engine has the disk of this session mounted."""
    engine = raw.Raw(str(place.node.socket), place.stack.agent_run("node-0"))
    for volume in engine.must("GET", "/volumes")["Volumes"] or ():
        if (volume.get("Labels") or {}).get("dev.isolet.uid") == uid:
            return Path(volume["Mountpoint"])
    raise ClusterError("the session has no volume")


def _disk_bytes(options: argparse.Namespace) -> int:
    return max(2 * options.mib * MIB, options.files * 20_000)


def _spec(place: Place, options: argparse.Namespace) -> ExecutionSpec:
    resources = Resources(
        cpu_millis=1000,
        memory_bytes=256 * MIB,
        workspace_bytes=_disk_bytes(options),
        tmp_bytes=4 * MIB,
        shm_bytes=MIB,
        pids=64,
        output_bytes=MIB,
    )
    return ExecutionSpec(
        image=place.image, resources=resources, workspace=Workspace(medium=Medium.DISK)
    )
