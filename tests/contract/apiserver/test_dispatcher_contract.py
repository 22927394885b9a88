"""One suite for every dispatcher: that in memory, and that of a cluster with agents over HTTP."""

import asyncio
import json
from contextlib import aclosing, suppress

import pytest

from isolet.agent.dispatch.service import DispatchService, Times
from isolet.agent.dispatch.spool import Spools
from isolet.agent.server.server import AgentServer
from isolet.apiserver.admission import Dispatch
from isolet.apiserver.kubernetes import LABEL_AHEAD, KubernetesDispatcher, Target, object_name
from isolet.base import errors, names
from isolet.base.clock import SystemClock
from isolet.client.dispatch import HTTPDispatch
from isolet.operator.kube import CLASSES, EXECUTIONS, NODES
from isolet.wire.dispatch import Mode
from tests.fakes.agent import FakeAgent
from tests.fakes.cluster import FakeCluster
from tests.fakes.dispatcher import FakeDispatcher, GivenAgents
from tests.fakes.slots import FakeSlots
from tests.unit.api.objects import a_class, a_node

DONE = b'{"event_type":"completed","payload":{"answer":42}}\n'
PROGRESS = b'{"event_type":"progress"}\n'


def dispatch(run_id: str = "run", document: bytes = b'{"run_id":"run"}') -> Dispatch:
    return Dispatch(
        run_id=run_id, mode=Mode.STREAM, document=document, digest=names.digest(document)
    )


class InMemory:
    def __init__(self) -> None:
        self.dispatcher = FakeDispatcher(slots=2)

    async def start(self, _folder) -> None: ...

    async def close(self) -> None: ...

    def empty(self) -> None:
        self.dispatcher.slots = 0

    def free(self) -> int:
        return self.dispatcher.slots

    async def says(self, run_id: str) -> None:
        self.dispatcher.runs[run_id].says("progress")

    async def completes(self, run_id: str) -> None:
        self.dispatcher.runs[run_id].completes({"answer": 42})


class InACluster:
    """Two agents, each behind a socket of its own."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.slots = {name: FakeSlots(ready=1) for name in ("node-0", "node-1")}
        self.closing = []

    async def start(self, folder) -> None:
        runner = {"command": ["/app/runtime"], "budgets": {"cleanupSeconds": 1}}
        found = a_class("fast", runner=runner, warmPool={"size": 1})
        self.seed(CLASSES, found)
        self.clients = {}
        for name, slots in self.slots.items():
            await self._agent(name, slots, folder / name)
        target = Target(namespace="runs", class_name="fast", cancelled_ahead=3)
        self.dispatcher = self.another(target)
        await self.dispatcher.start()

    def seed(self, kind, obj) -> None:
        self.cluster.seed(kind, obj)

    def another(self, target: Target) -> KubernetesDispatcher:
        return KubernetesDispatcher(self.cluster, GivenAgents(self.clients.__getitem__), target)

    async def _agent(self, name: str, slots: FakeSlots, folder) -> None:
        folder.mkdir()
        service = DispatchService(
            slots,
            Spools(folder / "dispatch"),
            SystemClock(),
            boot_id="boot",
            times=Times(heartbeat_seconds=60),
        )
        server = AgentServer(FakeAgent(), dispatch=service)
        await server.listen_unix(folder / "s")
        endpoint = f"unix://{folder / 's'}"
        self.seed(NODES, a_node(name))
        self.clients[name] = HTTPDispatch(endpoint)
        self.closing += [self.clients[name].close, server.close, service.close]

    async def close(self) -> None:
        await self.dispatcher.close()
        for close in self.closing:
            await close()

    def empty(self) -> None:
        for slots in self.slots.values():
            slots.ready.clear()

    def free(self) -> int:
        return sum(len(slots.ready) for slots in self.slots.values())

    def slot(self, run_id: str):
        found = self.cluster.objects["Execution", "runs", object_name(run_id)]
        uid = found["metadata"]["uid"]
        return next(s.seen[uid] for s in self.slots.values() if uid in s.seen)

    async def says(self, run_id: str) -> None:
        self.slot(run_id).writes(PROGRESS)

    async def completes(self, run_id: str) -> None:
        self.slot(run_id).writes(DONE)
        self.slot(run_id).ends(0)

    def writes(self) -> list:
        return self.cluster.writes


@pytest.fixture(params=[InMemory, InACluster], ids=["memory", "cluster"])
async def place(request, tmp_path):
    made = request.param()
    await made.start(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def cluster(tmp_path):
    made = InACluster()
    await made.start(tmp_path)
    yield made
    await made.close()


async def admitted(place, run_id: str = "run"):
    return await (await place.dispatcher.reserve(dispatch(run_id))).commit()


async def test_a_run_from_reservation_to_its_end(place) -> None:
    assert place.dispatcher.ready()
    run = await admitted(place)
    await place.says("run")
    await place.completes("run")
    lines = [line async for line in run.follow(0) if not line.heartbeat]
    assert [line.event.sequence for line in lines if line.event] == [1, 2]
    assert lines[-1].ended.succeeded
    assert [line.event.type async for line in run.follow(1) if line.event] == ["completed"]


async def test_an_empty_pool_is_no_capacity_and_leaves_it_ready(place) -> None:
    place.empty()
    with pytest.raises(errors.Unavailable) as found:
        await place.dispatcher.reserve(dispatch())
    assert found.value.reason == "NoCapacity"
    assert not isinstance(found.value, errors.Unconfirmed)
    assert place.dispatcher.ready()


async def test_a_run_id_is_used_once_and_a_duplicate_spends_no_slot(place) -> None:
    await admitted(place)
    with pytest.raises(errors.Conflict):
        await place.dispatcher.reserve(dispatch())
    assert place.free() == 1
    await place.completes("run")
    run = await place.dispatcher.find("run")
    assert [line async for line in run.follow(0)][-1].ended.succeeded
    with pytest.raises(errors.Conflict):
        await place.dispatcher.reserve(dispatch())
    assert place.free() == 1


async def test_more_callers_than_slots_lose_nothing(place) -> None:
    async def one(number: int) -> bool:
        with suppress(errors.Unavailable):
            await admitted(place, f"run-{number}")
            return True
        return False

    found = await asyncio.gather(*(one(n) for n in range(12)))
    assert sum(found) == 2


async def test_cancelling_a_run(place) -> None:
    run = await admitted(place)
    answer = await place.dispatcher.cancel("run")
    assert (answer.confirmed, answer.removed) == (True, 1)
    last = [line async for line in run.follow(0)][-1]
    assert last.ended.reason == "Cancelled"
    assert (await place.dispatcher.cancel("run")).confirmed


async def test_a_run_that_was_cancelled_ahead_is_never_begun(place) -> None:
    answer = await place.dispatcher.cancel("run")
    assert (answer.confirmed, answer.removed) == (True, 0)
    with pytest.raises(errors.Conflict):
        await place.dispatcher.reserve(dispatch())
    assert place.free() == 2
    with pytest.raises(errors.NotFound):
        await place.dispatcher.find("run")


async def test_who_stops_following_may_come_back(place) -> None:
    run = await admitted(place)
    await place.says("run")
    async with aclosing(run.follow(0)) as lines:
        await anext(lines)
    await place.completes("run")
    found = await place.dispatcher.find("run")
    assert [line.event.sequence async for line in found.follow(1) if line.event] == [2]


# What only a cluster has


async def test_a_dispatch_costs_one_write_until_its_outcome(cluster: InACluster) -> None:
    await admitted(cluster)
    await cluster.completes("run")
    run = await cluster.dispatcher.find("run")
    assert [line async for line in run.follow(0)][-1].ended
    assert cluster.writes() == [("create", "Execution", object_name("run"))]


async def test_a_refused_dispatch_costs_no_write(cluster: InACluster) -> None:
    cluster.empty()
    with pytest.raises(errors.Unavailable):
        await cluster.dispatcher.reserve(dispatch())
    assert cluster.writes() == []


async def test_the_object_is_bound_and_holds_nothing_of_the_document(cluster: InACluster) -> None:
    document = b'{"run_id":"run","payload":"hunter2"}'
    await (await cluster.dispatcher.reserve(dispatch(document=document))).commit()
    found = cluster.cluster.objects["Execution", "runs", object_name("run")]
    assert "hunter2" not in json.dumps(found)
    assert found["spec"]["nodeName"] in cluster.slots
    assert found["spec"]["dispatch"]["payloadBytes"] == len(document)
    assert found["spec"]["ttlSecondsAfterFinished"] >= 86_400


async def test_the_same_run_at_two_front_doors_is_begun_once(cluster: InACluster) -> None:
    other = cluster.another(Target(namespace="runs", class_name="fast"))
    await other.start()
    found = await asyncio.gather(
        cluster.dispatcher.reserve(dispatch()), other.reserve(dispatch()), return_exceptions=True
    )
    assert sum(not isinstance(one, Exception) for one in found) == 1
    assert cluster.free() == 1
    await other.close()


async def test_a_lost_answer_is_never_tried_again(cluster: InACluster) -> None:
    cluster.cluster.fail(errors.Unconfirmed("the reply was lost"))
    with pytest.raises(errors.Unconfirmed):
        await cluster.dispatcher.reserve(dispatch())
    assert cluster.free() == 2


async def test_a_reservation_that_ran_out_gives_the_runs_name_free(cluster: InACluster) -> None:
    reserved = await cluster.dispatcher.reserve(dispatch())
    for slots in cluster.slots.values():
        slots.reserved.clear()
    with pytest.raises(errors.Unavailable) as found:
        await reserved.commit()
    assert found.value.reason == "NoCapacity"
    assert ("Execution", "runs", object_name("run")) not in cluster.cluster.objects


async def test_a_cancellation_between_reservation_and_document_wins(cluster: InACluster) -> None:
    reserved = await cluster.dispatcher.reserve(dispatch())
    assert (await cluster.dispatcher.cancel("run")).confirmed
    with pytest.raises(errors.Conflict):
        await reserved.commit()
    assert not any(slots.seen for slots in cluster.slots.values())
    assert cluster.free() == 2


async def test_a_run_that_is_cancelled_while_its_object_is_taken_back_is_never_begun(
    cluster: InACluster,
) -> None:
    delete, answers = cluster.cluster.delete, []

    async def cancelled_first(*args):
        cluster.cluster.delete = delete
        answers.append(await cluster.dispatcher.cancel("run"))
        await delete(*args)

    reserved = await cluster.dispatcher.reserve(dispatch())
    for slots in cluster.slots.values():
        slots.reserved.clear()
    cluster.cluster.delete = cancelled_first
    with pytest.raises(errors.Conflict) as found:
        await reserved.commit()
    assert (answers[0].confirmed, found.value.reason) == (True, "RunIdUsed")
    with pytest.raises(errors.Conflict):
        await cluster.dispatcher.reserve(dispatch())


async def test_a_run_whose_object_is_taken_back_while_it_is_cancelled_is_never_begun(
    cluster: InACluster,
) -> None:
    reserved = await cluster.dispatcher.reserve(dispatch())
    for slots in cluster.slots.values():
        slots.reserved.clear()
    for client in cluster.clients.values():
        client.cancel = _then(client, "cancel", reserved.commit)
    assert (await cluster.dispatcher.cancel("run")).confirmed
    kept = cluster.cluster.objects["Execution", "runs", object_name("run")]
    assert kept["metadata"]["labels"] == {LABEL_AHEAD: "true"}
    with pytest.raises(errors.Conflict):
        await cluster.dispatcher.reserve(dispatch())


def _then(owner, name: str, other):
    """The owner's method, once: then the other call, which is not given its error."""
    method = getattr(owner, name)

    async def both(*args):
        setattr(owner, name, method)
        answer = await method(*args)
        with suppress(errors.IsoletError):
            await other()
        return answer

    return both


async def test_a_cancellation_that_meets_an_object_which_comes_and_goes_looks_again(
    cluster: InACluster,
) -> None:
    cluster.cluster.fail(None, errors.Conflict("it exists", reason="AlreadyExists"))
    assert (await cluster.dispatcher.cancel("run")).confirmed
    with pytest.raises(errors.Conflict):
        await cluster.dispatcher.reserve(dispatch())
    taken = errors.Conflict("it exists", reason="AlreadyExists")
    cluster.cluster.fail(*(None, taken) * 3)
    with pytest.raises(errors.Unavailable):
        await cluster.dispatcher.cancel("another")


async def test_only_an_object_that_is_there_says_that_the_run_was_here(cluster: InACluster) -> None:
    cluster.cluster.fail(errors.Conflict("the quota has been modified", reason="Conflict"))
    with pytest.raises(errors.Unavailable) as found:
        await cluster.dispatcher.reserve(dispatch())
    assert not isinstance(found.value, errors.Unconfirmed)
    await admitted(cluster)


async def test_cancellations_ahead_are_bounded_in_number(cluster: InACluster) -> None:
    for number in range(3):
        await cluster.dispatcher.cancel(f"run-{number}")
    with pytest.raises(errors.Unavailable) as found:
        await cluster.dispatcher.cancel("run-3")
    assert found.value.reason == "TooManyCancellations"
    kept = [o for (k, *_), o in cluster.cluster.objects.items() if k == "Execution"]
    assert all(o["metadata"]["labels"] == {LABEL_AHEAD: "true"} for o in kept)
    assert all(o["spec"]["desiredState"] == "Terminated" for o in kept)
    cluster.cluster.vanish(EXECUTIONS, "runs", object_name("run-0"))
    await cluster.dispatcher._refreshed()
    assert (await cluster.dispatcher.cancel("run-3")).confirmed


async def test_an_agent_that_is_away_leaves_a_cancellation_to_the_operator(
    cluster: InACluster,
) -> None:
    await admitted(cluster)
    for client in cluster.clients.values():
        client.cancel = _away
    assert not (await cluster.dispatcher.cancel("run")).confirmed
    found = cluster.cluster.objects["Execution", "runs", object_name("run")]
    assert found["spec"]["desiredState"] == "Terminated"


async def test_a_node_that_is_gone_leaves_a_cancellation_to_the_operator(
    cluster: InACluster,
) -> None:
    await admitted(cluster)
    for name in cluster.slots:
        cluster.cluster.vanish(NODES, "", name)
    await cluster.dispatcher._refreshed()
    assert not (await cluster.dispatcher.cancel("run")).confirmed
    found = cluster.cluster.objects["Execution", "runs", object_name("run")]
    assert found["spec"]["desiredState"] == "Terminated"


async def _away(_uid: str):
    raise errors.Unavailable("no answer")


async def test_what_the_api_server_refuses_us_is_not_said_to_be_the_callers_fault(
    cluster: InACluster,
) -> None:
    await admitted(cluster)
    for call in (cluster.dispatcher.find, cluster.dispatcher.cancel):
        cluster.cluster.fail(errors.Refused("isolet-apiserver may not get executions"))
        with pytest.raises(errors.Unavailable):
            await call("run")


async def test_an_agent_that_refuses_us_leaves_a_cancellation_to_the_operator(
    cluster: InACluster,
) -> None:
    async def refuses(_uid: str):
        raise errors.Refused("identity may not dispatch here")

    await admitted(cluster)
    for client in cluster.clients.values():
        client.cancel = refuses
    assert not (await cluster.dispatcher.cancel("run")).confirmed
    found = cluster.cluster.objects["Execution", "runs", object_name("run")]
    assert found["spec"]["desiredState"] == "Terminated"


async def test_a_run_is_over_once_its_node_is_gone_for_good(cluster: InACluster) -> None:
    async def silent(_uid: str, _after: int):
        raise errors.Unavailable("no answer")
        yield

    run = await admitted(cluster)
    for client in cluster.clients.values():
        client.follow = silent
    with pytest.raises(errors.Unavailable):
        [line async for line in run.follow(0)]
    found = cluster.cluster.objects["Execution", "runs", object_name("run")]
    found["status"] = {"conditions": [{"type": "Succeeded", "status": "False"}]}
    for reason, ends in (("Cancelled", False), ("NodeLost", True)):
        found["status"]["conditions"][0]["reason"] = reason
        if ends:
            (last,) = [line async for line in run.follow(0)]
            assert (last.ended.succeeded, last.ended.reason) == (False, "NodeLost")
        else:
            with pytest.raises(errors.Unavailable):
                [line async for line in run.follow(0)]
    cluster.cluster.vanish(EXECUTIONS, "runs", object_name("run"))
    with pytest.raises(errors.NotFound):
        [line async for line in run.follow(0)]


async def test_cancellations_ahead_of_other_front_doors_count(cluster: InACluster) -> None:
    for number in range(3):
        await cluster.dispatcher.cancel(f"run-{number}")
    other = cluster.another(Target(namespace="runs", class_name="fast", cancelled_ahead=3))
    await other.start()
    with pytest.raises(errors.Unavailable):
        await other.cancel("run-3")
    await other.close()


async def test_cancellations_ahead_that_come_at_once_are_bounded_too(cluster: InACluster) -> None:
    asked = [cluster.dispatcher.cancel(f"run-{number}") for number in range(8)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(not isinstance(one, Exception) for one in found) == 3


async def test_nothing_is_taken_unchecked_where_the_class_has_a_key_that_cannot_be_read(
    cluster: InACluster,
) -> None:
    pool, key = {"size": 1}, "-----BEGIN PUBLIC KEY-----\nnone\n-----END PUBLIC KEY-----\n"
    runner = {"command": ["/app/runtime"], "bindingKey": key}
    assert cluster.dispatcher.ready()
    cluster.cluster.seed(CLASSES, a_class("fast", runner=runner, warmPool=pool))
    await cluster.dispatcher._refreshed()
    assert not cluster.dispatcher.ready()


async def test_nothing_ends_the_reading_of_nodes_and_class(cluster: InACluster) -> None:
    dispatcher = cluster.another(Target(namespace="runs", class_name="fast", refresh_seconds=0.001))
    await dispatcher.start()
    cluster.cluster.fail(*[RuntimeError("a bug of ours")] * 12)
    async with asyncio.timeout(30):
        while dispatcher.ready():
            await asyncio.sleep(0.001)
        while not dispatcher.ready():
            await asyncio.sleep(0.001)
    await dispatcher.close()


async def test_it_is_not_ready_without_a_runner_or_a_node(cluster: InACluster) -> None:
    cluster.cluster.seed(NODES, a_node("node-0", unschedulable=True))
    cluster.cluster.seed(NODES, a_node("node-1", unschedulable=True))
    await cluster.dispatcher._refreshed()
    assert not cluster.dispatcher.ready()
    cluster.cluster.seed(NODES, a_node("node-0"))
    await cluster.dispatcher._refreshed()
    assert cluster.dispatcher.ready()
    pool, runner = {"warmPool": {"size": 1}}, {"runner": {"command": ["/app/runtime"]}}
    for spec, served in (({}, False), (pool, False), (runner, False), ({**pool, **runner}, True)):
        cluster.cluster.seed(CLASSES, a_class("fast", **spec))
        await cluster.dispatcher._refreshed()
        assert cluster.dispatcher.ready() is served, spec


async def test_what_runs_on_a_node_that_takes_no_more_is_followed_and_ended(
    cluster: InACluster,
) -> None:
    await admitted(cluster)
    for name in cluster.slots:
        cluster.cluster.seed(NODES, a_node(name, unschedulable=True))
    await cluster.dispatcher._refreshed()
    with pytest.raises(errors.Unavailable) as found:
        await cluster.dispatcher.reserve(dispatch("another"))
    assert found.value.reason == "NoCapacity"
    run = await cluster.dispatcher.find("run")
    assert (await cluster.dispatcher.cancel("run")).confirmed
    assert [line async for line in run.follow(0)][-1].ended.reason == "Cancelled"
