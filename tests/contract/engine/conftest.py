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


@pytest.fixture
async def proxied(tmp_path):
    """The real one behind a proxy."""
    proxy = Proxy(tmp_path / "s", harness.environment("ISOLET_DOCKER_SOCKETS").split()[0])
    await proxy.start()
    found = harness.RealBench(proxy)
    yield found
    await found.close()
    await proxy.stop()


@pytest.fixture(params=["fake", "real"])
async def faulty(request):
    """An engine whose calls can be made to fail."""
    if request.param == "real":
        yield request.getfixturevalue("proxied")
        return
    found = harness.FakeBench()
    yield found
    await found.close()
