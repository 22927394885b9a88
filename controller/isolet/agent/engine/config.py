"""What a sandbox is asked to be: the body of a create call, and the bounds to find again after it.

Pure. `bounds` says what `SandboxConfig` demands, `isolet.agent.engine.inspected.bounds` reads the
same keys back from the engine, and `differences` compares them. A sandbox that differs in any key
must not be started.
"""

from collections.abc import Mapping
from typing import Any

from isolet.agent.engine import base

LABEL_PREFIX = "dev.isolet."
SECURITY_OPTIONS = ("no-new-privileges:true",)


def create_body(config: base.SandboxConfig) -> dict[str, object]:
    """The body of `POST /containers/create`. No environment: it would show in inspect."""
    return {
        "Image": config.image,
        # An empty list, not null: null would bring the image's own ENTRYPOINT back.
        "Entrypoint": [],
        "Cmd": list(config.command),
        "User": config.user,
        "WorkingDir": config.working_dir,
        "StopSignal": config.stop_signal,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": dict(config.labels),
        "Tty": False,
        "OpenStdin": config.open_stdin,
        # Once would end the input with the first client; a slot outlives its agent.
        "StdinOnce": False,
        "HostConfig": _host_config(config),
    }


def _host_config(config: base.SandboxConfig) -> dict[str, object]:
    return {
        "Runtime": config.runtime,
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": list(SECURITY_OPTIONS),
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "NanoCpus": config.cpu_millis * 1_000_000,
        "Memory": config.memory_bytes,
        "MemorySwap": config.memory_bytes,
        "PidsLimit": config.pids_limit,
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value} for name, value in _ulimits(config).items()
        ],
        "ShmSize": config.shm_bytes,
        "Tmpfs": {tmpfs.path: ",".join(tmpfs_options(tmpfs)) for tmpfs in config.tmpfs},
        "Mounts": [
            *(_bind(mount) for mount in config.binds),
            *(_volume(mount) for mount in config.volumes),
        ],
        "LogConfig": {"Type": "local", "Config": _log_options(config)},
    }


def _bind(mount: base.BindMount) -> dict[str, object]:
    return {
        "Type": "bind",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _volume(mount: base.VolumeMount) -> dict[str, object]:
    # With a copy the engine would give the volume the owner and the files that the image has there.
    return {
        "Type": "volume",
        "Source": mount.name,
        "Target": mount.target,
        "ReadOnly": False,
        "VolumeOptions": {"NoCopy": True},
    }


def _log_options(config: base.SandboxConfig) -> dict[str, str]:
    # The mode is said because a daemon-wide default of non-blocking drops lines under load.
    return {
        "max-size": str(config.log_bytes),
        "max-file": "2",
        "compress": "false",
        "mode": "blocking",
    }


def _ulimits(config: base.SandboxConfig) -> dict[str, int]:
    return {"nproc": config.nproc, "nofile": config.nofile, "core": 0}


def tmpfs_options(tmpfs: base.Tmpfs) -> tuple[str, ...]:
    """Mount options of a tmpfs; always nosuid and nodev."""
    return (
        "rw",
        "exec" if tmpfs.executable else "noexec",
        "nosuid",
        "nodev",
        f"size={tmpfs.size_bytes}",
        f"uid={tmpfs.uid}",
        f"gid={tmpfs.gid}",
        f"mode={tmpfs.mode:o}",
    )


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that are Isolet's; an image may bring others of its own."""
    return {key: value for key, value in labels.items() if key.startswith(LABEL_PREFIX)}


FIXED: Mapping[str, object] = {
    "network": "none",
    "read_only_root": True,
    "privileged": False,
    "caps_added": (),
    "caps_dropped": ("ALL",),
    "security_options": SECURITY_OPTIONS,
    "system_paths": "masked",
    "namespaces": {"pid": "", "ipc": "private", "uts": "", "user": "", "cgroup": "private"},
    "devices": (),
    "extra_groups": (),
    "sysctls": {},
    "ports": (),
    "links": (),
    "volumes_from": (),
    "restart": "no",
    "auto_remove": False,
    "oom_kill_disabled": False,
    "cgroup_parent": "",
    "init": True,
    "tty": False,
    "healthcheck": ("NONE",),
}
"""The bounds that are the same for every sandbox."""


def bounds(config: base.SandboxConfig) -> Mapping[str, object]:
    """Every bound that `config` asks for, in the form in which it is read back."""
    return {
        **FIXED,
        "name": config.name,
        "image": config.image,
        "runtime": config.runtime,
        "user": config.user,
        "argv": tuple(config.command),
        "working_dir": config.working_dir,
        "open_stdin": config.open_stdin,
        "stop_signal": config.stop_signal,
        "labels": own_labels(config.labels),
        "cpu": {"nano": config.cpu_millis * 1_000_000, "quota": 0, "set": ""},
        "memory_bytes": config.memory_bytes,
        "memory_swap_bytes": config.memory_bytes,
        "pids_limit": config.pids_limit,
        "ulimits": {name: (value, value) for name, value in _ulimits(config).items()},
        "shm_bytes": config.shm_bytes,
        "tmpfs": {tmpfs.path: tuple(sorted(tmpfs_options(tmpfs))) for tmpfs in config.tmpfs},
        "mounts": tuple(
            sorted(
                [("bind", m.source, m.target, "ro", "rprivate") for m in config.binds]
                + [("volume", m.name, m.target, "rw", "") for m in config.volumes]
            )
        ),
        "log": {"driver": "local", **_log_options(config)},
    }


def differences(asked: Mapping[str, object], seen: Mapping[str, object]) -> list[str]:
    """One line for each bound that is not as asked, sorted; empty when all are."""
    absent: Any = "nothing"
    return [
        f"{key}: asked {asked.get(key, absent)!r}, found {seen.get(key, absent)!r}"
        for key in sorted(asked.keys() | seen.keys())
        if key not in asked or key not in seen or asked[key] != seen[key]
    ]
