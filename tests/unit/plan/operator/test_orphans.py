"""Orphans: when something without an object is certain to be one, and when nobody dares to say."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from isolet.plan import orphans
from isolet.plan.actions import Alert, DropTombstone, OrphanPlan, Remove, RemoveStrays
from isolet.plan.model import (
    Cause,
    Held,
    ObjectList,
    OrphanNode,
    OrphanPass,
    OrphanPolicy,
    Tombstone,
)
from isolet.wire.execution import ExecutionObserved
from isolet.wire.node import NodeCondition, Stray
from tests.unit.plan.operator import worlds
from tests.unit.plan.operator.worlds import NOW, a_node_object, a_record, a_report


def records(*uids: str) -> tuple[ExecutionObserved, ...]:
    return tuple(a_record(uid=uid) for uid in uids)


def a_node(
    *uids: str, strays: tuple[Stray, ...] = (), name: str = "n1", **changes: Any
) -> OrphanNode:
    base = OrphanNode(
        object=a_node_object(name),
        report=a_report(name, strays=strays),
        reachable=True,
        synced=True,
        records=records(*uids),
    )
    return replace(base, **changes)


def listed(*uids: str, at: float) -> ObjectList:
    return ObjectList(uids=frozenset(uids), started_at=at)


LOST = Held("n1", "e1", "lost")
TWO = (listed("live", at=100), listed("live", at=450))
CONTAINER = Stray(kind="container", name="c1", uid="lost", age_seconds=9)
VOLUME = Stray(kind="volume", name="v1", uid="lost", age_seconds=9)


def test_a_record_is_removed_as_what_it_is() -> None:
    process = worlds.a_process_record(uid="lost")
    facts = replace(a_node("live"), records=(*records("live"), process))
    suspect = replace(LOST, kind="Process")
    plan = orphans.plan(a_pass(facts, suspects={suspect: 300.0}))
    assert plan.actions == (Remove(node="n1", uid="lost", kind="Process"),)


def a_pass(*nodes: OrphanNode, **changes: Any) -> OrphanPass:
    """Two lists agree, and what is suspected has been since 300; it is 500."""
    base = OrphanPass(
        lists=TWO,
        nodes=nodes or (a_node("live", "lost"),),
        nodes_complete=True,
        tombstones_complete=True,
        suspects={LOST: 300.0},
        monotonic=500.0,
        now=NOW,
    )
    return replace(base, **changes)


def test_two_lists_and_a_grace_make_an_orphan() -> None:
    assert orphans.plan(a_pass()) == OrphanPlan(
        actions=(Remove(node="n1", uid="lost"),),
        suspects={LOST: 300.0},
        orphans={"n1": 1},
        look_again_in=30.0,
    )


def test_a_world_in_order_is_left_in_peace() -> None:
    assert orphans.plan(a_pass(a_node("live"), suspects={})) == OrphanPlan(look_again_in=60.0)


def test_strays_go_with_their_object() -> None:
    plan = orphans.plan(
        a_pass(
            a_node("live", strays=(VOLUME, CONTAINER)),
            suspects={Held("n1", "e1", "lost", name): 300.0 for name in ("c1", "v1")},
        )
    )
    assert plan.actions == (RemoveStrays(node="n1", names=("c1", "v1")),)


NOT_YET: dict[str, OrphanPass] = {
    "never listed": a_pass(lists=()),
    "seen only now": a_pass(suspects={}),
    "the grace is not over": a_pass(suspects={LOST: 440.1}, monotonic=500.0),
    "both lists are older than the record": a_pass(suspects={LOST: 451.0}, monotonic=600.0),
    "the older list has it": a_pass(lists=(listed("lost", at=100), listed(at=450))),
    "the newer list has it": a_pass(lists=(listed(at=100), listed("lost", at=450))),
    "the agent is silent": a_pass(a_node("live", "lost", reachable=False)),
    "the agent was not read": a_pass(a_node("live", "lost", synced=False)),
    "the agent speaks another version": a_pass(
        a_node("live", "lost", report=a_report(wire_versions=(9,)))
    ),
    "another node's agent": a_pass(a_node("live", "lost", report=a_report("n2"))),
    "it is being removed already": a_pass(a_node(records=(a_record(uid="lost", removing=True),))),
    "it is a tombstone": a_pass(
        a_node(records=(a_record(uid="lost", removing=True, nothing_left=True),))
    ),
    "the node was declared off": a_pass(
        a_node("lost", object=a_node_object(spec={"outOfService": {"reason": "r"}}))
    ),
    "another store's record is another thing": a_pass(
        a_node("live", "lost", report=a_report(epoch="e2"))
    ),
    "an administrator wants to be told only": a_pass(policy=OrphanPolicy.REPORT),
}


@pytest.mark.parametrize("name", NOT_YET)
def test_is_not_removed(name: str) -> None:
    plan = orphans.plan(NOT_YET[name])
    assert not [a for a in plan.actions if isinstance(a, Remove | RemoveStrays)]


def test_a_report_counts_what_it_leaves() -> None:
    plan = orphans.plan(a_pass(policy=OrphanPolicy.REPORT))
    assert (plan.actions, plan.orphans) == ((), {"n1": 1})


def test_a_suspicion_is_kept_with_its_time_and_dropped_with_its_cause() -> None:
    first = orphans.plan(a_pass(suspects={}))
    assert first.suspects == {LOST: 500.0}
    later = a_pass(suspects=first.suspects, monotonic=800.0, lists=(TWO[1], listed("live", at=750)))
    assert orphans.plan(later).actions == (Remove(node="n1", uid="lost"),)
    found = replace(later, lists=(TWO[1], listed("live", "lost", at=750)))
    assert orphans.plan(found).suspects == {}


def crowd(lost: int, live: int) -> OrphanPass:
    gone = [f"g{n}" for n in range(lost)]
    kept = [f"l{n}" for n in range(live)]
    return a_pass(
        a_node(*gone, *kept),
        lists=(listed(*kept, at=100), listed(*kept, at=450)),
        suspects={Held("n1", "e1", uid): 300.0 for uid in gone},
    )


@pytest.mark.parametrize(
    ("lost", "live", "stopped"),
    [(3, 0, False), (4, 0, True), (3, 100, False), (20, 80, False), (21, 79, True), (100, 0, True)],
)
def test_the_circuit_breaker(lost: int, live: int, stopped: bool) -> None:
    plan = orphans.plan(crowd(lost, live))
    removed = [a for a in plan.actions if isinstance(a, Remove)]
    assert len(removed) == (0 if stopped else lost)
    assert plan.stopped == (frozenset({"n1"}) if stopped else frozenset())
    assert len([a for a in plan.actions if isinstance(a, Alert)]) == stopped
    assert plan.orphans == {"n1": lost}


def test_records_of_what_has_ended_go_without_the_breaker() -> None:
    gone = [f"g{n}" for n in range(50)]
    ended = tuple(a_record(uid=uid, nothing_left=True) for uid in gone)
    suspects = {Held("n1", "e1", uid): 300.0 for uid in gone}
    plan = orphans.plan(a_pass(a_node(records=ended), suspects=suspects))
    assert len(plan.actions) == 50
    assert (plan.orphans, plan.stopped) == ({}, frozenset())
    # Where the breaker keeps what lives, it keeps these too: an etcd of an older day lacks both.
    alive = records(*(f"a{n}" for n in range(9)))
    more = {Held("n1", "e1", record.uid): 300.0 for record in alive}
    plan = orphans.plan(a_pass(a_node(records=(*ended, *alive)), suspects={**suspects, **more}))
    assert (plan.orphans, plan.stopped) == ({"n1": 9}, frozenset({"n1"}))
    assert not [a for a in plan.actions if isinstance(a, Remove)]


def test_the_alert_says_what_to_do_and_is_told_once() -> None:
    (alert,) = orphans.plan(crowd(50, 0)).actions
    assert isinstance(alert, Alert)
    assert alert.reason == "OrphanRemovalStopped"
    assert alert.message == (
        "50 things on node n1 have no object, too many at once to be believed: nothing is removed."
        " Was etcd restored from a backup? If they may go, annotate ExecutionNode n1 with"
        " isolet.dev/remove-orphans=e1"
    )
    (more,) = orphans.plan(crowd(51, 0)).actions
    assert isinstance(more, Alert)
    assert more.key == alert.key


@pytest.mark.parametrize(("epoch", "removed"), [("e1", 50), ("e0", 0)])
def test_somebody_looked_and_said_so_for_this_store(epoch: str, removed: int) -> None:
    seen = crowd(50, 0)
    marked = a_node_object(metadata={"annotations": {orphans.APPROVAL: epoch}})
    plan = orphans.plan(replace(seen, nodes=(replace(seen.nodes[0], object=marked),)))
    assert len([a for a in plan.actions if isinstance(a, Remove)]) == removed


def test_one_nodes_trouble_does_not_stop_anothers() -> None:
    seen = crowd(50, 0)
    other = a_node("lost", name="n2")
    plan = orphans.plan(
        replace(
            seen,
            nodes=(*seen.nodes, other),
            suspects={**seen.suspects, Held("n2", "e1", "lost"): 300.0},
        )
    )
    assert [type(a) for a in plan.actions] == [Alert, Remove]
    assert plan.stopped == {"n1"}


def test_an_object_list_that_was_seen_once_decides_nothing() -> None:
    plan = orphans.plan(a_pass(lists=TWO[1:]))
    (alert,) = plan.actions
    assert isinstance(alert, Alert)
    assert alert.message == (
        "node n1 holds things without an object, and the Executions have been listed only once"
        " since the operator began: nothing is removed before a second list"
    )
    assert plan.orphans == {}


def stone(uid: str = "lost", node: str = "n1", age: timedelta = timedelta(minutes=10)) -> Tombstone:
    return Tombstone(
        uid=uid,
        namespace="team",
        name="hello",
        node=node,
        cause=Cause.FORCED,
        written_at=NOW - age,
    )


def test_what_was_given_up_is_removed_at_once_and_without_the_breaker() -> None:
    gone = [f"g{n}" for n in range(50)]
    plan = orphans.plan(
        a_pass(
            a_node(*gone, strays=(CONTAINER,)),
            lists=(),
            suspects={},
            policy=OrphanPolicy.REPORT,
            tombstones=(*(stone(uid) for uid in gone), stone()),
        )
    )
    removed = [a.uid for a in plan.actions if isinstance(a, Remove)]
    assert removed == sorted(gone)
    assert plan.actions[-1] == RemoveStrays(node="n1", names=("c1",))
    assert not plan.stopped


DOWN = (NodeCondition(type="EngineReady", status="False", reason="r", message=""),)

STONES: dict[str, tuple[OrphanPass, bool]] = {
    "the node has nothing of it": (a_pass(a_node(), tombstones=(stone(),)), True),
    "only just written: the node's list may be older": (
        a_pass(a_node(), tombstones=(stone(age=timedelta(minutes=9)),)),
        False,
    ),
    "a record is left": (a_pass(a_node("lost"), tombstones=(stone(),)), False),
    "a stray is left": (a_pass(a_node(strays=(VOLUME,)), tombstones=(stone(),)), False),
    "the node is silent": (a_pass(a_node(reachable=False), tombstones=(stone(),)), False),
    "the node has no object": (a_pass(a_node(name="n2"), tombstones=(stone(),)), False),
    "the engine is not asked": (
        a_pass(a_node(report=a_report(conditions=DOWN)), tombstones=(stone(),)),
        False,
    ),
    "a node that has not come back in a month": (
        a_pass(a_node(name="n2"), tombstones=(stone(age=timedelta(days=30)),)),
        True,
    ),
}


@pytest.mark.parametrize("name", STONES)
def test_a_tombstone_is_kept_until_the_node_has_nothing_of_it(name: str) -> None:
    seen, dropped = STONES[name]
    found = [a for a in orphans.plan(seen).actions if isinstance(a, DropTombstone)]
    assert found == ([DropTombstone(uid="lost", node="n1")] if dropped else [])


def test_the_order_of_what_was_read_does_not_matter() -> None:
    seen = a_pass(
        a_node("live", "lost", strays=(CONTAINER, VOLUME)),
        a_node("lost", name="n2"),
        suspects={
            LOST: 300.0,
            Held("n2", "e1", "lost"): 300.0,
            Held("n1", "e1", "lost", "c1"): 300.0,
            Held("n1", "e1", "lost", "v1"): 300.0,
        },
        tombstones=(stone("x"), stone("y", node="n2")),
    )
    turned = replace(
        seen,
        nodes=tuple(replace(n, records=tuple(reversed(n.records))) for n in reversed(seen.nodes)),
        tombstones=tuple(reversed(seen.tombstones)),
    )
    assert orphans.plan(turned) == orphans.plan(seen)
