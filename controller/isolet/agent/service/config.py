"""From a record to the sandbox that is asked of the engine. Pure."""

from isolet.agent.engine.base import BindMount, SandboxConfig, Tmpfs, VolumeMount
from isolet.agent.workspace.script import MOUNT_POINT, TREE_MOUNT_POINT
from isolet.base import names
from isolet.plan.sandbox_model import Kind, SandboxRecord
from isolet.wire.execution import Medium

MAIN_FILES = "run-files"
MAIN_STDIN = "run-stdin"
"""What a Process is given beside its script: files to unpack, and its input."""

MAIN_GO = "run-go"
"""An empty file beside it, for which a script waits whose workspace is filled first."""
SLOT_SCRIPT = "wait"
"""What a warm slot runs until it is given away."""

MAIN_SCRIPT = "run"
"""The launch script of the main program in that folder."""

OWN_PROCESSES = 4
"""What Isolet itself runs beside the tenant's: init, and the guard's two shells and its sleep."""

NOFILE = 1024
"""Open files a process."""

_MIB = 1 << 20


def sandbox(
    record: SandboxRecord, *, installation: str, launch_folder: str, tree_folder: str | None = None
) -> SandboxConfig:
    """The whole container of one Execution or Process. No argument and no env value is in it."""
    spec = record.spec
    nproc = spec.resources.pids + OWN_PROCESSES
    return SandboxConfig(
        name=record.container_name,
        image=record.image_id or spec.image,
        runtime=spec.runtime,
        user=spec.user,
        command=("/bin/sh", f"{MOUNT_POINT}/{script_of(record)}"),
        labels=labels(record, installation),
        cpu_millis=spec.resources.cpu_millis,
        memory_bytes=spec.resources.memory_bytes,
        nproc=nproc,
        pids_limit=pids_backstop(nproc),
        nofile=NOFILE,
        shm_bytes=spec.resources.shm_bytes,
        log_bytes=log_bytes(spec.resources.output_bytes),
        tmpfs=_tmpfs(record),
        binds=_binds(launch_folder, tree_folder),
        volumes=_volumes(record),
        open_stdin=record.kind is Kind.SLOT,
    )


def script_of(record: SandboxRecord) -> str:
    """The script that its container is made to run."""
    return SLOT_SCRIPT if record.kind is Kind.SLOT else MAIN_SCRIPT


def labels(record: SandboxRecord, installation: str) -> dict[str, str]:
    """What is written on container and volume: whose it is and which spec it was made for.

    Labels cannot be changed: what was given a warm slot has the slot's.
    """
    if record.slot is not None:
        return {
            names.LABEL_INSTALLATION: installation,
            names.LABEL_KIND: Kind.SLOT.value,
            names.LABEL_UID: record.slot.uid,
            names.LABEL_NAMESPACE: "",
            names.LABEL_NAME: record.slot.uid,
            names.LABEL_CLASS: record.class_name,
            names.LABEL_SPEC_DIGEST: record.slot.digest,
        }
    return {
        names.LABEL_INSTALLATION: installation,
        names.LABEL_KIND: record.kind.value,
        names.LABEL_UID: record.uid,
        names.LABEL_NAMESPACE: record.namespace,
        names.LABEL_NAME: record.name,
        names.LABEL_CLASS: record.class_name,
        names.LABEL_SPEC_DIGEST: record.spec_digest,
    }


def volume_name(record: SandboxRecord) -> str:
    """Name of the Disk workspace's volume."""
    return f"{record.container_name}-ws"


def pids_backstop(nproc: int) -> int:
    """The cgroup's task limit.

    It counts the sandbox's own host threads, and a hit kills the whole sandbox; 100 guest processes
    used 233 host tasks (docs/measured.md#processes), so it lies well above what `nproc` can reach.
    """
    return 3 * nproc + 256


def log_bytes(output_bytes: int) -> int:
    """Bound of the engine's log, above any log that still lies within the output cap.

    The log driver adds about 30 bytes a line and the shortest line is one byte. Rotation would lose
    lines for a reader that comes later.
    """
    return 32 * output_bytes + 16 * _MIB


def user_ids(user: str) -> tuple[int, int]:
    """(uid, gid) of a numeric `uid:gid`, which policy has checked."""
    uid, _, gid = user.partition(":")
    return int(uid), int(gid)


def _binds(launch_folder: str, tree_folder: str | None) -> tuple[BindMount, ...]:
    """Folders of ours, read-only: the launch, and an archive to begin the workspace with."""
    launch = BindMount(source=launch_folder, target=MOUNT_POINT)
    if tree_folder is None:
        return (launch,)
    return (launch, BindMount(source=tree_folder, target=TREE_MOUNT_POINT))


def _tmpfs(record: SandboxRecord) -> tuple[Tmpfs, ...]:
    uid, gid = user_ids(record.spec.user)
    resources = record.spec.resources
    tmp = Tmpfs(
        path="/tmp",
        size_bytes=resources.tmp_bytes,
        uid=uid,
        gid=gid,
        mode=0o1777,
        executable=record.spec.tmp_executable,
    )
    if record.spec.medium is Medium.DISK:
        return (tmp,)
    workspace = Tmpfs(
        path="/workspace",
        size_bytes=resources.workspace_bytes,
        uid=uid,
        gid=gid,
        mode=0o700,
        executable=record.spec.workspace_executable,
    )
    return (tmp, workspace)


def _volumes(record: SandboxRecord) -> tuple[VolumeMount, ...]:
    if record.spec.medium is not Medium.DISK:
        return ()
    return (VolumeMount(name=volume_name(record), target="/workspace"),)
