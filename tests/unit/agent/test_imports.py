"""A reading of a Git tree that fails as nobody foresaw is an end: it is not begun again."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from isolet.agent.policy.git import GitPolicy, GitRepository
from isolet.agent.service.imports import Imports
from isolet.plan import reasons
from isolet.plan.git_model import GitPart
from tests.contract.store.records import a_record


class Mirrors:
    """Fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def path(self, *_: object, **__: object) -> str:
        raise self._error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), reasons.NODE_STORAGE_FULL),
        (OSError(errno.EIO, os.strerror(errno.EIO)), reasons.GIT_IMPORT_FAILED),
        (KeyError("a helper's answer without it"), reasons.GIT_IMPORT_FAILED),
    ],
)
async def test_it_is_said_and_not_begun_again(error: Exception, reason: str) -> None:
    far = GitRepository(remote="https://git.example/far.git")
    context: Any = SimpleNamespace(
        policy=SimpleNamespace(git=GitPolicy(repositories={"far": far})),
        mirrors=Mirrors(error),
        trees=SimpleNamespace(is_ready=lambda _: False),
    )
    record = a_record(git=GitPart(repository="far", revision="main"))
    woken = asyncio.Event()
    imports = Imports(context, lambda _: woken.set())
    imports.resolve(record)
    await asyncio.wait_for(woken.wait(), timeout=60)
    seen = imports.look(record)
    assert not seen.busy
    assert seen.failed is not None
    assert (seen.failed.succeeded, seen.failed.reason) == (False, reason)
