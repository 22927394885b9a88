"""Records from requests, and answers from records. Pure."""

from datetime import datetime, timedelta

from isolet.agent.store.base import Tombstone
from isolet.base import errors, names
from isolet.plan.git_model import GitPart, git_observed
from isolet.plan.sandbox_model import PinnedSpec, SandboxRecord
from isolet.wire.execution import (
    Amendment,
    ExecutionObserved,
    ExecutionSpec,
    ExecutionWanted,
    Medium,
    State,
    Step,
    Workspace,
)


def new(wanted: ExecutionWanted, digest: str, installation: str, now: datetime) -> SandboxRecord:
    """The record of an Execution that is heard of for the first time."""
    return SandboxRecord(
        uid=wanted.uid,
        namespace=wanted.namespace,
        name=wanted.name,
        class_name=wanted.class_name,
        generation=wanted.generation,
        spec_digest=digest,
        spec=pinned(wanted.spec),
        git=git_part(wanted.spec.workspace),
        state=wanted.state,
        stop_reason=wanted.stop_reason,
        active_deadline_seconds=wanted.active_deadline_seconds,
        container_name=names.container_name(installation, wanted.uid),
        created_at=now,
        updated_at=now,
    )


def amended(record: SandboxRecord, change: Amendment) -> SandboxRecord:
    """The record with what may change changed; Terminated is one-way.

    Raises:
        Refused: the deadline would pass the maximum that was pinned.
    """
    limit = record.spec.maximum_deadline_seconds
    deadline = change.active_deadline_seconds or record.active_deadline_seconds
    if deadline > limit:
        raise errors.Refused(
            f"activeDeadlineSeconds {deadline} is over the maximum of {limit}",
            reason="DeadlineNotAllowed",
        )
    return record.with_(
        generation=max(record.generation, change.generation),
        active_deadline_seconds=deadline,
        state=State.TERMINATED if record.state is State.TERMINATED else change.state,
        stop_reason=record.stop_reason or change.stop_reason,
    )


def require_not_over(record: SandboxRecord) -> None:
    """Raise Conflict for a record that is removed but for its tombstone."""
    if record.removing and record.nothing_left:
        raise errors.Conflict(f"{record.uid} has ended here before", reason="AlreadyEnded")


def pinned(spec: ExecutionSpec) -> PinnedSpec:
    """What is kept of a spec: no value and no argument."""
    return PinnedSpec(
        image=spec.image,
        runtime=spec.runtime,
        user=spec.user,
        resources=spec.resources,
        medium=Medium(spec.workspace.medium),
        workspace_executable=spec.workspace.executable,
        tmp_executable=spec.tmp_executable,
        retain_seconds=spec.workspace.retain_seconds,
        program=spec.command[0][:256] if spec.command else "",
        maximum_deadline_seconds=spec.maximum_deadline_seconds,
        idle_timeout_seconds=spec.idle_timeout_seconds,
        status_tail_bytes=spec.status_tail_bytes,
        env_names=tuple(variable.name for variable in spec.env),
        restore=spec.restore,
    )


def git_part(workspace: Workspace) -> GitPart | None:
    """What is kept of the Git revision that a workspace begins with."""
    source = workspace.git
    if source is None:
        return None
    return GitPart(repository=source.repository, revision=source.revision)


def deadline_at(record: SandboxRecord) -> datetime | None:
    """The deadline in wall time, for people."""
    if record.started_at is None:
        return None
    return record.started_at + timedelta(seconds=record.active_deadline_seconds)


def observed(record: SandboxRecord) -> ExecutionObserved:
    """The record as it is told to others."""
    return ExecutionObserved(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        sequence=record.sequence,
        spec_digest=record.spec_digest,
        generation=record.generation,
        step=record.step,
        removing=record.removing,
        outcome=record.outcome,
        waiting=record.waiting,
        image_id=record.image_id,
        git=git_observed(record.git),
        started_at=record.started_at,
        deadline_at=deadline_at(record),
        ended_at=record.ended_at,
        output=record.output,
        nothing_left=record.nothing_left,
    )


def mutable(wanted: ExecutionWanted) -> Amendment:
    """The part of a request that may change later."""
    return Amendment(
        generation=wanted.generation,
        active_deadline_seconds=wanted.active_deadline_seconds,
        state=wanted.state,
        stop_reason=wanted.stop_reason,
    )


def buried(tombstone: Tombstone, sequence: int) -> ExecutionObserved:
    """What is told of an Execution whose record is gone."""
    return ExecutionObserved(
        uid=tombstone.uid,
        namespace=tombstone.namespace,
        name=tombstone.name,
        sequence=sequence,
        spec_digest=tombstone.spec_digest,
        step=Step.DISPOSED,
        removing=True,
        nothing_left=True,
    )
