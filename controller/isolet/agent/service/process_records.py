"""Records of Processes from requests, and answers from them. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from isolet.agent.service.records import git_part
from isolet.agent.store.base import Tombstone
from isolet.base import names
from isolet.plan.git_model import git_observed
from isolet.plan.sandbox_model import Kind, PinnedSpec, ProcessPart, SandboxRecord
from isolet.wire.execution import ExecutionSpec, State, Step
from isolet.wire.process import (
    ProcessAmendment,
    ProcessObserved,
    ProcessOutputFacts,
    ProcessSpec,
    ProcessState,
    ProcessWanted,
)


def as_execution(spec: ProcessSpec) -> ExecutionSpec:
    """A sandbox of its own as an Execution that runs this command: the same bounds hold."""
    assert spec.sandbox is not None
    own = spec.sandbox
    return ExecutionSpec(
        image=own.image,
        runtime=own.runtime,
        user=own.user,
        resources=own.resources,
        workspace=own.workspace,
        tmp_executable=own.tmp_executable,
        command=spec.argv(),
        env=spec.env,
        maximum_deadline_seconds=spec.lifetime_seconds(),
        status_tail_bytes=spec.output.status_tail_bytes,
    )


def new(
    wanted: ProcessWanted, pinned: PinnedSpec, digest: str, installation: str, now: datetime
) -> SandboxRecord:
    """The record of a Process that is heard of for the first time."""
    spec = wanted.spec
    return SandboxRecord(
        uid=wanted.uid,
        namespace=wanted.namespace,
        name=wanted.name,
        class_name=wanted.class_name,
        generation=wanted.generation,
        spec_digest=digest,
        spec=pinned,
        kind=Kind.PROCESS,
        process=ProcessPart(
            host_uid=spec.execution_uid,
            on_overflow=spec.output.on_overflow,
            output_limit=spec.output.limit_bytes or pinned.resources.output_bytes,
            globs=spec.artifacts,
            deadline_at=spec.deadline_at,
            file_sizes=tuple((file.path, len(file.content)) for file in spec.files),
            stdin_bytes=len(spec.stdin or b""),
        ),
        git=git_part(spec.sandbox.workspace) if spec.sandbox else None,
        state=_state(wanted.state),
        stop_reason=wanted.stop_reason,
        active_deadline_seconds=spec.lifetime_seconds(),
        container_name=names.container_name(installation, wanted.uid),
        created_at=now,
        updated_at=now,
    )


def amended(record: SandboxRecord, change: ProcessAmendment) -> SandboxRecord:
    """The record with what may change changed; Cancelled is one-way, and so is disposing."""
    wanted = _state(change.state)
    changed = record.with_(
        generation=max(record.generation, change.generation),
        state=State.TERMINATED if record.state is State.TERMINATED else wanted,
        stop_reason=record.stop_reason or change.stop_reason,
    )
    if change.dispose and record.outcome is not None:
        part = replace(_part(record), disposed=True)
        return changed.with_(spec=record.spec.with_retention(0), process=part)
    return changed


def _state(state: ProcessState) -> State:
    return State.TERMINATED if state is ProcessState.CANCELLED else State.RUNNING


def observed(record: SandboxRecord) -> ProcessObserved:
    """The record as it is told to others."""
    part = _part(record)
    output = ProcessOutputFacts(
        **record.output.model_dump(), truncated_streams=part.truncated_streams
    )
    ending = record.stop is not None or record.state is State.TERMINATED or record.removing
    return ProcessObserved(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        sequence=record.sequence,
        spec_digest=record.spec_digest,
        generation=record.generation,
        step=record.step,
        removing=record.removing,
        cancel_requested=ending and record.outcome is None,
        outcome=record.outcome,
        waiting=record.waiting,
        execution_uid=part.host_uid,
        image_id=record.image_id,
        git=git_observed(record.git),
        container_id=record.container_id,
        boot_id=record.boot_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
        started_at=record.started_at,
        deadline_at=deadline_at(record),
        ended_at=record.ended_at,
        retained_until=_retained_until(record),
        output=output,
        artifacts=part.artifacts,
        artifact_problems=part.artifact_problems,
        nothing_left=record.nothing_left,
        disposed=part.disposed,
    )


def deadline_at(record: SandboxRecord) -> datetime | None:
    """When it will be ended at the latest, in wall time, for people."""
    at = _part(record).deadline_at
    if record.started_at is None:
        return at
    own = record.started_at + timedelta(seconds=record.active_deadline_seconds)
    return own if at is None else min(at, own)


def _retained_until(record: SandboxRecord) -> datetime | None:
    if record.ended_at is None or record.nothing_left or not record.spec.retain_seconds:
        return None
    return record.ended_at + timedelta(seconds=record.spec.retain_seconds)


def _part(record: SandboxRecord) -> ProcessPart:
    assert record.process is not None
    return record.process


def buried(tombstone: Tombstone, sequence: int) -> ProcessObserved:
    """What is told of a Process whose record is gone."""
    return ProcessObserved(
        uid=tombstone.uid,
        namespace=tombstone.namespace,
        name=tombstone.name,
        sequence=sequence,
        spec_digest=tombstone.spec_digest,
        step=Step.DISPOSED,
        removing=True,
        nothing_left=True,
    )
