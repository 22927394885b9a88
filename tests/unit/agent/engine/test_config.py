import copy
import dataclasses

import pytest

from isolet.agent.engine import base, config, inspected

from .samples import CONFIG, shown


def keys(differences):
    return {line.partition(":")[0] for line in differences}


def test_a_sandbox_as_asked_has_no_differences():
    assert config.differences(config.bounds(CONFIG), inspected.bounds(shown())) == []
    assert config.bounds(CONFIG).keys() == inspected.bounds(shown()).keys()


FIELD_NAMES_ITS_BOUND = {
    "name": ("isolet-0b", {"name"}),
    "image": ("sha256:" + "2" * 64, {"image"}),
    "runtime": ("runc", {"runtime"}),
    "user": ("0:0", {"user"}),
    "command": (("sh",), {"argv"}),
    "labels": ({"dev.isolet.installation": "j"}, {"labels"}),
    "cpu_millis": (501, {"cpu"}),
    "memory_bytes": (1 << 30, {"memory_bytes", "memory_swap_bytes"}),
    "nproc": (65, {"ulimits"}),
    "pids_limit": (601, {"pids_limit"}),
    "nofile": (257, {"ulimits"}),
    "shm_bytes": (2 << 20, {"shm_bytes"}),
    "log_bytes": (1 << 25, {"log"}),
    "tmpfs": (CONFIG.tmpfs[:1], {"tmpfs"}),
    "binds": ((), {"mounts"}),
    "volumes": ((), {"mounts"}),
    "working_dir": ("/", {"working_dir"}),
    "open_stdin": (True, {"open_stdin"}),
    "stop_signal": ("SIGINT", {"stop_signal"}),
}


def test_the_table_has_every_field():
    assert FIELD_NAMES_ITS_BOUND.keys() == {f.name for f in dataclasses.fields(CONFIG)}


@pytest.mark.parametrize("name", FIELD_NAMES_ITS_BOUND)
def test_a_field_that_differs_names_its_bound(name):
    value, want = FIELD_NAMES_ITS_BOUND[name]
    other = dataclasses.replace(CONFIG, **{name: value})
    assert keys(config.differences(config.bounds(other), inspected.bounds(shown()))) == want


ALTERED = [
    ("HostConfig.NetworkMode", "bridge", "network"),
    ("HostConfig.NetworkMode", "host", "network"),
    ("HostConfig.ReadonlyRootfs", False, "read_only_root"),
    ("HostConfig.Privileged", True, "privileged"),
    ("HostConfig.CapAdd", ["SYS_ADMIN"], "caps_added"),
    ("HostConfig.CapDrop", [], "caps_dropped"),
    ("HostConfig.CapDrop", ["NET_RAW"], "caps_dropped"),
    ("HostConfig.SecurityOpt", None, "security_options"),
    ("HostConfig.SecurityOpt", ["no-new-privileges:false"], "security_options"),
    (
        "HostConfig.SecurityOpt",
        ["no-new-privileges:true", "seccomp=unconfined"],
        "security_options",
    ),
    ("HostConfig.MaskedPaths", [], "system_paths"),
    ("HostConfig.MaskedPaths", None, "system_paths"),
    ("HostConfig.PidMode", "host", "namespaces"),
    ("HostConfig.IpcMode", "host", "namespaces"),
    ("HostConfig.IpcMode", "shareable", "namespaces"),
    ("HostConfig.UTSMode", "host", "namespaces"),
    ("HostConfig.UsernsMode", "host", "namespaces"),
    ("HostConfig.CgroupnsMode", "host", "namespaces"),
    ("HostConfig.Devices", [{"PathOnHost": "/dev/kvm"}], "devices"),
    ("HostConfig.DeviceRequests", [{"Driver": "x"}], "devices"),
    ("HostConfig.DeviceCgroupRules", ["a *:* rwm"], "devices"),
    ("HostConfig.GroupAdd", ["docker"], "extra_groups"),
    ("HostConfig.Sysctls", {"net.ipv4.ip_forward": "1"}, "sysctls"),
    ("HostConfig.PortBindings", {"80/tcp": [{}]}, "ports"),
    ("HostConfig.Links", ["/a:/b"], "links"),
    ("HostConfig.VolumesFrom", ["other"], "volumes_from"),
    ("HostConfig.RestartPolicy", {"Name": "always"}, "restart"),
    ("HostConfig.AutoRemove", True, "auto_remove"),
    ("HostConfig.OomKillDisable", True, "oom_kill_disabled"),
    ("HostConfig.CgroupParent", "/mine", "cgroup_parent"),
    ("HostConfig.Init", False, "init"),
    ("HostConfig.Init", None, "init"),
    ("HostConfig.Runtime", "runc", "runtime"),
    ("HostConfig.NanoCpus", 0, "cpu"),
    ("HostConfig.CpuQuota", 100_000, "cpu"),
    ("HostConfig.CpusetCpus", "0", "cpu"),
    ("HostConfig.Memory", 0, "memory_bytes"),
    ("HostConfig.MemorySwap", -1, "memory_swap_bytes"),
    ("HostConfig.PidsLimit", None, "pids_limit"),
    ("HostConfig.PidsLimit", -1, "pids_limit"),
    ("HostConfig.Ulimits", None, "ulimits"),
    ("HostConfig.Ulimits", [{"Name": "nproc", "Soft": 64, "Hard": -1}], "ulimits"),
    ("HostConfig.ShmSize", 1 << 30, "shm_bytes"),
    ("HostConfig.Tmpfs", None, "tmpfs"),
    ("HostConfig.Tmpfs./tmp", "rw,exec,nosuid,nodev,size=1048576", "tmpfs"),
    ("HostConfig.Tmpfs./run", "rw", "tmpfs"),
    ("HostConfig.LogConfig", {"Type": "json-file", "Config": {}}, "log"),
    ("HostConfig.LogConfig.Config.max-size", "1g", "log"),
    ("HostConfig.LogConfig.Config.mode", "non-blocking", "log"),
    ("Config.User", "", "user"),
    ("Config.WorkingDir", "/", "working_dir"),
    ("Config.OpenStdin", True, "open_stdin"),
    ("Config.StopSignal", "SIGRTMIN+3", "stop_signal"),
    ("Config.Tty", True, "tty"),
    ("Config.Healthcheck", None, "healthcheck"),
    ("Config.Healthcheck", {"Test": ["CMD", "true"]}, "healthcheck"),
    ("Config.Labels", {"dev.isolet.installation": "i", "dev.isolet.uid": "other"}, "labels"),
    ("Image", "sha256:" + "2" * 64, "image"),
    ("Name", "/other", "name"),
    ("Path", "/wrapper", "argv"),
    ("Args", [], "argv"),
    ("Mounts", [], "mounts"),
    ("Mounts", None, "mounts"),
    ("Mounts.0.Name", "other", "mounts"),
    ("Mounts.1.RW", True, "mounts"),
    ("Mounts.1.Source", "/", "mounts"),
    ("Mounts.1.Propagation", "rshared", "mounts"),
    ("Mounts.1.Destination", "/etc", "mounts"),
]


def altered(path, value):
    raw = copy.deepcopy(shown())
    *way, last = path.split(".")
    place = raw
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    return raw


@pytest.mark.parametrize(("path", "value", "key"), ALTERED)
def test_what_an_engine_did_otherwise_is_named(path, value, key):
    seen = inspected.bounds(altered(path, value))
    assert keys(config.differences(config.bounds(CONFIG), seen)) == {key}


def test_every_bound_is_in_the_table():
    assert {key for *_, key in ALTERED} == config.bounds(CONFIG).keys()


def test_a_bound_that_is_missing_on_either_side_is_a_difference():
    asked = config.bounds(CONFIG)
    less = {key: value for key, value in asked.items() if key != "network"}
    assert keys(config.differences(asked, less)) == {"network"}
    assert keys(config.differences(less, asked)) == {"network"}


def test_a_difference_says_both_values():
    assert config.differences({"a": 1, "b": 2}, {"a": 3}) == [
        "a: asked 1, found 3",
        "b: asked 2, found 'nothing'",
    ]


def test_what_is_sent_has_no_environment_and_resets_the_image():
    body = config.create_body(CONFIG)
    assert "Env" not in body
    assert body["Entrypoint"] == []
    assert body["Cmd"] == ["sh", "-c", "true"]
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert body["HostConfig"]["Mounts"][1]["VolumeOptions"] == {"NoCopy": True}


def test_tmpfs_options():
    tmpfs = base.Tmpfs(path="/t", size_bytes=4096, uid=1, gid=2, mode=0o755)
    assert config.tmpfs_options(tmpfs) == (
        *("rw", "noexec", "nosuid", "nodev"),
        *("size=4096", "uid=1", "gid=2", "mode=755"),
    )
    assert "exec" in config.tmpfs_options(dataclasses.replace(tmpfs, executable=True))
