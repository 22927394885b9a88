"""Nodes: where work goes, what takes a node out, what a silent or foreign node means.

A witness asks the engines and the API server's own record; conditions are what is judged.
"""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.impostor import impostor
from tests.e2e.looks import (
    QUICK,
    cluster,
    events,
    eventually,
    held,
    metric,
    node_is,
    node_of,
    operator_with,
    outcome,
    scheduled,
    tombstones,
    writes,
)
from tests.e2e.world import World, an_execution, condition

OPERATOR_SELF = "system:serviceaccount:isolet-system:isolet-operator"


def on(node: str) -> dict[str, dict[str, str]]:
    """Spec of an Execution that only this node may run."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def uid_of(world: World, kind: str, name: str) -> str:
    found = world.get(kind, name)
    assert found is not None
    return str(found["metadata"]["uid"])


# Where work goes.


def test_work_spreads_and_obeys_labels(nodes: World) -> None:
    nodes.stack.kube("label", "executionnode", "node-1", "zone=b")
    for number in range(6):
        nodes.execution(f"any{number}", "sleep", "600")
    for number in range(2):
        nodes.execution(f"there{number}", "sleep", "600", nodeSelector={"zone": "b"})
    where = Counter(node_of(nodes, f"any{number}") for number in range(6))
    assert min(where["node-0"], where["node-1"]) >= 2, where
    for number in range(2):
        assert node_of(nodes, f"there{number}") == "node-1"
        assert held(nodes, "node-1", uid_of(nodes, "execution", f"there{number}"))
    nodes.execution("nowhere", "true", nodeSelector={"zone": "c"})
    assert "without label zone=c" in scheduled(nodes, "nowhere", "Unschedulable")


def test_a_full_node_takes_no_more_and_what_waits_gets_the_room(nodes: World) -> None:
    policy = Path(nodes.stack.layout.data / "policy.toml")
    before = policy.read_text()
    policy.write_text('[capacity]\ncpu = 64\nexecutions = 2\nmemory = "512Mi"\n')
    try:
        nodes.stack.end("agent-node-1")
        nodes.stack.start_agent("node-1")
        told = ["get", "executionnode", "node-1", "-o", "jsonpath={.status.capacity.executions}"]
        eventually(lambda: nodes.kubectl(*told) == "2", "the node says how much it takes")
        for name in ("one", "two"):
            nodes.execution(name, "sleep", "600", **on("node-1"))
            nodes.running(name)
        nodes.execution("three", "true", **on("node-1"))
        assert "1 full" in scheduled(nodes, "three", "Unschedulable")
        nodes.execution("huge", "true", resources={"memory": "1Gi"}, **on("node-1"))
        assert "too small for memory 1Gi" in scheduled(nodes, "huge", "Unschedulable")
        assert len(nodes.witness("node-1").containers("isolet")) == 2
        nodes.delete("execution", "one")
        assert outcome(nodes.finished("three")) == ("True", "Succeeded")
    finally:
        policy.write_text(before)
        nodes.stack.end("agent-node-1")


# What takes a node out.


def test_unschedulable_gives_no_new_work_and_leaves_what_runs(nodes: World) -> None:
    nodes.execution("stays", **on("node-0"))
    nodes.running("stays")
    nodes.patch("executionnode", "node-0", {"spec": {"unschedulable": True}})
    said = node_is(nodes, "node-0", "Ready", "False", "Cordoned")
    assert "spec.unschedulable" in said["message"]
    for number in range(3):
        nodes.execution(f"new{number}", "true")
        assert nodes.finished(f"new{number}")["exitCode"] == 0
        found = nodes.get("execution", f"new{number}")
        assert found is not None
        assert found["spec"]["nodeName"] == "node-1"
    assert held(nodes, "node-0", uid_of(nodes, "execution", "stays"))
    row = nodes.kubectl("get", "executionnode", "node-0", "--no-headers").split()
    assert row[:4] == ["node-0", "False", "Cordoned", "true"]


def test_a_drain_waits_and_then_ends_what_is_left(nodes: World) -> None:
    nodes.execution("short", "sh", "-c", "sleep 4", **on("node-0"))
    nodes.execution("session", **on("node-0"))
    nodes.running("short")
    nodes.running("session")
    nodes.patch("executionnode", "node-0", {"spec": {"drain": {"onDeadline": "Wait"}}})
    node_is(nodes, "node-0", "Drained", "False", "Draining")
    nodes.execution("other", "true")
    nodes.finished("other")
    assert (nodes.get("execution", "other") or {})["spec"]["nodeName"] == "node-1"
    assert outcome(nodes.finished("short")) == ("True", "Succeeded")
    assert condition(nodes.get("execution", "session"), "Finished").get("status") != "True"
    change = {"spec": {"drain": {"onDeadline": "Terminate", "deadlineSeconds": 1}}}
    nodes.patch("executionnode", "node-0", change)
    assert outcome(nodes.finished("session")) == ("False", "Drained")
    said = node_is(nodes, "node-0", "Drained", "True")
    assert "no work is left" in said["message"]
    nodes.kubectl("wait", "--for=condition=Drained", "--timeout=10s", "executionnode/node-0")
    eventually(
        lambda: "Drained" in [e["reason"] for e in events(nodes, "node-0", "default")], "an Event"
    )
    session = uid_of(nodes, "execution", "session")
    eventually(lambda: not held(nodes, "node-0", session), "nothing of it is left")
    nodes.patch("executionnode", "node-0", {"spec": {"drain": None}})
    node_is(nodes, "node-0", "Ready", "True")
    assert condition(nodes.get("executionnode", "node-0"), "Drained") == {}


@pytest.mark.parametrize("how", ["declared off", "deleted"])
def test_a_node_that_is_given_up_releases_its_work_and_is_cleared_later(
    nodes: World, how: str
) -> None:
    for name in ("lost", "released"):
        nodes.execution(name, **on("node-1"))
        nodes.running(name)
    uids = {name: uid_of(nodes, "execution", name) for name in ("lost", "released")}
    nodes.stack.kill("agent-node-1")
    nodes.delete("execution", "released")
    time.sleep(1)
    assert nodes.get("execution", "released") is not None
    if how == "deleted":
        nodes.delete("executionnode", "node-1")
    else:
        change = {"spec": {"outOfService": {"reason": "power off, ticket 4711"}}}
        nodes.patch("executionnode", "node-1", change)
    assert outcome(nodes.finished("lost")) == ("False", "NodeLost")
    nodes.gone("execution", "released")
    told = eventually(
        lambda: [e for e in events(nodes, "released") if e["reason"] == "ReleasedUnconfirmed"],
        "an Event of the release",
    )
    word = "was deleted" if how == "deleted" else "ticket 4711"
    assert word in told[0]["message"]
    (stone,) = [t for t in tombstones(nodes) if t["uid"] == uids["released"]]
    assert (stone["node"], stone["name"]) == ("node-1", "released")
    # The witness: both still run there, which nobody could know.
    assert all(held(nodes, "node-1", uid) for uid in uids.values())
    if how == "deleted":
        nodes.stack.register("node-1")
    else:
        nodes.patch("executionnode", "node-1", {"spec": {"outOfService": None}})
    nodes.stack.start_agent("node-1")
    for name, uid in uids.items():
        eventually(lambda uid=uid: not held(nodes, "node-1", uid), f"{name} is removed")


# A node that is silent, or whose engine is.


def test_a_silent_agent_ends_nothing_and_comes_back(nodes: World) -> None:
    for name in ("session", "deleted"):
        nodes.execution(name, **on("node-1"))
    before = nodes.running("session")["status"]
    nodes.running("deleted")
    (container,) = held(nodes, "node-1", uid_of(nodes, "execution", "session"))
    nodes.stack.end("agent-node-1")
    nodes.delete("execution", "deleted")
    node_is(nodes, "node-1", "Reachable", "False")
    node_is(nodes, "node-1", "EngineReady", "Unknown")
    said = nodes.kubectl("describe", "executionnode", "node-1")
    assert "when last heard of: True" in said
    waits = nodes.until(
        "execution",
        "deleted",
        lambda o: condition(o, "Stalled").get("reason") == "AwaitingNode",
    )
    cure = condition(waits, "Stalled")["message"]
    for way in ("delete ExecutionNode node-1", "spec.outOfService", "isolet.dev/force-release"):
        assert way in cure
    unreachable = nodes.until(
        "execution", "session", lambda o: condition(o, "Succeeded").get("status") == "Unknown"
    )
    assert condition(unreachable, "Finished").get("status") != "True"
    nodes.execution("elsewhere", "true")
    assert nodes.finished("elsewhere")["exitCode"] == 0
    nodes.stack.start_agent("node-1")
    node_is(nodes, "node-1", "Ready", "True", seconds=90)
    nodes.gone("execution", "deleted")
    again = nodes.until(
        "execution", "session", lambda o: condition(o, "Ready").get("status") == "True"
    )
    assert again["status"]["startTime"] == before["startTime"]
    assert held(nodes, "node-1", uid_of(nodes, "execution", "session")) == [container]


def test_an_engine_that_is_down_closes_its_node(nodes: World) -> None:
    nodes.execution("session", **on("node-1"))
    nodes.running("session")
    try:
        cluster(nodes, "kill", "dockerd-1")
        node_is(nodes, "node-1", "EngineReady", "False", "EngineUnavailable")
        node_is(nodes, "node-1", "Ready", "False", "EngineUnavailable")
        described = nodes.kubectl("describe", "executionnode", "node-1")
        assert "docker.sock" in described
        nodes.execution("here", "true", **on("node-1"))
        assert "not ready (EngineReady)" in scheduled(nodes, "here", "Unschedulable")
        nodes.execution("there", "true")
        assert nodes.finished("there")["exitCode"] == 0
        assert condition(nodes.get("execution", "session"), "Finished").get("status") != "True"
    finally:
        cluster(nodes, "restart", "dockerd-1")
    node_is(nodes, "node-1", "Ready", "True", seconds=90)
    assert nodes.finished("here")["exitCode"] == 0
    ready = nodes.until(
        "execution", "session", lambda o: condition(o, "Ready").get("status") == "True"
    )
    assert ready["status"]["conditions"]


# A node of another version.


def test_an_agent_of_an_incompatible_version_gets_no_work(nodes: World) -> None:
    image = an_execution("x")["spec"]["image"]
    with impostor(nodes, "node-99", (99,), image) as agent:
        said = node_is(nodes, "node-99", "WireCompatible", "False", "WireIncompatible")
        assert "99" in said["message"]
        assert "update the older" in said["message"]
        node_is(nodes, "node-99", "Ready", "False", "WireIncompatible")
        nodes.execution("never", "true", **on("node-99"))
        scheduled(nodes, "never", "Unschedulable")
        time.sleep(2)
        assert {method for method, _, _ in agent.asked} == {"GET"}


def test_an_agent_that_is_one_version_ahead_is_spoken_to_in_ours(nodes: World) -> None:
    image = an_execution("x")["spec"]["image"]
    with impostor(nodes, "node-12", (1, 2), image) as agent:
        node_is(nodes, "node-12", "WireCompatible", "True")
        node_is(nodes, "node-12", "Ready", "True")
        nodes.execution("done", "true", **on("node-12"))
        assert nodes.finished("done")["exitCode"] == 0
        assert {spoken for _, _, spoken in agent.asked} == {"1"}
        assert [m for m, _, _ in agent.asked].count("PUT") == 1
        nodes.delete("execution", "done")
        nodes.gone("execution", "done")


# Orphans, and a quiet minute.


def unknown_to_the_api(world: World, names: list[str]) -> dict[str, str]:
    """Objects that vanish behind the operator's back, as from an older etcd; name to uid."""
    uids = {name: uid_of(world, "execution", name) for name in names}
    world.stack.kill("operator-0")
    for name in names:
        change = json.dumps({"metadata": {"finalizers": None}})
        as_ours = f"--as={OPERATOR_SELF}"
        world.kubectl("patch", "execution", name, as_ours, "--type=merge", "-p", change)
        world.kubectl("delete", "execution", name, "--wait=true", "--timeout=20s")
    return uids


def test_a_quiet_minute(nodes: World) -> None:
    """Ten idle sessions cost no write; an orphan is counted and kept where the policy says so."""
    names = [f"idle{number}" for number in range(10)]
    for name in [*names, "orphan"]:
        nodes.execution(name)
    for name in [*names, "orphan"]:
        nodes.running(name)
    uids = unknown_to_the_api(nodes, ["orphan"])
    operator_with(nodes, resync_seconds="5", orphan_policy="Report")
    time.sleep(5)
    begin = sum(1 for _ in nodes.audit())
    before = {name: nodes.get("execution", name) for name in names}
    quiet_from = time.monotonic()
    eventually(lambda: metric(nodes, "isolet_operator_orphans") == 1, "it is counted", 120)
    time.sleep(max(0.0, 60 - (time.monotonic() - quiet_from)))
    assert writes(nodes, begin, nodes.namespace) == []
    assert {name: nodes.get("execution", name) for name in names} == before
    on_nodes = [w for w in writes(nodes, begin) if w["objectRef"]["resource"] == "executionnodes"]
    assert len(on_nodes) <= 4, on_nodes
    assert any(held(nodes, node, uids["orphan"]) for node in nodes.stack.nodes())
    # What the policy kept, the default policy removes; that is seen in the next test's way too.
    operator_with(nodes, **{"resync_seconds": "5"})
    eventually(
        lambda: not any(held(nodes, node, uids["orphan"]) for node in nodes.stack.nodes()),
        "the orphan is removed",
        150,
    )
    operator_with(nodes)


def test_many_orphans_at_once_are_kept_until_somebody_has_looked(nodes: World) -> None:
    many = [f"many{number}" for number in range(5)]
    for name in many:
        nodes.execution(name, **on("node-0"))
    nodes.execution("alone", **on("node-1"))
    for name in [*many, "alone"]:
        nodes.running(name)
    uids = unknown_to_the_api(nodes, [*many, "alone"])
    operator_with(nodes, resync_seconds=QUICK["ISOLET_OPERATOR_RESYNC_SECONDS"])
    eventually(lambda: not held(nodes, "node-1", uids["alone"]), "the single one goes", 150)
    eventually(
        lambda: metric(nodes, "isolet_operator_orphan_breaker_open") == 1, "the breaker opens"
    )
    assert all(held(nodes, "node-0", uids[name]) for name in many)
    (told,) = eventually(
        lambda: [
            e for e in events(nodes, "node-0", "default") if e["reason"] == "OrphanRemovalStopped"
        ],
        "an Event",
    )
    assert "Was etcd restored" in told["message"]
    approval = told["message"].rsplit(" ", 1)[-1]
    nodes.kubectl("annotate", "executionnode", "node-0", "--overwrite", approval)
    for name in many:
        eventually(lambda name=name: not held(nodes, "node-0", uids[name]), f"{name} goes")
    nodes.kubectl("annotate", "executionnode", "node-0", "isolet.dev/remove-orphans-")
    operator_with(nodes)
