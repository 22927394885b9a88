"""Whom a front door asks for a slot, and in which order."""

from typing import Any

from isolet.apiserver import nodes
from isolet.apiserver.nodes import Node, Nodes
from isolet.operator.kube import NODES
from tests.fakes.cluster import FakeCluster
from tests.unit.api.objects import a_node

A, B, C = Node("a", "https://a", ready=2), Node("b", "https://b", ready=1), Node("c", "https://c")


def known(*found: Node) -> Nodes:
    made = Nodes()
    made.take_in(found)
    return made


def order(made: Nodes) -> str:
    return "".join(node.name for node in made.in_order())


def test_most_ready_slots_first_and_what_was_taken_counts() -> None:
    made = known(C, B, A)
    assert order(made) == "abc"
    made.took(A)
    assert sorted(order(made)[:2]) == ["a", "b"]
    made.took(A)
    assert order(made)[0] == "b"
    made.take_in((C, B, A))
    assert order(made) == "abc"


def test_one_that_had_none_is_asked_last_until_it_is_read_again() -> None:
    made = known(A, B)
    made.had_none(A)
    assert order(made) == "ba"
    made.take_in((A, B))
    assert order(made) == "ab"


def test_equals_take_turns() -> None:
    made = known(*(Node(name, f"https://{name}") for name in "abc"))
    assert {order(made) for _ in range(3)} == {"abc", "bca", "cab"}
    assert order(Nodes()) == ""


def test_one_that_is_closed_is_known_and_not_asked() -> None:
    closed = Node("d", "https://d", is_open=False, ready=9)
    made = known(A, closed)
    assert (order(made), made.find("d"), made.find("x")) == ("a", closed, None)
    assert made.any_open()
    assert not known(closed).any_open()


def status(condition_status: str, **pool: Any) -> dict[str, Any]:
    at = "2026-05-01T12:00:00Z"
    condition = {"type": "Ready", "status": condition_status, "reason": "Ready", "message": ""}
    return {"conditions": [{**condition, "lastTransitionTime": at}], "pools": [pool]}


async def test_what_is_read_of_an_object() -> None:
    cluster = FakeCluster()
    for name, said, spec in (
        ("warm", status("True", className="fast", ready=3), {}),
        ("silent", status("Unknown", className="fast", ready=3), {}),
        ("other", status("True", className="slow", ready=3), {}),
        ("new", {}, {}),
        ("cordoned", status("True", className="fast", ready=3), {"unschedulable": True}),
        ("draining", {}, {"drain": {}}),
        ("off", {}, {"outOfService": {"reason": "burnt"}}),
    ):
        cluster.seed(NODES, {**a_node(name, **spec), "status": said})
    found = await nodes.read(cluster, "fast")
    assert {node.name: (node.is_open, node.ready) for node in found} == {
        "warm": (True, 3),
        "silent": (True, 0),
        "other": (True, 0),
        "new": (True, 0),
        "cordoned": (False, 3),
        "draining": (False, 0),
        "off": (False, 0),
    }
    assert found[-1] == Node("warm", "https://10.0.0.1:7443", ready=3)


async def test_one_that_cannot_be_read_closes_no_other() -> None:
    cluster = FakeCluster()
    cluster.seed(NODES, a_node("good"))
    cluster.seed(NODES, {**a_node("new"), "status": {"pools": "of a later version"}})
    cluster.seed(NODES, {**a_node("newer"), "spec": {"endpoint": {"of": "another form"}}})
    assert [node.name for node in await nodes.read(cluster, "fast")] == ["good"]
