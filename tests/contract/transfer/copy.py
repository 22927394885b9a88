"""A whole copy to be moved about."""

import os
from datetime import UTC, datetime
from pathlib import Path

from isolet.agent.workspace.checkpoints import PARTS, CheckpointFolders
from isolet.base import names
from isolet.wire.checkpoint import Manifest, Source
from isolet.wire.execution import Medium
from isolet.wire.restore import Restore
from tests.contract.client.harness import resources
from tests.unit.agent.archive.trees import packed

UID = "c-1"


def manifest(figures: dict[str, object], **changes: object) -> Manifest:
    source = Source(
        execution_uid="e-1",
        namespace="acme",
        name="work",
        image="sha256:" + "a" * 64,
        image_id="sha256:" + "a" * 64,
        user="1000:1000",
        resources=resources(),
        medium=Medium.DISK,
    )
    fields = {
        "checkpoint_uid": UID,
        "namespace": "acme",
        "name": "one",
        "taken_at": datetime(2026, 1, 1, tzinfo=UTC),
        "source": source,
        **figures,
        **changes,
    }
    return Manifest.model_validate(fields)


def make(folders: CheckpointFolders, work: Path, *, size: int = 3 << 20) -> Restore:
    """Put a copy of a few files into place; what a restore of it is told."""
    work.mkdir()
    (work / "d").mkdir()
    (work / "d" / "f").write_bytes(os.urandom(size))
    entries, content, figures = packed(work)
    made = manifest(figures._asdict())
    raw = made.to_json()
    aside = folders.begin(UID)
    for name, data in zip(PARTS, (raw, entries, content), strict=True):
        (aside / name).write_bytes(data)
    folders.keep(UID)
    return Restore(
        checkpoint_uid=UID,
        manifest_digest=names.digest(raw),
        content_digest=made.content_digest,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in PARTS}
