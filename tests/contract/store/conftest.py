from collections.abc import AsyncIterator

import pytest

from isolet.agent.store import base
from isolet.agent.store.sqlite import SQLiteStore
from tests.fakes.store import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path) -> AsyncIterator[base.Store]:
    found: base.Store
    found = MemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "s")
    yield found
    await found.close()
