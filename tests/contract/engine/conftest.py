import contextlib

import pytest

from . import harness
from .proxy import Proxy


@pytest.fixture(params=["fake", "real"])
async def bench(request):
    """One engine or the other."""
    found = harness.FakeBench() if request.param == "fake" else harness.RealBench()
    yield found
    await found.close()


@pytest.fixture
async def real(tmp_path):
    """The real one alone: what only it can show."""
    found = harness.RealBench()
    yield found
    await found.close()


@contextlib.asynccontextmanager
async def behind_a_proxy(folder):
    proxy = Proxy(folder / "s", harness.environment("ISOLET_DOCKER_SOCKETS").split()[0])
    await proxy.start()
    found = harness.RealBench(proxy)
    try:
        yield found
    finally:
        await found.close()
        await proxy.stop()


@pytest.fixture
async def proxied(tmp_path):
    """The real one behind a proxy."""
    async with behind_a_proxy(tmp_path) as found:
        yield found


@pytest.fixture(params=["fake", "real"])
async def faulty(request, tmp_path):
    """An engine whose calls can be made to fail."""
    if request.param == "real":
        async with behind_a_proxy(tmp_path) as found:
            yield found
        return
    found = harness.FakeBench()
    yield found
    await found.close()
