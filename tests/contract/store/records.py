"""A record to start from."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from isolet.agent.store.base import Served
from isolet.plan.git_model import GitPart, Tree
from isolet.plan.sandbox_model import (
    CheckpointPart,
    Kind,
    Moment,
    PinnedSpec,
    ProcessPart,
    SandboxRecord,
    SlotPart,
    Stop,
)
from isolet.wire.checkpoint import Manifest, Restore, Source, StoreCopy
from isolet.wire.execution import (
    Medium,
    Outcome,
    OutputFacts,
    Resources,
    State,
    Step,
    Waiting,
)
from isolet.wire.process import Artifact, ArtifactProblem, OnOverflow

NOON = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
BOOT = "boot"


def moment(wall: datetime = NOON) -> Moment:
    """That time of a boot that began the day before."""
    seconds = (wall - NOON).total_seconds() + 86_400
    return Moment(wall=wall, boottime=seconds, boot_id=BOOT)


def before(wall: datetime) -> Served:
    """What was buried before then on both clocks."""
    return Served(before=wall, boot_id=BOOT, boottime_before=moment(wall).boottime)


def a_record(uid: str = "u1", **changes: object) -> SandboxRecord:
    base = SandboxRecord(
        uid=uid,
        namespace="team",
        name=f"name-{uid}",
        class_name="small",
        generation=1,
        spec_digest="hmac-sha256:00",
        spec=PinnedSpec(
            image="sha256:ab",
            runtime="runsc",
            user="65532:65532",
            resources=Resources(
                cpu_millis=500,
                memory_bytes=64 << 20,
                workspace_bytes=16 << 20,
                tmp_bytes=1 << 20,
                shm_bytes=1 << 20,
                pids=64,
                output_bytes=1 << 20,
            ),
            medium=Medium.DISK,
            workspace_executable=True,
            tmp_executable=False,
            retain_seconds=0,
            program="python3",
            maximum_deadline_seconds=600,
            idle_timeout_seconds=None,
            status_tail_bytes=0,
            env_names=("HOME", "PATH"),
        ),
        state=State.RUNNING,
        active_deadline_seconds=60,
        container_name=f"isolet-{uid}",
        created_at=NOON,
        updated_at=NOON,
    )
    return base.with_(**changes) if changes else base


def a_full_record(uid: str = "full") -> SandboxRecord:
    """Every field away from its default."""
    return a_record(
        uid,
        generation=7,
        state=State.TERMINATED,
        stop_reason="Drained",
        step=Step.DISPOSED,
        removing=True,
        container_id="c" * 64,
        image_id="sha256:ab",
        boot_id="b",
        dispatched_at=NOON + timedelta(microseconds=1),
        dispatched_boottime=1e9 / 3,
        started_at=NOON.astimezone(timezone(timedelta(hours=2))),
        started_boottime=0.1 + 0.2,
        last_activity_boottime=5e-324,
        stop=Stop(reason="Cancelled", message="it was \u2028 asked for", succeeded=False),
        outcome=Outcome(
            succeeded=False, reason="NonZeroExit", message="\U0001f600", exit_code=137, signal=9
        ),
        waiting=Waiting(reason="Disposing", message="…"),
        output=OutputFacts(stdout_bytes=2**53 + 1, stderr_bytes=1, truncated=True, incomplete=True),
        output_collected=True,
        ended_at=NOON + timedelta(days=1),
        ended_boottime=7.0,
        nothing_left=True,
        slot=SlotPart(uid="slot-1", digest="sha256:00"),
        awaits_slot=True,
        dispatch=True,
        kind=Kind.PROCESS,
        process=ProcessPart(
            host_uid="host",
            on_overflow=OnOverflow.FAIL,
            output_limit=7,
            globs=("out/**",),
            deadline_at=NOON,
            deadline_at_boottime=1.5,
            file_sizes=(("f", 3),),
            stdin_bytes=4,
            truncated_streams=("stdout",),
            collected=True,
            artifacts=(Artifact(path="a", size=1, digest="sha256:00"),),
            artifact_problems=(ArtifactProblem(path="b", reason="ArtifactMissing", message="no"),),
        ),
        checkpoint=CheckpointPart(
            execution_uid="host",
            execution_namespace="team",
            execution_name="work",
            reason="before lunch",
            attempts=2,
            manifest=a_manifest(),
            manifest_digest="sha256:" + "1" * 64,
            in_store=StoreCopy(store="main", key="checkpoints/c"),
        ),
        restored=True,
        git=GitPart(
            repository="project",
            revision="v1",
            commit="a" * 40,
            tree=Tree(entries=3, submodules=("sub",), more_submodules=1, lfs=2),
        ),
        spec=replace(
            a_record().spec,
            restore=Restore(
                checkpoint_uid="c",
                manifest_digest="sha256:" + "1" * 64,
                content_digest="sha256:" + "2" * 64,
            ),
        ),
    )


def a_manifest() -> Manifest:
    spec = a_record().spec
    return Manifest(
        checkpoint_uid="c",
        namespace="team",
        name="c",
        reason="before lunch",
        taken_at=NOON,
        source=Source(
            execution_uid="host",
            namespace="team",
            name="work",
            class_name="small",
            image="sha256:ab",
            image_id="sha256:ab",
            user=spec.user,
            resources=spec.resources,
            medium=spec.medium,
            commit="0" * 40,
        ),
        entries=3,
        entries_bytes=300,
        content_digest="sha256:" + "2" * 64,
        content_bytes=4096,
        size_bytes=1000,
    )
