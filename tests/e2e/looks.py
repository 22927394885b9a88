"""What several e2e tests look at: Events, node conditions, metrics, and parts of the cluster."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.e2e.world import ROOT, World, condition

OPERATOR = "system:serviceaccount:isolet-system:isolet-operator"
QUICK = {"ISOLET_OPERATOR_RESYNC_SECONDS": "5"}
"""An operator that lists all again every few seconds, so that a test need not wait for minutes."""


def eventually(look: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait until `look` finds something; returns it."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def node_is(
    world: World, node: str, kind: str, status: str, reason: str = "", seconds: float = 60
) -> dict[str, Any]:
    """Wait for a condition of a node; returns it."""

    def reached(seen: Any) -> bool:
        found = condition(seen, kind)
        return found.get("status") == status and reason in ("", found.get("reason"))

    return condition(world.until("executionnode", node, reached, seconds), kind)


def scheduled(world: World, name: str, reason: str, seconds: float = 60) -> str:
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


def metric(world: World, name: str) -> float:
    """A metric of the operator that runs now."""
    lines = world.stack.layout.log("operator-0").read_text().splitlines()
    port = next(
        found["metrics_port"]
        for found in map(json.loads, reversed([x for x in lines if x.startswith("{")]))
        if "metrics_port" in found
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        rows = [line.split() for line in answer.read().decode().splitlines()]
    return next(float(row[1]) for row in rows if row and row[0] == name)


def cluster(world: World, *words: str) -> None:
    """hack/cluster on this cluster: kill, restart, freeze, thaw a part."""
    command = [str(ROOT / "hack" / "cluster"), *words, "--name", world.stack.layout.name]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


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
