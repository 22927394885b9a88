"""The policy file: its defaults, what it may say, and what is refused by name."""

import pytest

from isolet.agent.policy import model
from isolet.base import errors
from isolet.wire.execution import Medium
from isolet.wire.node import Amounts

FACTS = model.NodeFacts(cpus=8, memory_bytes=32 << 30, disk_bytes=100 << 30)
PINNED = "registry.example/python@sha256:" + "a" * 64


def test_without_a_file_the_node_gives_most_of_itself() -> None:
    policy = model.default(FACTS)
    assert policy.capacity_amounts() == Amounts(
        cpu_millis=8000,
        memory_bytes=(32 << 30) - (32 << 30) // 10,
        disk_bytes=80 << 30,
        executions=250,
    )
    assert policy.runtimes == ("runsc",)
    assert policy.images == ("*",)
    assert policy.media == (Medium.MEMORY, Medium.DISK)
    assert (policy.maximum_deadline_seconds, policy.maximum_retain_seconds) == (86_400, 86_400)


def test_a_small_node_keeps_at_least_half_a_gibibyte() -> None:
    facts = model.NodeFacts(cpus=1, memory_bytes=1 << 30, disk_bytes=0)
    assert model.default(facts).capacity.memory == 512 << 20
    facts = model.NodeFacts(cpus=1, memory_bytes=256 << 20, disk_bytes=0)
    assert model.default(facts).capacity.memory == 0


def test_the_whole_file() -> None:
    text = f"""
        images = ["{PINNED}", "sha256:{"b" * 64}", "registry.example/team/*"]
        runtimes = ["runsc", "runc"]
        media = ["Disk"]
        maximumDeadlineSeconds = 3600
        maximumRetainSeconds = 0

        [capacity]
        cpu = 7.5
        memory = "14Gi"
        disk = 1000000000
        executions = 9

        [maximum]
        cpu = "1500m"
        memory = "1G"
        workspace = "20Gi"
        tmp = "1Gi"
        shm = "256Mi"
        pids = 128
        output = "1Mi"
    """
    policy = model.parse(text, FACTS)
    assert policy.images == (PINNED, "sha256:" + "b" * 64, "registry.example/team/*")
    assert policy.capacity_amounts() == Amounts(
        cpu_millis=7500, memory_bytes=14 << 30, disk_bytes=10**9, executions=9
    )
    assert policy.maximum == model.Maximum(
        cpu="1500m",
        memory="1G",
        workspace="20Gi",
        tmp="1Gi",
        shm="256Mi",
        pids=128,
        output="1Mi",
    )
    assert policy.maximum.cpu == 1500
    assert policy.maximum.memory == 10**9
    assert policy.media == (Medium.DISK,)


def test_part_of_a_table_leaves_the_rest_as_it_is() -> None:
    policy = model.parse('[capacity]\nmemory = "1Gi"', FACTS)
    assert (policy.capacity.cpu, policy.capacity.memory) == (8000, 1 << 30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image = []", "image: there is no such key"),
        ("[capacity]\ncpus = 4", "capacity.cpus: there is no such key"),
        ("[maximum]\nmemroy = 1", "maximum.memroy: there is no such key"),
        ("[limits]\n", "limits: there is no such key"),
        ("maximum_deadline_seconds = 5", "maximum_deadline_seconds: there is no such key"),
        ("capacity = 5", "capacity: "),
        ('[capacity]\nmemory = "a lot"', "capacity.memory: "),
        ('[capacity]\nmemory = "-1Gi"', "capacity.memory: "),
        ("[capacity]\nmemory = -1", "capacity.memory: "),
        ("[capacity]\nmemory = true", "capacity.memory: "),
        ("[capacity]\nmemory = 1.5", "capacity.memory: "),
        ("[capacity]\ncpu = true", "capacity.cpu: "),
        ("[capacity]\ncpu = inf", "capacity.cpu: "),
        ("[capacity]\ncpu = [1]", "capacity.cpu: "),
        ('[capacity]\nexecutions = "9"', "capacity.executions: "),
        ("maximumDeadlineSeconds = 0", "maximumDeadlineSeconds: "),
        ("maximumDeadlineSeconds = 86401", "maximumDeadlineSeconds: "),
        ("maximumRetainSeconds = -1", "maximumRetainSeconds: "),
        ("runtimes = []", "runtimes: "),
        ('media = ["Tape"]', "media.0: "),
        ('images = ["python@sha256:abc"]', "images: "),
        ("images = 'x'", "images: "),
        ("capacity = [", "not TOML: "),
        ("a = 1\na = 2", "not TOML: "),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        model.parse(text, FACTS)
    assert said in caught.value.message
    assert caught.value.reason == "InvalidPolicy"


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(errors.Invalid) as caught:
        model.parse("image = 1\nruntime = 2\n[capacity]\ncpus = 3", FACTS)
    for key in ("image", "runtime", "capacity.cpus"):
        assert f"{key}: there is no such key" in caught.value.message
