"""Passes over one Execution on an API server and an agent in memory, without a loop of workers."""

import asyncio

import pytest

from fakes.agent import IMAGE, FakeAgent
from fakes.cluster import FakeCluster
from isolet.base import errors
from isolet.base.clock import FixedClock
from isolet.operator.assembly import Operator
from isolet.operator.health import HealthServer
from isolet.operator.kube import CLASSES, EXECUTIONS, NAMESPACES, NODES, Key
from isolet.operator.links import LinkTimes
from isolet.operator.settings import Settings
from isolet.wire.base import Fence
from tests.unit.api.objects import a_class, a_node, an_execution

KEY = Key("Execution", "ns", "hello")


class World:
    """An operator that leads, whose passes the test makes by hand."""

    def __init__(self):
        self.clock = FixedClock()
        self.cluster = FakeCluster()
        self.agents = {}
        settings = Settings(
            identity="me", namespace="isolet-system", installation="test", agent_tls=None
        )
        self.operator = Operator(settings, self.cluster, self._connect, self.clock)
        self.lead()

    def _connect(self, endpoint):
        return self.agents[endpoint.server_name]

    def lead(self):
        self.operator.leadership.hold(
            Fence(lease_uid="lease", transitions=1), self.clock.boottime()
        )

    async def start(self, *nodes):
        self.cluster.seed(NAMESPACES, {"metadata": {"name": "ns"}})
        images = {"allowed": [IMAGE], "default": IMAGE}
        self.cluster.seed(CLASSES, {**a_class("standard", images=images)})
        for name in nodes:
            self.agents[name] = FakeAgent(name)
            self.cluster.seed(NODES, a_node(name))
        await self.operator.relist.round()
        for name in nodes:
            await self.hear(name)

    async def hear(self, name):
        """What a link's task does, at once."""
        self.operator.nodes.leading = True
        self.operator.nodes.put(name, self.operator.cache.get(Key("ExecutionNode", "", name)))
        entry = self.operator.nodes._entries[name]
        entry.task.cancel()
        await entry.link._account()
        entry.link._install(await self.agents[name].snapshot())

    async def create(self, **spec):
        body = an_execution("hello", **{"className": "standard", "image": IMAGE, **spec})
        body["metadata"] |= {
            "namespace": "ns",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:01:00Z",
        }
        stored = self.cluster.seed(EXECUTIONS, body)
        self.operator.cache.put(EXECUTIONS, stored)
        return stored["metadata"]["uid"]

    async def work(self, times=1):
        for _ in range(times):
            again = await self.operator.reconciler.work(KEY)
        return again

    @property
    def stored(self):
        return self.cluster.objects["Execution", "ns", "hello"]


async def test_the_binding_is_stored_before_the_agent_is_asked_and_is_the_only_write(world):
    uid = await world.create()
    world.cluster.faults = [None, errors.Unavailable("busy")]  # namespace read, then the patch
    await world.work()
    assert world.agents["n1"].puts == []
    await world.work()
    assert world.stored["spec"]["nodeName"] == "n1"
    assert world.stored["metadata"]["finalizers"] == ["isolet.dev/sandbox"]
    assert world.agents["n1"].starts == [uid]
    assert [w[:2] for w in world.cluster.writes] == [("patch", "Execution")]


async def test_a_stale_cache_never_binds_twice(world):
    await world.create()
    stale = world.operator.cache.get(KEY)
    await world.work()
    world.operator.cache.reset(EXECUTIONS)
    world.operator.cache.put(EXECUTIONS, stale)
    again = await world.work()
    assert again.failed
    assert len(world.cluster.writes) == 1
    assert world.operator.reconciler.memory.failures == {}, "nothing to tell"
    assert world.operator.cache.get(KEY)["spec"]["nodeName"] == "n1", "read afresh"


async def test_a_binding_whose_answer_is_lost_is_found_by_reading(world):
    await world.create()
    patch = world.cluster.patch

    async def lost(*args):
        world.cluster.patch = patch
        await patch(*args)
        raise errors.Unconfirmed("the answer was lost")

    world.cluster.patch = lost
    assert (await world.work()).failed
    assert world.operator.index._assumed == {}
    await world.work(2)
    assert len(world.agents["n1"].starts) == 1


async def test_without_the_lease_nothing_is_written_or_asked(world):
    await world.create()
    world.clock.advance(60)
    await world.hear("n1")
    assert (await world.work()).failed
    assert world.cluster.writes == []
    world.lead()
    world.agents["n1"].refuse = errors.Unavailable("later")
    await world.work()
    world.agents["n1"].refuse = None
    world.clock.advance(60)
    await world.hear("n1")
    assert (await world.work()).failed
    assert world.agents["n1"].starts == []


async def test_an_older_leader_is_refused_by_the_agent(world):
    await world.create()
    world.agents["n1"].fences["lease"] = 5
    assert (await world.work()).failed
    assert world.agents["n1"].starts == []


async def test_two_passes_do_not_promise_the_same_room(world):
    agent = world.agents["n1"]
    agent.capacity = agent.capacity.model_copy(update={"executions": 1})
    await world.hear("n1")
    await world.create()
    # The other pass has decided and waits for the API server.
    await world.work()
    other = an_execution("other", className="standard", image=IMAGE)
    other["metadata"] |= {"namespace": "ns", "creationTimestamp": "2026-01-01T00:01:00Z"}
    world.operator.cache.put(EXECUTIONS, world.cluster.seed(EXECUTIONS, other))
    await world.operator.reconciler.work(Key("Execution", "ns", "other"))
    assert "nodeName" not in world.cluster.objects["Execution", "ns", "other"]["spec"]


async def test_a_failure_is_told_to_the_next_pass_and_forgotten_after_a_success(world):
    await world.create()
    world.agents["n1"].refuse = errors.Unavailable("full", reason="NodeFull", retry_after=3.0)
    again = await world.work()
    assert (again.failed, again.after) == (True, 3.0)
    uid, failure = world.operator.reconciler.memory.failures[KEY]
    assert (failure.action, failure.node, failure.reason) == ("Put", "n1", "NodeFull")
    assert uid == world.stored["metadata"]["uid"]
    world.agents["n1"].refuse = None
    await world.work()
    assert world.operator.reconciler.memory.failures == {}


async def test_a_namesakes_failure_is_not_its_own(world):
    await world.create()
    world.agents["n1"].refuse = errors.Unavailable("full")
    await world.work()
    assert world.operator.reconciler.memory.failure(KEY, "another uid") is None


async def test_an_object_that_is_gone_is_forgotten(world):
    await world.create()
    await world.work()
    world.operator.cache.drop(
        EXECUTIONS, {"metadata": {**world.stored["metadata"], "resourceVersion": "99999"}}
    )
    await world.work()
    assert world.operator.reconciler.memory.flags == {}


async def test_secrets_are_read_only_until_the_agent_has_it(world):
    from isolet.operator.kube import SECRETS

    classes = world.cluster.objects["ExecutionClass", "", "standard"]
    classes["spec"]["env"] = {"allowSecretRefs": True}
    world.operator.cache.put(CLASSES, world.cluster.seed(CLASSES, classes))
    secret = {"metadata": {"name": "s", "namespace": "ns"}, "data": {"k": "djE="}}
    world.cluster.seed(SECRETS, secret)
    reads = []
    get = world.cluster.get

    async def counted(kind, namespace, name):
        reads.append(kind.kind)
        return await get(kind, namespace, name)

    world.cluster.get = counted
    await world.create(
        env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    )
    await world.work(2)
    assert world.agents["n1"].puts[0].spec.env[0].value == b"v1"
    reads.clear()
    await world.work(3)
    assert "Secret" not in reads


async def test_a_read_that_failed_is_unknown_and_never_absent(world):
    await world.create()
    world.cluster.fail(errors.Unavailable("etcd is busy"))
    again = await world.work()
    assert "nodeName" not in world.stored["spec"]
    found = {c["type"]: c["status"] for c in world.stored["status"]["conditions"]}
    assert (found["Scheduled"], found["Succeeded"]) == ("Unknown", "Unknown")
    assert again.after is not None


async def test_what_comes_after_the_end_is_planned_at_once(world):
    uid = await world.create(ttlSecondsAfterFinished=60)
    await world.work()
    agent = world.agents["n1"]
    await agent.end(uid)
    await world.hear("n1")
    ended = await world.work()
    assert ended.after < 1, "the outcome was written: look again"
    waits = await world.work()
    assert 1 < waits.after <= 60, "until its time is up"
    world.clock.advance(61)
    world.lead()
    await world.work()
    assert [w[0] for w in world.cluster.writes] == ["patch", "patch", "delete"]


async def test_a_clock_that_is_set_ahead_deletes_nothing_early(world):
    uid = await world.create(ttlSecondsAfterFinished=60)
    await world.work()
    await world.agents["n1"].end(uid)
    await world.hear("n1")
    await world.work(2)
    world.clock.step(86_400)
    waits = await world.work()
    assert 1 < waits.after <= 60, "of time that passes"
    assert [w[0] for w in world.cluster.writes] == ["patch", "patch"]
    world.clock.advance(61)
    world.lead()
    await world.work()
    assert [w[0] for w in world.cluster.writes] == ["patch", "patch", "delete"]


async def test_metrics_name_nothing(world):
    from isolet.operator.metrics import render

    uid = await world.create()
    await world.work(2)
    text = render(world.operator.registry).decode()
    assert 'isolet_operator_nodes{heard="true"} 1.0' in text
    assert 'isolet_operator_objects{kind="Execution"} 1.0' in text
    for private in (uid, "hello", "n1", "standard"):
        assert private not in text


async def test_a_hung_node_holds_up_no_worker_and_is_no_failure_of_the_object(world):
    await world.create()
    link = world.operator.nodes.link("n1")
    link.times = LinkTimes(turn=0.01)
    link._turns = asyncio.Semaphore(0)
    again = await world.work()
    assert again.failed
    assert world.operator.reconciler.memory.failures == {}
    link._turns.release()
    await world.work()
    assert len(world.agents["n1"].starts) == 1


async def test_a_node_that_cannot_even_be_called_says_why(world):
    def refuse(endpoint):
        raise errors.Invalid("https needs a certificate")

    world.operator.nodes.connect = refuse
    obj = world.cluster.seed(NODES, a_node("n2"))
    world.operator.cache.put(NODES, obj)
    world.clock.advance(60)
    world.lead()
    await world.operator.reconciler.work(Key("ExecutionNode", "", "n2"))
    stored = world.cluster.objects["ExecutionNode", "", "n2"]["status"]["conditions"]
    found = {c["type"]: c for c in stored}
    assert found["Ready"]["status"] == "False"
    assert "https needs a certificate" in found["Reachable"]["message"]


async def test_a_port_that_is_taken_is_named():
    first = HealthServer("127.0.0.1", 0, lambda: b"", list, list)
    port = await first.start()
    with pytest.raises(errors.Invalid, match=str(port)):
        await HealthServer("127.0.0.1", port, lambda: b"", list, list).start()
    await first.stop()
