"""Leaders that die or freeze, an API server that dies, and an etcd that is an older one."""

import base64
import contextlib
import http.client
import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isolet_cluster.layout import State
from isolet_cluster.processes import stopped
from isolet_stack.stack import NAMESPACE, TOKEN_SECONDS
from tests.e2e.faults_arena import (
    HOST,
    TAIL,
    Arena,
    Sandbox,
    Trap,
    Unix,
    arena_of,
    ask_agent,
    chance,
    cluster,
    counting,
    eventually,
    lease_holder,
    mix,
    runs,
)
from tests.e2e.faults_watch import Sight, Tape, doubles, tapes, verdict
from tests.e2e.looks import QUICK, events, outcome
from tests.e2e.world import World, a_class, an_execution, is_finished

pytestmark = pytest.mark.faults

OPERATOR = "system:serviceaccount:isolet-system:isolet-operator"
CREDENTIAL = "authentication.kubernetes.io/credential-id"
FREEZES = ("operator.bind.before", "operator.agent.put.before", "operator.bind.after")


@pytest.fixture
def listening(world: World) -> Iterator[dict[str, Tape]]:
    witnesses = {node: world.witness(node) for node in world.stack.nodes()}
    with tapes(witnesses, world.stack.installation) as running:
        yield running
    world.stack.end("operator-1")
    world.stack.parts.pop("operator-1", None)
    world.stack.save()


# Leaders.


def new_credential(world: World) -> str:
    """A token of its own for the next operator, so that the audit log tells it; returns its id."""
    path = world.stack.operator_kubeconfig
    config = json.loads(path.read_text())
    ask = ("create", "token", "isolet-operator", "-n", NAMESPACE, f"--duration={TOKEN_SECONDS}")
    token = world.stack.kube(*ask).strip()
    config["users"][0]["user"]["token"] = token
    path.write_text(json.dumps(config))
    claims = token.split(".")[1]
    return "JTI=" + json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["jti"]


def writes_after(world: World, credential: str, since: float) -> list[str]:
    """What one operator wrote after a wall time, and the API server accepted."""
    found = []
    for entry in world.audit():
        said = entry["user"].get("extra", {}).get(CREDENTIAL, [])
        at = entry["requestReceivedTimestamp"]
        code = entry.get("responseStatus", {}).get("code", 0)
        if credential in said and code < 400 and at > time_text(since):
            found.append(f"{at} {entry['verb']} {entry['requestURI']}")
    return found


def time_text(at: float) -> str:
    """A wall time as the audit log writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1e6):06d}Z"


def fence_of(world: World) -> str:
    """The fence that the present leader sends to agents."""
    lease = json.loads(
        world.stack.kube("-n", NAMESPACE, "get", "lease", "isolet-operator", "-o", "json")
    )
    return f"0/{lease['metadata']['uid']}/{lease['spec']['leaseTransitions']}"


def delete_with(world: World, node: str, uid: str, fence: str) -> tuple[int, str]:
    """Ask an agent to remove something, in the name of a leader."""
    with contextlib.closing(Unix(world.stack.agent_run(node) / "agent.sock")) as connection:
        connection.request("DELETE", f"/v1/executions/{uid}", headers={"Isolet-Fence": fence})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def leads_anew(world: World, before: str, seconds: float = 150) -> None:
    """Wait until another leads."""
    eventually(
        "another operator leads", lambda: lease_holder(world.stack) not in ("", before), seconds
    )


def test_a_leader_frozen_past_its_lease_and_one_that_dies(
    world: World, listening: dict[str, Tape], tmp_path: Path
) -> None:
    stack = world.stack
    stack.end("operator-0")
    old = new_credential(world)
    trap = Trap(tmp_path, "operator-0", "stop")
    stack.start_operator("0", trap.env)
    leads_anew(world, "")
    world.execution("stands", "sleep", "300")
    node = world.running("stands")["spec"]["nodeName"]
    uid = world.get("execution", "stands")["metadata"]["uid"]
    sandbox, fence = Sandbox.of(world.witness(node), uid), fence_of(world)
    holder = lease_holder(stack)

    new_credential(world)
    stack.start_operator("1")
    trap.set(chance("freeze").choice(FREEZES))
    world.execution("meanwhile", *counting(5), nodeSelector={HOST: node})
    process = stack.process("operator-0")
    assert process is not None
    eventually("the leader is frozen", lambda: stopped(process.pid))
    leads_anew(world, holder)
    assert outcome(world.finished("meanwhile")) == ("True", "Succeeded")

    status, said = delete_with(world, node, uid, fence)
    assert (status, json.loads(said)["reason"]) == (412, "Fenced")
    woken = time.time()
    process.signal(signal.SIGCONT)
    eventually("the old leader ends", lambda: not process.alive())
    assert writes_after(world, old, woken) == []

    holder = lease_holder(stack)
    stack.start_operator("0")
    stack.kill("operator-1")
    world.execution("leaderless", *counting(5))
    leads_anew(world, holder)
    assert outcome(world.finished("leaderless")) == ("True", "Succeeded")
    assert Sandbox.of(world.witness(node), uid) == sandbox
    assert doubles(listening) == {}


# The API server and its store.


def compact(world: World) -> None:
    """Forget all history, so that whoever watches from before is told 410."""
    state = State.load(world.stack.layout)
    assert state is not None
    port = state.ports["etcd"]

    def ask(path: str, body: dict[str, Any]) -> Any:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())

    revision = ask("/v3/kv/range", {"key": base64.b64encode(b"x").decode()})["header"]["revision"]
    assert "header" in ask("/v3/kv/compaction", {"revision": revision, "physical": True})


def admission_works(world: World) -> None:
    """Wait until an API server that has just begun has read the policies' parameters."""
    probe = json.dumps(an_execution("probe", "true"))
    ask = ("apply", "--dry-run=server", "-f", "-", "-o", "name")
    eventually(
        "the API server takes an Execution",
        lambda: world.kubectl(*ask, stdin=probe, check=False).strip(),
    )


def test_the_api_server_dies_and_its_history_is_gone(world: World, tmp_path: Path) -> None:
    with arena_of(world, tmp_path, "operator-0") as arena:
        arena.settle_in()
        works = [w for n in (0, 1) for w in mix(f"node-{n}", f"api-{n}", chance("api"))]
        arena.begin(works)
        arena.sight.until(works[0].name, bool)
        time.sleep(chance("api", "pause").uniform(0, 2))
        cluster("kill", "apiserver")
        compact(world)
        cluster("restart", "apiserver")
        admission_works(world)
        arena.finish(works)
        arena.judge()
        arena.end_standing()


def made_again(world: World, document: dict[str, Any]) -> None:
    """Apply it as soon as the API server has found its store again, which is back."""
    ask = ("apply", "-f", "-", "-o", "name")
    eventually(
        "the API server writes",
        lambda: world.kubectl(*ask, stdin=json.dumps(document), check=False).strip(),
    )


def etcd_copied(world: World) -> Path:
    """A copy of etcd's folder as it is now."""
    folder = world.stack.layout.data / "etcd"
    copy = folder.with_name("etcd.copy")
    cluster("kill", "etcd")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    cluster("restart", "etcd")
    return copy


def etcd_put_back(world: World, copy: Path) -> None:
    """Have the cluster as it was when the copy was made."""
    folder = world.stack.layout.data / "etcd"
    cluster("kill", "apiserver")
    cluster("kill", "etcd")
    shutil.rmtree(folder)
    copy.rename(folder)
    for part in ("etcd", "apiserver", "controller-manager"):
        cluster("restart", part)


def tenants_that_etcd_will_not_know(arena: Arena) -> dict[str, Sandbox]:
    """As many on one node as no circuit breaker may let go at once."""
    where = {"nodeSelector": {HOST: "node-0"}, "activeDeadlineSeconds": 600}
    for number in range(5):
        arena.world.execution(f"late-{number}", "sleep", "500", **where)
    found = {}
    for number in range(5):
        seen = arena.sight.until(f"late-{number}", runs)
        witness = arena.world.witness("node-0")
        found[f"late-{number}"] = Sandbox.of(witness, seen["metadata"]["uid"])
    return found


def test_an_etcd_that_went_back_in_time(world: World, tmp_path: Path) -> None:
    later = f"later-{world.namespace}"
    with arena_of(world, tmp_path, "operator-0", extra=QUICK) as arena:
        arena.settle_in()
        world.execution("unbound", *counting(4), className=later, output=TAIL)
        world.execution("bygone", "sh", "-c", UNTIL_TOLD, output=TAIL)
        bygone = arena.sight.until("bygone", runs)
        sandbox = Sandbox.of(world.witness(bygone["spec"]["nodeName"]), bygone["metadata"]["uid"])
        copy = etcd_copied(world)
        made_again(world, a_class(later))
        world.witness(bygone["spec"]["nodeName"]).docker("exec", sandbox.id, "touch", "/tmp/go")
        before = {
            name: verdict(arena.sight.until(name, is_finished, 120))
            for name in ("unbound", "bygone")
        }
        assert {told[:2] for told in before.values()} == {("True", "Succeeded")}
        late = tenants_that_etcd_will_not_know(arena)
        arena.sight.close()
        etcd_put_back(world, copy)
        arena.sight = Sight(arena.sight.kubectl, world.namespace)
        for name, told in before.items():
            assert verdict(arena.sight.until(name, is_finished, 120)) == told
        eventually(
            "the circuit breaker is told of",
            lambda: [e for e in events(world, "node-0", "default") if e["reason"] == STOPPED],
            180,
        )
        for name, sandbox in late.items():
            assert Sandbox.of(world.witness("node-0"), sandbox.uid) == sandbox, name
            world.witness("node-0").docker("rm", "-f", sandbox.id)
        gone = {sandbox.uid for sandbox in late.values()}
        eventually("the node forgets them", lambda: not gone & records(world, "node-0"), 180)
        world.kubectl("delete", "executions", *before)
        arena.judge()
        arena.end_standing()


def records(world: World, node: str) -> set[str]:
    """Uids of what a node's agent knows."""
    found = json.loads(ask_agent(world.stack, node, "/v1/executions"))["executions"]
    return {record["uid"] for record in found}


STOPPED = "OrphanRemovalStopped"
UNTIL_TOLD = "while [ ! -e /tmp/go ]; do sleep 0.2; done; echo told"
