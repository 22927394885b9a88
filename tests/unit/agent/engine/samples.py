"""A sandbox, and what an engine shows of it in inspect: both whole and in agreement."""

from isolet.agent.engine import base, config

CONFIG = base.SandboxConfig(
    name="isolet-0a",
    image="sha256:" + "1" * 64,
    runtime="runsc",
    user="65532:65532",
    command=("sh", "-c", "true"),
    labels={"dev.isolet.installation": "i", "dev.isolet.uid": "u"},
    cpu_millis=500,
    memory_bytes=64 << 20,
    nproc=64,
    pids_limit=600,
    nofile=256,
    shm_bytes=1 << 20,
    log_bytes=1 << 24,
    tmpfs=(
        base.Tmpfs(path="/tmp", size_bytes=1 << 20, uid=65532, gid=65532, mode=0o1777),
        base.Tmpfs(
            path="/workspace", size_bytes=1 << 21, uid=65532, gid=65532, mode=0o700, executable=True
        ),
    ),
    binds=(base.BindMount(source="/slots/1", target="/slot"),),
    volumes=(base.VolumeMount(name="v", target="/data"),),
)


def shown(asked=CONFIG):
    """The answer of inspect to the sandbox as it was asked for, as Docker 20.10 gives it."""
    body = config.create_body(asked)
    host = {
        "CapAdd": None,
        "Devices": None,
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "CpuQuota": 0,
        "CpusetCpus": "",
        "CgroupParent": "",
        "AutoRemove": False,
        "OomKillDisable": False,
        "MaskedPaths": ["/proc/kcore"],
        **body.pop("HostConfig"),
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    }
    host["Ulimits"] = [*host["Ulimits"], {"Name": "memlock", "Soft": 1, "Hard": 1}]
    return {
        "Id": "c" * 64,
        "Name": f"/{asked.name}",
        "Created": "2026-01-02T03:04:05.123456789Z",
        "Path": asked.command[0],
        "Args": list(asked.command[1:]),
        "Image": "sha256:" + "1" * 64,
        "State": {
            "Status": "created",
            "Pid": 0,
            "ExitCode": 0,
            "OOMKilled": False,
            "Error": "",
            "StartedAt": "0001-01-01T00:00:00Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
        },
        "Config": {**body, "Labels": {**body["Labels"], "maintainer": "the image's"}},
        "HostConfig": host,
        "Mounts": [
            *(
                {
                    "Type": "volume",
                    "Name": mount.name,
                    "Source": f"/var/lib/docker/volumes/{mount.name}/_data",
                    "Destination": mount.target,
                    "Driver": "local",
                    "Mode": "z",
                    "RW": True,
                    "Propagation": "",
                }
                for mount in asked.volumes
            ),
            *(
                {
                    "Type": "bind",
                    "Source": mount.source,
                    "Destination": mount.target,
                    "Mode": "",
                    "RW": False,
                    "Propagation": "rprivate",
                }
                for mount in asked.binds
            ),
        ],
    }
