"""What several e2e tests look at: Events, node conditions, metrics, and parts of the cluster."""

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from tests.e2e.faults_watch import Sight
from tests.e2e.world import ROOT, World, condition

OPERATOR = "system:serviceaccount:isolet-system:isolet-operator"
QUICK = {"ISOLET_OPERATOR_RESYNC_SECONDS": "5"}
"""An operator that lists all again every few seconds, so that a test need not wait for minutes."""


def eventually(look: Callable[[], Any], what: str, seconds: float = 150) -> Any:
    """Wait until `look` finds something; returns it."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def node_is(
    world: World, node: str, kind: str, status: str, reason: str = "", seconds: float = 150
) -> dict[str, Any]:
    """Wait for a condition of a node; returns it."""

    def reached(seen: Any) -> bool:
        found = condition(seen, kind)
        return found.get("status") == status and reason in ("", found.get("reason"))

    return condition(world.until("executionnode", node, reached, seconds), kind)


def scheduled(world: World, name: str, reason: str, seconds: float = 150) -> str:
    """Wait for the reason of `Scheduled`; returns its message."""
    seen = world.until(
        "execution", name, lambda o: condition(o, "Scheduled").get("reason") == reason, seconds
    )
    return str(condition(seen, "Scheduled")["message"])


def outcome(status: dict[str, Any]) -> tuple[str, str]:
    """Whether and why, of a finished Execution."""
    found = condition({"status": status}, "Succeeded")
    return found["status"], found["reason"]


def node_of(world: World, name: str) -> str:
    """Where it runs, once it does."""
    return str(world.running(name)["spec"]["nodeName"])


def events(world: World, name: str, namespace: str | None = None) -> list[dict[str, Any]]:
    """Events about an object, as the API server has them."""
    out = world.stack.kube(
        *("-n", namespace or world.namespace, "get", "events", "-o", "json"),
        *("--field-selector", f"involvedObject.name={name}"),
    )
    return list(json.loads(out)["items"])


def tombstones(world: World) -> list[dict[str, Any]]:
    """What was released without a node's word, in the operator's namespace."""
    out = world.stack.kube(
        *("-n", "isolet-system", "get", "configmaps", "-l", "isolet.dev/tombstone", "-o", "json")
    )
    return [json.loads(i["data"]["tombstone.json"]) for i in json.loads(out)["items"]]


def held(world: World, node: str, uid: str) -> list[str]:
    """Containers of one object that the node's engine has, whatever their state."""
    return world.witness(node).docker("ps", "-aq", "--filter", f"label={UID}={uid}").splitlines()


UID = "dev.isolet.uid"


def operator_with(world: World, **settings: str) -> None:
    """Restart the operator with settings; without any, with its defaults."""
    world.stack.end("operator-0")
    names = {f"ISOLET_OPERATOR_{k.upper()}": v for k, v in settings.items()}
    world.stack.start_operator(extra=names)
    world.stack.wait_ready()


def metric(world: World, name: str) -> float | None:
    """A metric of the operator that runs now; None while that one does not serve it yet."""
    # A line that is being written is none yet.
    text = world.stack.layout.log("operator-0").read_text().rpartition("\n")[0]
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    port = [line["metrics_port"] for line in told if "metrics_port" in line][-1]
    with contextlib.suppress(OSError):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            rows = [line.split() for line in answer.read().decode().splitlines()]
        return next((float(row[1]) for row in rows if row and row[0] == name), None)
    return None


def cluster(world: World, *words: str) -> None:
    """hack/cluster on this cluster: kill, restart, freeze, thaw a part."""
    command = [str(ROOT / "hack" / "cluster"), *words, "--name", world.stack.layout.name]
    subprocess.run(command, check=True, capture_output=True, timeout=240)


def writes(
    world: World, begin: int, namespace: str | None = None, user: str = OPERATOR
) -> list[dict[str, Any]]:
    """Writes of one user that the API server answered, from the `begin`th line of its record."""
    return [
        entry
        for number, entry in enumerate(world.audit())
        if number >= begin
        and entry["user"]["username"] == user
        and entry["verb"] not in ("get", "list", "watch")
        and (namespace is None or entry.get("objectRef", {}).get("namespace") == namespace)
    ]


@contextlib.contextmanager
def a_cheap_life(world: World, plural: str, name: str) -> Iterator[None]:
    """What is made, ends and goes meanwhile costs four writes of the operator's in all.

    Each named detour may add one: what takes more than five seconds to make a sandbox, or to take
    its output in, is said in the status, which whoever watches has seen.
    """
    kubectl = [world.stack.kubectl, "--kubeconfig", str(world.stack.kubeconfig)]
    sight = Sight(kubectl, world.namespace, plural)
    try:
        yield
        eventually(lambda: name in sight.deleted, f"{name} is seen to go")
    finally:
        sight.close()
    detours = len(sight.said[name] & {"Preparing", "Starting", "Collecting"})
    done = [(entry["verb"], entry["objectRef"]) for entry in writes(world, 0, world.namespace)]
    assert len(done) <= 4 + detours, done
