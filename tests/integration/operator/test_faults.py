"""The API server in trouble, the watch cut, conflicts: the operator goes on and nothing doubles."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from isolet.base import errors
from isolet.operator import handlers, run
from isolet.operator.cluster import Access, KubeCluster
from isolet.operator.kube import (
    CONFIG_MAPS,
    EXECUTIONS,
    OURS,
    SECRETS,
    Kind,
    ListOptions,
    Precondition,
)
from tests.integration.operator.harness import SHORT_LEASE, World, until
from tests.integration.operator.proxy import Proxy
from tests.unit.api.objects import an_execution


@pytest.fixture
async def proxy(world: World, tmp_path: Path):
    """The operator of this test speaks to the API server through it."""
    proxy = Proxy(world.kubeconfig)
    world.kubeconfig = await proxy.start(tmp_path)
    yield proxy
    await proxy.stop()


async def test_a_cut_watch_is_taken_up_again(world: World, proxy: Proxy) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        await until(lambda: proxy.watches >= 5, "watching")
        for i in range(3):
            proxy.cut()
            uid = await world.create(f"x{i}")
            await until(lambda uid=uid: uid in agent.live, "running")
    assert world.exits == []


async def test_410_in_the_watch_and_deletions_in_its_gap(world: World, proxy: Proxy) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader(resync_seconds=2.0) as operator:
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        await world.call("create", an_execution("unseen"), world.namespace)
        await until(lambda: _knows(operator, "unseen"), "known")
        proxy.swallow = {"DELETED"}
        proxy.cut()
        await world.delete("unseen")
        proxy.gone = True
        proxy.cut()
        await asyncio.sleep(1)
        proxy.gone, proxy.swallow = False, set()
        await until(lambda: not _knows(operator, "unseen"), "the re-list finds the deletion", 60)
        await world.delete()
        await world.until_gone(seconds=60)
    assert world.exits == []


def _knows(operator, name: str) -> bool:
    return any(key.name == name for key in operator.index.waiting)


async def test_a_watch_that_died_in_silence_is_repaired_and_told(
    world: World, proxy: Proxy
) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader(resync_seconds=1.0, stall_grace_seconds=2.0) as operator:
        await until(lambda: not operator.unready(), "listed")
        await until(lambda: operator.unhealthy() == [], "well")
        proxy.swallow = {"ADDED", "MODIFIED", "DELETED"}
        uid = await world.create()
        await until(lambda: uid in agent.live, "found by the re-list", 60)
        told = "the watch of Execution has stalled"
        await until(lambda: told in operator.unhealthy(), "liveness fails", 60)
        proxy.swallow = set()
        proxy.cut()
        await world.patch({"metadata": {"labels": {"a": "b"}}})
        await until(lambda: not operator.unhealthy(), "well again", 60)


async def test_lost_answers_and_errors_double_nothing(world: World, proxy: Proxy) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        for i in range(4):
            proxy.lose_answer = ["PATCH"]
            proxy.fail_next = [("PATCH", 500), ("GET", 503)][: i % 3]
            uid = await world.create(f"x{i}")
            await until(lambda uid=uid: uid in agent.live, "running", 60)
            proxy.lose_answer = ["PATCH"]
            await agent.end(uid)
            await world.until_condition("Succeeded", "True", f"x{i}", seconds=60)
            proxy.lose_answer = ["PATCH"]
            await world.delete(f"x{i}")
            await world.until_gone(f"x{i}", seconds=60)
    assert len(agent.starts) == len(set(agent.starts)) == 4


async def test_status_conflicts(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        stop = asyncio.Event()

        async def meddle() -> None:
            count = 0
            while not stop.is_set():
                count += 1
                await world.patch({"metadata": {"annotations": {"count": str(count)}}})
                await asyncio.sleep(0.01)

        meddling = asyncio.create_task(meddle())
        await until(lambda: uid in agent.live, "running", 60)
        await agent.end(uid)
        await world.until_condition("Succeeded", "True", seconds=60)
        stop.set()
        await meddling
        assert agent.starts == [uid]
        await world.delete()
        await world.until_gone()


async def test_a_long_outage_of_the_api_server(world: World, proxy: Proxy) -> None:
    """Longer than the lease: the process must end, and its successor takes up the work."""
    await world.add_class()
    agent = await world.add_node()
    async with world.leader(lease=SHORT_LEASE):
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        proxy.blocked = True
        proxy.cut()
        await until(lambda: world.exits, "told to end", 60)
        proxy.blocked = False
    assert "renewed" in world.exits[0]
    await agent.end(uid)
    async with world.leader(lease=SHORT_LEASE):
        await world.until_condition("Succeeded", "True", seconds=60)
    assert agent.starts == [uid]


async def test_the_api_server_is_killed_and_started_again(world: World) -> None:
    await world.add_class()
    agent = await world.add_node()
    async with world.leader():
        uid = await world.create()
        await until(lambda: uid in agent.live, "running")
        restart = await asyncio.to_thread(
            subprocess.run,
            ["hack/cluster", "restart", "apiserver"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert restart.returncode == 0, restart.stderr
        await agent.end(uid)
        await until(lambda: _takes_objects(world), "policies in force again", 120)
        await world.until_condition("Succeeded", "True", seconds=60)
        other = await world.create("other")
        await until(lambda: other in agent.live, "running", 60)
    assert agent.starts == [uid, other]
    assert world.exits == []


async def _takes_objects(world: World) -> bool:
    """A restarted API server refuses all objects until its policies have found our kinds."""
    body = an_execution("probe")
    return bool((await world.call("create", body, world.namespace, dry=True)).ok)


async def test_missing_crds_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Kind("isolet.dev", "v1alpha1", "wonders", "Wonder")
    monkeypatch.setattr(run, "OURS", (*OURS, absent))
    with pytest.raises(errors.Invalid, match=r"wonders\.isolet\.dev: apply the files in crds/"):
        async with world.operator():
            pass


async def test_kopf_ending_ends_the_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(**_: object) -> None:
        raise RuntimeError("kopf gave up")

    monkeypatch.setattr(handlers.kopf, "operator", broken)
    async with world.operator():
        await until(lambda: world.exits, "told to end")
    assert "kopf gave up" in world.exits[0]


async def test_errors_of_the_api_server_by_their_code(world: World) -> None:
    cluster = await KubeCluster.connect(Access(kubeconfig=world.kubeconfig))
    try:
        await world.call("create", an_execution("a"), world.namespace)
        known = await cluster.get(EXECUTIONS, world.namespace, "a")
        stale = {"metadata": {"resourceVersion": "1"}}
        with pytest.raises(errors.NotFound):
            await cluster.get(CONFIG_MAPS, world.namespace, "none")
        with pytest.raises(errors.Conflict):
            await cluster.patch(EXECUTIONS, world.namespace, "a", stale)
        with pytest.raises(errors.Conflict):
            await cluster.delete(EXECUTIONS, world.namespace, "a", Precondition(uid="other"))
        bad = {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"]}}
        bad["spec"] = {"image": 5}
        with pytest.raises(errors.Invalid):
            await cluster.patch(EXECUTIONS, world.namespace, "a", bad)
        with pytest.raises(errors.Refused):
            await cluster.list(SECRETS, ListOptions(namespace=world.namespace))
        page = await cluster.list(EXECUTIONS, ListOptions(limit=1))
        assert len(page.items) == 1
    finally:
        await cluster.close()
    nowhere = await KubeCluster.connect(Access(kubeconfig=world.kubeconfig))
    nowhere._api.configuration.host = "https://127.0.0.1:1"
    with pytest.raises(errors.Unavailable):
        await nowhere.get(EXECUTIONS, world.namespace, "a")
    await nowhere.close()
