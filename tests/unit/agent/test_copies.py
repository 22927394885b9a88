"""A node that cannot keep what is brought to it says so; it does not look again for ever."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from isolet.agent.service import copies
from isolet.agent.service.copies import CannotRestore, NearestCopies
from isolet.agent.workspace.checkpoints import CheckpointFolders
from isolet.plan import reasons
from isolet.wire.restore import Restore, RestoreFrom, StoreCopy


class Store:
    """Has everything."""

    def source(self, _: StoreCopy) -> Any:
        return None


async def test_a_full_disk_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copies, "receive", receive)
    folders = CheckpointFolders(tmp_path)
    folders.prepare()
    store: Any = Store()
    digest = "sha256:" + "a" * 64
    restore = Restore(checkpoint_uid="c", manifest_digest=digest, content_digest=digest)
    told = RestoreFrom(in_store=StoreCopy(store="main", key="c"))
    with pytest.raises(CannotRestore, match="No space left") as caught:
        async with NearestCopies(folders, store=store).fetch(restore, told):
            raise AssertionError
    assert caught.value.reason == reasons.CHECKPOINT_UNAVAILABLE
    assert list((tmp_path / "aside").iterdir()) == []
