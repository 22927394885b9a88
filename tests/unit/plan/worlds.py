"""Healthy records and facts; a test changes what it is about."""

from datetime import UTC, datetime, timedelta

from isolet.plan.sandbox_model import (
    ContainerFacts,
    Life,
    Moment,
    PinnedSpec,
    SandboxFacts,
    SandboxRecord,
    Seen,
)
from isolet.wire.execution import Medium, Resources, State, Step

WALL = datetime(2026, 1, 1, tzinfo=UTC)
BOOT = "boot-1"
NOW = Moment(wall=WALL, boottime=1000.0, boot_id=BOOT)
MIB = 1 << 20

RESOURCES = Resources(
    cpu_millis=500,
    memory_bytes=64 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=4 * MIB,
    shm_bytes=MIB,
    pids=64,
    output_bytes=MIB,
)


def a_spec(**changes: object) -> PinnedSpec:
    base = {
        "image": "sha256:" + "a" * 64,
        "runtime": "runsc",
        "user": "65532:65532",
        "resources": RESOURCES,
        "medium": Medium.MEMORY,
        "workspace_executable": True,
        "tmp_executable": False,
        "retain_seconds": 0,
        "program": "make",
        "maximum_deadline_seconds": 3600,
        "idle_timeout_seconds": None,
        "status_tail_bytes": 0,
    }
    return PinnedSpec(**{**base, **changes})


def a_record(step: Step = Step.RECORDED, **changes: object) -> SandboxRecord:
    base: dict[str, object] = {
        "uid": "u1",
        "namespace": "default",
        "name": "hello",
        "class_name": "standard",
        "generation": 1,
        "spec_digest": "hmac-sha256:1",
        "spec": a_spec(),
        "state": State.RUNNING,
        "active_deadline_seconds": 60,
        "step": step,
        "container_name": "isolet-1",
        "created_at": WALL,
        "updated_at": WALL,
    }
    if step in (Step.DISPATCHED, Step.RUNNING):
        base |= {
            "boot_id": BOOT,
            "container_id": "c1",
            "dispatched_at": WALL,
            "dispatched_boottime": 1000.0,
        }
    if step is Step.RUNNING:
        base |= {"started_at": WALL, "started_boottime": 1000.0}
    return SandboxRecord(**{**base, **changes})


def a_container(life: Life = Life.RUNNING, **changes: object) -> ContainerFacts:
    base: dict[str, object] = {"id": "c1", "ours": True, "life": life}
    if life in (Life.RUNNING, Life.EXITED):
        base |= {"started_at": WALL}
    if life is Life.EXITED:
        base |= {"exit_code": 0, "finished_at": WALL + timedelta(seconds=1)}
    return ContainerFacts(**{**base, **changes})


def facts(seen: ContainerFacts | None = None, **changes: object) -> SandboxFacts:
    base: dict[str, object] = {
        "container": Seen.PRESENT if seen else Seen.ABSENT,
        "seen": seen,
        "image": Seen.PRESENT,
        "inputs": True,
        "output_done": True,
    }
    return SandboxFacts(**{**base, **changes})


def later(seconds: float, boot: str = BOOT) -> Moment:
    return Moment(wall=WALL + timedelta(seconds=seconds), boottime=1000.0 + seconds, boot_id=boot)
