"""Records of Checkpoints from requests, and answers from them. Pure."""

from collections.abc import Mapping
from datetime import datetime

from isolet.agent.store.base import Tombstone
from isolet.base import names
from isolet.plan.checkpoint import part_of
from isolet.plan.sandbox_model import CheckpointPart, Kind, SandboxRecord
from isolet.wire.checkpoint import (
    CheckpointObserved,
    CheckpointSpec,
    CheckpointStep,
    CheckpointWanted,
    Manifest,
    Source,
)
from isolet.wire.execution import State, Step

_STEPS: Mapping[Step, CheckpointStep] = {
    Step.RECORDED: CheckpointStep.RECORDED,
    Step.DISPATCHED: CheckpointStep.TAKING,
    Step.RUNNING: CheckpointStep.TAKING,
    Step.ENDED: CheckpointStep.ENDED,
    Step.DISPOSED: CheckpointStep.DISPOSED,
}


def digest(spec: CheckpointSpec) -> str:
    """What stands for a request: the same uid with another one is a conflict."""
    return names.digest(names.canonical_json(spec.model_dump(mode="json")))


def new(wanted: CheckpointWanted, host: SandboxRecord, now: datetime) -> SandboxRecord:
    """The record of a Checkpoint that is heard of for the first time."""
    return SandboxRecord(
        uid=wanted.uid,
        namespace=wanted.namespace,
        name=wanted.name,
        class_name=host.class_name,
        generation=wanted.generation,
        spec_digest=digest(wanted.spec),
        spec=host.spec,
        kind=Kind.CHECKPOINT,
        checkpoint=CheckpointPart(
            execution_uid=host.uid,
            execution_namespace=host.namespace,
            execution_name=host.name,
            reason=wanted.spec.reason,
        ),
        state=State.RUNNING,
        active_deadline_seconds=host.active_deadline_seconds,
        container_name=host.container_name,
        created_at=now,
        updated_at=now,
    )


def source(record: SandboxRecord) -> Source:
    """What the manifest says of the Execution. No value, no argument."""
    part = part_of(record)
    return Source(
        execution_uid=part.execution_uid,
        namespace=part.execution_namespace,
        name=part.execution_name,
        class_name=record.class_name,
        image=record.spec.image,
        image_id=record.image_id or "",
        user=record.spec.user,
        resources=record.spec.resources,
        medium=record.spec.medium,
        commit=record.git.commit if record.git is not None else None,
    )


def held_bytes(manifest: Manifest | None) -> int:
    """What a copy takes on disk, the manifest itself apart."""
    return 0 if manifest is None else manifest.entries_bytes + manifest.content_bytes


def observed(record: SandboxRecord, readers: int) -> CheckpointObserved:
    """The record as it is told to others."""
    part = part_of(record)
    taken = record.outcome is not None and record.outcome.succeeded
    return CheckpointObserved(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        sequence=record.sequence,
        generation=record.generation,
        execution_uid=part.execution_uid,
        step=_STEPS[record.step],
        removing=record.removing,
        outcome=record.outcome,
        waiting=record.waiting,
        manifest=part.manifest if taken else None,
        manifest_digest=part.manifest_digest if taken else None,
        on_node=taken and not record.nothing_left,
        in_store=part.in_store if taken and not record.nothing_left else None,
        readers=readers,
        started_at=record.dispatched_at,
        ended_at=record.ended_at,
        nothing_left=record.nothing_left,
    )


def buried(tombstone: Tombstone, sequence: int) -> CheckpointObserved:
    """What is told of a Checkpoint whose record is gone."""
    return CheckpointObserved(
        uid=tombstone.uid,
        namespace=tombstone.namespace,
        name=tombstone.name,
        sequence=sequence,
        execution_uid="",
        step=CheckpointStep.DISPOSED,
        removing=True,
        nothing_left=True,
    )
