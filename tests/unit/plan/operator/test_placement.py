"""Where an Execution goes: one node that is fit, one change, and what it then lacks."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from isolet.plan import placement
from isolet.plan.model import NodeFacts
from isolet.plan.placement import Chosen, Demand, Nowhere, Pending
from isolet.wire.node import Amounts, Image, NodeCondition
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.worlds import (
    GI,
    IMAGE,
    IMAGE_ID,
    MI,
    TAG,
    a_binding,
    a_node,
    a_pinned,
    a_record,
    a_report,
    after,
)

SMALL = Amounts(cpu_millis=1000, memory_bytes=GI, executions=1)


def a_demand(**changes: Any) -> Demand:
    base = Demand(uid="u", image=IMAGE, runtime="runsc", medium="Memory", amounts=SMALL)
    return replace(base, **changes)


def cond(kind: str, status: str) -> NodeCondition:
    return NodeCondition(type=kind, status=status, reason="Any", message="")


LACKS: dict[str, tuple[Demand, NodeFacts, str | None]] = {
    "fit": (a_demand(), a_node(), None),
    "a repository that is not its": (
        a_demand(repository="project"),
        a_node(report={"repositories": ("other", "project/*")}),
        "without Git repository project",
    ),
    "a repository": (
        a_demand(repository="project"),
        a_node(report={"repositories": ("project",)}),
        None,
    ),
    "a repository below a root": (
        a_demand(repository="team/a/b"),
        a_node(report={"repositories": ("team/*",)}),
        None,
    ),
    "out of service": (
        a_demand(),
        a_node(object_={"spec": {"outOfService": {"reason": "r"}}}),
        "out of service",
    ),
    "draining": (a_demand(), a_node(object_={"spec": {"drain": {}}}), "draining"),
    "cordoned": (a_demand(), a_node(object_={"spec": {"unschedulable": True}}), "unschedulable"),
    "silent": (a_demand(), a_node(reachable=False), "unreachable"),
    "not read yet": (a_demand(), a_node(synced=False), "not heard of yet"),
    "no account": (a_demand(), replace(a_node(), report=None), "not heard of yet"),
    "another version": (
        a_demand(),
        a_node(report={"wire_versions": (2, 3)}),
        "of an incompatible version",
    ),
    "an older version too": (a_demand(), a_node(report={"wire_versions": (1, 2)}), None),
    "another installation": (
        a_demand(),
        a_node(report={"installation": "other"}),
        "with an agent that is not the node's",
    ),
    "another node's agent": (
        a_demand(),
        a_node(report={"name": "n7"}),
        "with an agent that is not the node's",
    ),
    "nothing was checked yet": (
        a_demand(),
        a_node(report={"conditions": ()}),
        "not ready (EngineReady)",
    ),
    "the engine hangs": (
        a_demand(),
        a_node(report={"conditions": (cond("EngineReady", "False"), worlds.GOOD[1])}),
        "not ready (EngineReady)",
    ),
    "a condition that a later agent gives": (
        a_demand(),
        a_node(report={"conditions": (*worlds.GOOD, cond("Moonphase", "Unknown"))}),
        "not ready (Moonphase)",
    ),
    "a condition that closes one capability": (
        a_demand(),
        a_node(report={"conditions": (*worlds.GOOD, cond("DiskWorkspaces", "False"))}),
        None,
    ),
    "a label": (
        a_demand(selectors=({"zone": "a"}, {"disk": "fast"})),
        a_node(object_={"metadata": {"labels": {"zone": "a"}}}),
        "without label disk=fast",
    ),
    "all labels": (
        a_demand(selectors=({"zone": "a"}, {"kubernetes.io/arch": "amd64"})),
        a_node(object_={"metadata": {"labels": {"zone": "a"}}}),
        None,
    ),
    "another architecture": (
        a_demand(selectors=({"kubernetes.io/arch": "arm64"},)),
        a_node(),
        "without label kubernetes.io/arch=arm64",
    ),
    "its own name": (a_demand(selectors=({"kubernetes.io/hostname": "n1"},)), a_node(), None),
    "a runtime": (
        a_demand(runtime="kata"),
        a_node(),
        "without runtime kata qualified",
    ),
    "a medium": (
        a_demand(medium="Disk"),
        a_node(report={"media": ("Memory",)}),
        "without Disk workspaces",
    ),
    "an image": (
        a_demand(image="x:1"),
        a_node(),
        "without image x:1",
    ),
    "room, to the last byte": (
        a_demand(amounts=Amounts(cpu_millis=8000, memory_bytes=8 * GI, executions=50)),
        a_node(),
        None,
    ),
    "room, one byte more": (
        a_demand(),
        a_node(report={"allocated": Amounts(memory_bytes=7 * GI + 1)}),
        "full",
    ),
    "room for one more sandbox": (
        a_demand(),
        a_node(report={"allocated": Amounts(executions=49)}, promised=Amounts(executions=1)),
        "full",
    ),
    "a node that could never hold it": (
        a_demand(amounts=Amounts(cpu_millis=8001, memory_bytes=9 * GI)),
        a_node(),
        "too small for cpu 8001m, memory 9Gi",
    ),
    "a node that tells no capacity has none": (
        a_demand(),
        a_node(report={"capacity": Amounts()}),
        "too small for cpu 1, memory 1Gi, executions 1",
    ),
    "disk": (
        a_demand(amounts=Amounts(disk_bytes=200 * GI)),
        a_node(),
        "too small for workspace disk 200Gi",
    ),
}


@pytest.mark.parametrize("name", LACKS)
def test_what_a_node_lacks(name: str) -> None:
    demand, node, want = LACKS[name]
    assert placement.lack(demand, node, "isolet") == want


HUB = "sha256:" + "c" * 64

IMAGES: dict[str, tuple[str, str | None]] = {
    "a digest stays as it is": (IMAGE, IMAGE),
    "another digest": (IMAGE.replace("a", "b"), None),
    "the same digest under another name": ("registry.example/other@" + IMAGE.split("@")[1], None),
    "a local id": (IMAGE_ID, IMAGE_ID),
    "a local id that is not there": (HUB, None),
    "an image id is no digest": ("registry.example/python@" + IMAGE_ID, None),
    "a tag becomes an id": (TAG, IMAGE_ID),
    "another tag": (TAG + "x", None),
    "Docker Hub by its full name": (
        f"docker.io/library/busybox@{HUB}",
        f"docker.io/library/busybox@{HUB}",
    ),
    "Docker Hub by its short name": (f"busybox@{HUB}", f"busybox@{HUB}"),
    "Docker Hub's tag": ("docker.io/busybox:1", "sha256:" + "2" * 64),
    "a registry of one's own is not Docker Hub": (f"own.example/busybox@{HUB}", None),
}


@pytest.mark.parametrize("name", IMAGES)
def test_how_an_image_is_asked_for(name: str) -> None:
    image, want = IMAGES[name]
    busybox = Image(id="sha256:" + "2" * 64, tags=("busybox:1",), digests=(f"busybox@{HUB}",))
    report = a_report(images=(*a_report().images, busybox))
    assert placement.run_reference(report, image) == want


def loaded(name: str, gib: float) -> NodeFacts:
    return a_node(name, report={"allocated": Amounts(memory_bytes=int(gib * GI))})


def test_the_node_with_most_memory_left_is_chosen_whatever_the_order() -> None:
    nodes = [loaded("n1", 3), loaded("n2", 1), loaded("n3", 2)]
    for order in itertools.permutations(nodes):
        found = placement.place(a_demand(), order)
        assert isinstance(found, Chosen)
        assert found.node.name == "n2"


def test_what_is_promised_counts_as_what_is_allocated() -> None:
    nodes = [loaded("n1", 1), replace(loaded("n2", 0), promised=Amounts(memory_bytes=2 * GI))]
    found = placement.place(a_demand(), nodes)
    assert isinstance(found, Chosen)
    assert found.node.name == "n1"


def test_equal_nodes_share_the_work() -> None:
    nodes = [a_node(name) for name in ("n1", "n2", "n3")]
    found = [placement.place(a_demand(uid=f"u{n}"), nodes) for n in range(90)]
    counts = [sum(isinstance(f, Chosen) and f.node.name == n.name for f in found) for n in nodes]
    assert sum(counts) == 90
    assert min(counts) > 15


def test_each_lack_is_told_with_its_count_and_in_a_fixed_order() -> None:
    nodes = [
        a_node("n1", report={"images": ()}),
        a_node("n2", report={"images": ()}),
        a_node("n3", reachable=False),
    ]
    want = Nowhere(f"0/3 nodes can take it: 1 unreachable, 2 without image {IMAGE}")
    for order in itertools.permutations(nodes):
        assert placement.place(a_demand(), order) == want


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        ([], False),
        ([a_node(report={"images": ()})], True),
        ([a_node(report={"images": ()}), a_node("n2", reachable=False, synced=False)], False),
        ([a_node(report={"images": ()}, reachable=False)], False),
        ([a_node(object_={"spec": {"drain": {}}}), a_node("n2", report={"images": ()})], False),
        ([a_node(report={"allocated": Amounts(memory_bytes=8 * GI)})], False),
    ],
    ids=[
        "no node at all",
        "one that was read",
        "one that was never read may have it",
        "none that is fit could tell of a fresh one",
        "a draining node has it",
        "it is there and the node is full",
    ],
)
def test_an_image_is_missing_only_if_no_node_can_have_it(
    nodes: list[NodeFacts], missing: bool
) -> None:
    found = placement.place(a_demand(), nodes)
    assert isinstance(found, Nowhere)
    assert found.image_missing is missing


def test_a_repository_is_missing_only_if_no_node_can_have_it() -> None:
    demand = a_demand(repository="project")
    serving, other = a_node("n2", report={"repositories": ("project",)}), a_node("n3")
    full = replace(serving, object=a_node("n2", object_={"spec": {"drain": {}}}).object)
    unread = a_node("n4", reachable=False, synced=False)
    for nodes, missing in (([other], True), ([other, full], False), ([other, unread], False)):
        found = placement.place(demand, nodes)
        assert isinstance(found, Nowhere)
        assert found.repository_missing is missing
    chosen = placement.place(demand, [other, serving])
    assert isinstance(chosen, placement.Chosen)
    assert chosen.node is serving


def test_what_is_bound_counts_until_the_agents_account_has_it() -> None:
    bound = {uid: a_binding(pinned=a_pinned()) for uid in ("new", "later", "counted")}
    bound["adopted"] = a_binding(pinned=None)
    records = {
        "later": a_record(uid="later", sequence=101),
        "counted": a_record(uid="counted", sequence=100),
    }
    want = Amounts(cpu_millis=2000, memory_bytes=1024 * MI, executions=2)
    assert placement.promised(bound, records, a_report(sequence=100)) == want
    assert placement.promised(bound, records, None).executions == 3


def waiting(name: str, namespace: str, age: float) -> Pending:
    return Pending(uid=name, namespace=namespace, created_at=after(-age))


def test_one_object_does_not_wait_behind_a_thousand_of_another_namespace() -> None:
    crowd = [waiting(f"a{n:04}", "a", 1000 - n) for n in range(1000)]
    order = placement.fair_order([*crowd, waiting("b", "b", 1)], {})
    assert [p.uid for p in order[:3]] == ["a0000", "b", "a0001"]
    assert len(order) == 1001


def test_who_has_much_running_waits_longer() -> None:
    pending = [waiting("a1", "a", 9), waiting("a2", "a", 8), waiting("b1", "b", 1)]
    order = placement.fair_order(pending, {"a": 2, "b": 1})
    assert [p.uid for p in order] == ["b1", "a1", "a2"]


def test_the_order_does_not_depend_on_the_input_order() -> None:
    pending = [waiting(f"{ns}{n}", ns, n % 4) for ns in "abc" for n in range(6)]
    want = placement.fair_order(pending, {"b": 3})
    for seed in range(20):
        shuffled = random.Random(seed).sample(pending, len(pending))
        assert placement.fair_order(shuffled, {"b": 3}) == want
