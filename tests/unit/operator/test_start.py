import asyncio

import pytest

from fakes.cluster import FakeCluster
from isolet.base import errors
from isolet.operator import run
from isolet.operator.kube import CRDS, OURS

FORBIDDEN = errors.Refused("cannot get customresourcedefinitions", reason="Forbidden")


def crd(kind):
    return {
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {"versions": [{"name": kind.version, "served": True}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    }


@pytest.fixture
def cluster():
    found = FakeCluster()
    for kind in OURS:
        found.seed(CRDS, crd(kind))
    return found


@pytest.mark.parametrize(
    "faults", [(), (FORBIDDEN,), (errors.Unavailable("no connection"), FORBIDDEN)]
)
async def test_it_starts_once_server_and_rights_are_there(cluster, faults):
    cluster.fail(*faults)
    async with asyncio.timeout(60):
        await run.check_crds(cluster, asyncio.Event())
    assert cluster.faults == []


async def test_rights_that_never_come_end_it(cluster, monkeypatch):
    monkeypatch.setattr(run, "RIGHTS_PATIENCE", 0.1)
    cluster.fail(*(FORBIDDEN,) * 100)
    async with asyncio.timeout(60):
        with pytest.raises(errors.Refused):
            await run.check_crds(cluster, asyncio.Event())
    assert len(cluster.faults) > 90


async def test_a_kind_that_is_not_served_is_named(cluster):
    cluster.vanish(CRDS, "", f"{OURS[1].plural}.{OURS[1].group}")
    with pytest.raises(errors.Invalid, match=rf"does not serve {OURS[1].plural}\."):
        await run.check_crds(cluster, asyncio.Event())
