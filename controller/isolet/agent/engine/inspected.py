"""The engine's JSON, read into our own types. Pure; nothing else knows these field names."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from isolet.agent.engine import base, config

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ULIMITS = frozenset({"nproc", "nofile", "core"})
_NOT_ENDED = frozenset({base.Status.RUNNING, base.Status.PAUSED, base.Status.RESTARTING})


def moment(text: str) -> datetime | None:
    """An RFC 3339 time with any number of fraction digits; the engine's zero time is None."""
    if not text or text.startswith("0001-01-01T00:00:00"):
        return None
    return datetime.fromisoformat(text).astimezone(UTC)


def from_epoch(seconds: float) -> datetime:
    """Seconds since the epoch, as lists give them."""
    return datetime.fromtimestamp(seconds, UTC)


def info(raw: Mapping[str, Any], version: Mapping[str, Any], spoken: str) -> base.EngineInfo:
    """From `/info` and `/version`, and the API version spoken."""
    return base.EngineInfo(
        id=raw.get("ID", ""),
        version=version.get("Version", ""),
        api_version=spoken,
        architecture=version.get("Arch", ""),
        data_root=raw.get("DockerRootDir", ""),
        live_restore=bool(raw.get("LiveRestoreEnabled")),
        runtimes={
            name: (entry.get("path", ""), tuple(entry.get("runtimeArgs") or ()))
            for name, entry in (raw.get("Runtimes") or {}).items()
        },
        storage_driver=raw.get("Driver", ""),
        cpus=raw.get("NCPU", 0),
        memory_bytes=raw.get("MemTotal", 0),
        cgroup_version=raw.get("CgroupVersion", ""),
        warnings=tuple(raw.get("Warnings") or ()),
    )


def listed_image(raw: Mapping[str, Any]) -> base.Image:
    """From an entry of `/images/json`."""
    return base.Image(
        id=raw["Id"], tags=_named(raw.get("RepoTags")), digests=_named(raw.get("RepoDigests"))
    )


def image(raw: Mapping[str, Any]) -> base.Image:
    """From `/images/{name}/json`."""
    env = (raw.get("Config") or {}).get("Env") or ()
    return base.Image(
        id=raw["Id"],
        tags=_named(raw.get("RepoTags")),
        digests=_named(raw.get("RepoDigests")),
        env=tuple(entry.partition("=")[0] for entry in env),
        architecture=raw.get("Architecture", ""),
    )


def summary(raw: Mapping[str, Any]) -> base.ContainerSummary:
    """From an entry of `/containers/json`."""
    return base.ContainerSummary(
        id=raw["Id"],
        name=raw["Names"][0].removeprefix("/") if raw.get("Names") else "",
        labels=raw.get("Labels") or {},
        status=base.Status(raw["State"]),
        created_at=from_epoch(raw["Created"]),
    )


def container(raw: Mapping[str, Any]) -> base.Container:
    """From `/containers/{id}/json`."""
    state = raw["State"]
    status = base.Status(state["Status"])
    started = moment(state.get("StartedAt", ""))
    ended = started is not None and status not in _NOT_ENDED
    created = moment(raw["Created"])
    finished = moment(state.get("FinishedAt", "")) if ended else None
    if started and finished:
        # The shim stamps the end, the engine the start once it has returned: a short program's
        # end can lie before its start.
        finished = max(started, finished)
    return base.Container(
        id=raw["Id"],
        name=raw["Name"].removeprefix("/"),
        image_id=raw["Image"],
        labels=raw["Config"].get("Labels") or {},
        status=status,
        pid=state.get("Pid", 0),
        exit_code=state.get("ExitCode") if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=state.get("Error", ""),
        created_at=created or _EPOCH,
        started_at=started,
        finished_at=finished,
        seen=bounds(raw),
    )


def bounds(raw: Mapping[str, Any]) -> Mapping[str, object]:
    """Every bound that the container really has, in the form of `config.bounds`."""
    return {**_process_bounds(raw), **_isolation_bounds(raw), **_resource_bounds(raw)}


def _process_bounds(raw: Mapping[str, Any]) -> dict[str, object]:
    asked, host = raw["Config"], raw["HostConfig"]
    by_id = str(asked.get("Image", "")).startswith("sha256:")
    return {
        "name": raw["Name"].removeprefix("/"),
        "image": raw["Image"] if by_id else asked.get("Image", ""),
        "runtime": host.get("Runtime", ""),
        "user": asked.get("User", ""),
        # What is really run, whatever ENTRYPOINT and CMD the image has.
        "argv": (raw.get("Path", ""), *(raw.get("Args") or ())),
        "working_dir": asked.get("WorkingDir", ""),
        "open_stdin": bool(asked.get("OpenStdin")),
        "stop_signal": asked.get("StopSignal", ""),
        "labels": config.own_labels(asked.get("Labels") or {}),
        "restart": (host.get("RestartPolicy") or {}).get("Name", ""),
        "auto_remove": bool(host.get("AutoRemove")),
        "init": bool(host.get("Init")),
        "tty": bool(asked.get("Tty")),
        "healthcheck": tuple((asked.get("Healthcheck") or {}).get("Test") or ()),
    }


def _isolation_bounds(raw: Mapping[str, Any]) -> dict[str, object]:
    host = raw["HostConfig"]
    return {
        "network": host.get("NetworkMode", ""),
        "read_only_root": bool(host.get("ReadonlyRootfs")),
        "privileged": bool(host.get("Privileged")),
        "caps_added": tuple(host.get("CapAdd") or ()),
        "caps_dropped": tuple(host.get("CapDrop") or ()),
        "security_options": tuple(host.get("SecurityOpt") or ()),
        # The lists differ from one engine version to the next; none at all means unconfined.
        "system_paths": "masked" if host.get("MaskedPaths") else "bare",
        "namespaces": {
            "pid": host.get("PidMode", ""),
            "ipc": host.get("IpcMode", ""),
            "uts": host.get("UTSMode", ""),
            "user": host.get("UsernsMode", ""),
            "cgroup": host.get("CgroupnsMode", ""),
        },
        "devices": tuple(
            str(entry)
            for key in ("Devices", "DeviceRequests", "DeviceCgroupRules")
            for entry in host.get(key) or ()
        ),
        "extra_groups": tuple(host.get("GroupAdd") or ()),
        "sysctls": host.get("Sysctls") or {},
        "ports": tuple(host.get("PortBindings") or ()),
        "links": tuple(host.get("Links") or ()),
        "volumes_from": tuple(host.get("VolumesFrom") or ()),
    }


def _resource_bounds(raw: Mapping[str, Any]) -> dict[str, object]:
    host = raw["HostConfig"]
    log = host.get("LogConfig") or {}
    return {
        "cpu": {
            "nano": host.get("NanoCpus", 0),
            "quota": host.get("CpuQuota", 0),
            "set": host.get("CpusetCpus", ""),
        },
        "memory_bytes": host.get("Memory", 0),
        "memory_swap_bytes": host.get("MemorySwap", 0),
        "oom_kill_disabled": bool(host.get("OomKillDisable")),
        "pids_limit": host.get("PidsLimit") or 0,
        "cgroup_parent": host.get("CgroupParent", ""),
        # A daemon-wide default may add others; these three are ours.
        "ulimits": {
            entry["Name"]: (entry["Soft"], entry["Hard"])
            for entry in host.get("Ulimits") or ()
            if entry["Name"] in _ULIMITS
        },
        "shm_bytes": host.get("ShmSize", 0),
        "tmpfs": {
            path: tuple(sorted(options.split(",")))
            for path, options in (host.get("Tmpfs") or {}).items()
        },
        "mounts": tuple(sorted(_mount(entry) for entry in raw.get("Mounts") or ())),
        "log": {"driver": log.get("Type", ""), **(log.get("Config") or {})},
    }


def _mount(raw: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    kind = raw.get("Type", "")
    source = raw.get("Name", "") if kind == "volume" else raw.get("Source", "")
    mode = "rw" if raw.get("RW") else "ro"
    return (kind, source, raw.get("Destination", ""), mode, raw.get("Propagation", ""))


def volume(raw: Mapping[str, Any]) -> base.Volume:
    """From an entry of `/volumes` or from `/volumes/{name}`."""
    return base.Volume(
        name=raw["Name"],
        labels=raw.get("Labels") or {},
        driver=raw.get("Driver", ""),
        options=raw.get("Options") or {},
        mountpoint=raw.get("Mountpoint", ""),
        created_at=moment(raw.get("CreatedAt", "")),
    )


def exec_facts(raw: Mapping[str, Any]) -> base.ExecFacts:
    """From `/exec/{id}/json`."""
    return base.ExecFacts(running=bool(raw["Running"]), exit_code=raw.get("ExitCode"))


def identity(raw: Mapping[str, Any]) -> str:
    """The id of what was just made."""
    return str(raw["Id"])


def event(raw: Mapping[str, Any]) -> base.EngineEvent:
    """From a line of `/events`.

    The action of an exec carries its command line, which is the tenant's: only the word is kept.
    """
    actor = raw.get("Actor") or {}
    attributes = dict(actor.get("Attributes") or {})
    code = attributes.pop("exitCode", "")
    return base.EngineEvent(
        action=str(raw.get("Action", "")).partition(":")[0],
        container_id=actor.get("ID", ""),
        container_name=attributes.get("name", ""),
        labels=config.own_labels(attributes),
        at=_nanoseconds(raw),
        exit_code=int(code) if code.lstrip("-").isdigit() else None,
        exec_id=attributes.get("execID"),
    )


def _nanoseconds(raw: Mapping[str, Any]) -> datetime:
    # Not through a float, which rounds: a reader that resumes from here must not skip a later one.
    nanos = raw.get("timeNano") or raw.get("time", 0) * 1_000_000_000
    return _EPOCH + timedelta(microseconds=nanos // 1000)


def _named(names: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name for name in names or () if not name.startswith("<none>"))
