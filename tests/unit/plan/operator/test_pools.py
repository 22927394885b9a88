"""Which warm pools a node is told to have."""

from dataclasses import replace
from typing import Any

import pytest

from isolet.plan import execution, pools
from isolet.plan.actions import Bind
from isolet.plan.model import Known, NodeFacts
from isolet.wire.node import Amounts
from isolet.wire.pool import PoolObserved, PoolsWanted, WhenEmpty
from tests.unit.plan.operator.worlds import (
    GI,
    IMAGE,
    IMAGE_ID,
    TAG,
    a_class,
    a_node,
    a_process,
    an_execution,
    observed,
)

WARM = {"images": {"default": IMAGE}, "warmPool": {"size": 3}}


def told(node: NodeFacts, **spec: object) -> PoolsWanted | None:
    return pools.wanted([a_class("cold"), a_class("warm", **{**WARM, **spec})], node)


def test_a_class_that_wants_one_has_a_pool_on_a_node_that_can_run_it() -> None:
    wish = told(a_node())
    assert wish is not None
    (pool,) = wish.pools
    assert (pool.class_name, pool.image, pool.runtime) == ("warm", IMAGE, "runsc")
    assert (pool.minimum, pool.maximum, pool.when_empty) == (3, 3, WhenEmpty.COLD)
    assert (pool.resources.cpu_millis, pool.resources.memory_bytes) == (1000, 512 << 20)
    assert pool.user == "65532:65532"


def test_a_size_that_follows_demand() -> None:
    for given, sizes in (
        ({"maximum": 5}, (0, 5)),
        ({"minimum": 2, "maximum": 5, "whenEmpty": "Wait"}, (2, 5)),
    ):
        wish = told(a_node(), warmPool=given)
        assert wish is not None
        assert (wish.pools[0].minimum, wish.pools[0].maximum) == sizes


def test_a_tag_is_named_as_the_node_knows_it() -> None:
    images = {"allowed": [TAG], "default": TAG, "resolveTags": True}
    wish = told(a_node(), images=images)
    assert wish is not None
    assert wish.pools[0].image == IMAGE_ID


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "fast"}},
        {"runtimeHandler": "runc"},
        {"images": {"allowed": [IMAGE], "default": "elsewhere@sha256:" + "b" * 64}},
        {"resources": {"default": None}},
    ],
    ids=["labels", "runtime", "image", "resources"],
)
def test_none_where_it_could_not_run(spec: dict[str, object]) -> None:
    if "images" in spec:
        spec["images"]["allowed"].append(spec["images"]["default"])
    assert told(a_node(), **spec) == PoolsWanted()


@pytest.mark.parametrize(
    "spec",
    [{"unschedulable": True}, {"drain": {}}, {"outOfService": {"reason": "burnt"}}],
    ids=lambda spec: next(iter(spec)),
)
def test_a_node_that_takes_no_work_has_none(spec: dict[str, object]) -> None:
    assert told(a_node(object_={"spec": spec})) == PoolsWanted()


def test_a_node_that_is_not_well_keeps_what_it_has() -> None:
    assert told(a_node(report={"conditions": ()})) is None
    assert told(replace(a_node(), report=None)) is None


def test_it_is_told_once() -> None:
    wish = told(a_node())
    assert wish is not None
    classes = [a_class("warm", **WARM)]
    for digest, times in ((None, 0), (PoolsWanted().digest(), 1), (wish.digest(), 0)):
        node = a_node(report={"pools_digest": digest})
        assert len(pools.actions(classes, node)) == times
    away = a_node(report={"pools_digest": ""}, reachable=False)
    assert pools.actions(classes, away) == ()


def test_a_pool_of_a_class_with_a_runner_serves_documents_and_nothing_else() -> None:
    runner = {
        "command": ["/app/runtime"],
        "env": [{"name": "MODE", "value": "warm"}],
        "files": [{"path": "key.pub", "content": "public"}],
        "budgets": {"executionSeconds": 100},
    }
    wish, plain = told(a_node(), runner=runner), told(a_node())
    assert wish is not None
    assert plain is not None
    (pool,) = wish.pools
    assert pool.runner is not None
    assert pool.runner.command == ("/app/runtime",)
    assert [(e.name, e.value) for e in pool.runner.env] == [("MODE", b"warm")]
    assert [(f.path, f.content) for f in pool.runner.files] == [("key.pub", b"public")]
    assert pool.maximum_deadline_seconds == 120 + 100 + 60 + 30
    assert pool.resources.output_bytes == 64 << 20, "the engine's log holds all events"
    assert not pool.serves("warm", pool.spec())
    assert plain.pools[0].serves("warm", plain.pools[0].spec())
    assert wish.runners_of("warm") == pool
    assert wish.runners_of("cold") is None
    assert wish.runner_of(pool.digest()) == pool.runner
    assert plain.runner_of(plain.pools[0].digest()) is None


def test_another_runner_is_another_pool() -> None:
    one = told(a_node(), runner={"command": ["/app/runtime"]})
    two = told(a_node(), runner={"command": ["/app/runtime", "--new"]})
    assert one is not None
    assert two is not None
    assert one.pools[0].digest() != two.pools[0].digest()


SLOT = PoolObserved(class_name="warm", class_uid="class-warm", generation=3, ready=1)
IN_MEMORY = {**WARM, "warmPool": {"size": 1, "medium": "Memory"}}


def chosen(pool: PoolObserved, rules: dict[str, Any] | None = None, **spec: Any) -> str:
    """Of a full node with this pool and one that is empty, the one that is given the Execution."""
    busy = Amounts(memory_bytes=4 * GI)
    seen = observed(
        an_execution(spec={"className": "warm", "resources": None, **spec}),
        classes=Known((a_class("warm", **{**IN_MEMORY, **(rules or {})}),)),
        nodes=(a_node("n1", report={"allocated": busy, "pools": (pool,)}), a_node("n2")),
    )
    (bound,) = [action for action in execution.plan(seen).actions if isinstance(action, Bind)]
    return bound.node


def test_an_execution_goes_where_a_slot_waits_for_it() -> None:
    assert chosen(SLOT) == "n1"
    assert chosen(SLOT, image=None) == "n1"
    assert chosen(SLOT, activeDeadlineSeconds=5, command=None) == "n1"


@pytest.mark.parametrize(
    "change",
    [
        {"ready": 0, "creating": 1},
        {"generation": 2},
        {"class_uid": "an earlier class of that name"},
        {"class_name": "other"},
    ],
    ids=str,
)
def test_a_slot_that_is_not_for_it_draws_nobody(change: dict[str, Any]) -> None:
    assert chosen(SLOT.model_copy(update=change)) == "n2"


def test_what_no_slot_serves_is_placed_by_room() -> None:
    assert chosen(SLOT, resources={"memory": "256Mi"}) == "n2"
    assert chosen(SLOT, workspace={"medium": "Disk"}) == "n2"
    assert chosen(SLOT, {"warmPool": None}) == "n2"
    assert chosen(SLOT, {"runner": {"command": ["/app/runtime"]}}) == "n2"


def test_a_process_is_not_drawn_to_slots() -> None:
    process = a_process(spec={"template": {"className": "warm"}})
    busy = {"allocated": Amounts(memory_bytes=4 * GI), "pools": (SLOT,)}
    rules = a_class("warm", **IN_MEMORY)
    seen = observed(
        process, classes=Known((rules,)), nodes=(a_node("n1", report=busy), a_node("n2"))
    )
    (bound,) = [action for action in execution.plan(seen).actions if isinstance(action, Bind)]
    assert bound.node == "n2"
