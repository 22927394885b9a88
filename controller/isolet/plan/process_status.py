"""The part of a status that only Processes have: what its agent recorded of it. PURE.

Called by `status`, which has the rest.
"""

from datetime import datetime
from typing import Any

from isolet.api import process, sandbox
from isolet.plan.objects import ProcessFacts
from isolet.wire.process import ProcessObserved


def identity(
    object_: ProcessFacts, record: ProcessObserved | None, inside: str | None
) -> dict[str, Any]:
    """Which request it is and where it runs; what is known once stays."""
    stored = object_.status
    if record is None:
        return {"execution_uid": stored.execution_uid or inside}
    return {
        "execution_uid": record.execution_uid or stored.execution_uid or inside,
        "request_digest": record.spec_digest or stored.request_digest,
        "container_id": record.container_id or stored.container_id,
        "boot_id": record.boot_id or stored.boot_id,
    }


def kept(record: ProcessObserved) -> dict[str, Any]:
    """What was found of the files to keep, what was not, and what was seen of memory."""
    return {
        "artifacts": tuple(
            process.Artifact(path=item.path, size=item.size, digest=item.digest)
            for item in record.artifacts
        )
        or None,
        "oom_evidence": _oom_evidence(record),
        "artifact_problems": tuple(
            process.ArtifactProblem(path=item.path, reason=item.reason, message=item.message)
            for item in record.artifact_problems
        )
        or None,
    }


def _oom_evidence(record: ProcessObserved) -> sandbox.OOMEvidence | None:
    seen = record.outcome.oom if record.outcome else None
    if seen is None:
        return None
    return sandbox.OOMEvidence(
        engine_flag=seen.engine_flag or None, engine_event=seen.engine_event or None
    )


def disposal(
    object_: ProcessFacts, record: ProcessObserved | None, now: datetime
) -> datetime | None:
    """When what was retained was first seen to be gone."""
    stored = object_.status
    if stored.disposal_time is not None or stored.retained_until is None:
        return stored.disposal_time
    gone = record is not None and record.nothing_left
    return now.replace(microsecond=0) if gone else None


def cut(record: ProcessObserved) -> tuple[str, ...] | None:
    """Streams of which only the end is kept."""
    return record.output.truncated_streams or None
