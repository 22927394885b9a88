"""What a front door says of the class that it serves, and when it says it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from isolet.apiserver.kubernetes import KubernetesDispatcher, Target
from isolet.apiserver.served import Served, key_in
from isolet.base import errors
from isolet.operator.kube import CLASSES, NODES
from tests.fakes.cluster import FakeCluster
from tests.fakes.dispatcher import GivenAgents
from tests.unit.api.objects import a_class, a_node

RUNNER = {"command": ["/app/runtime"]}
POOL = {"size": 1}

READ = {
    "a pool without a runner": ({"warmPool": POOL}, "ExecutionClass fast has no spec.runner"),
    "a runner without a pool": (
        {"runner": RUNNER},
        "ExecutionClass fast has no spec.warmPool for its runner",
    ),
    "both": ({"runner": RUNNER, "warmPool": POOL}, ""),
}


@pytest.mark.parametrize(("spec", "why"), READ.values(), ids=READ)
def test_why_a_class_is_not_served(spec: dict[str, Any], why: str) -> None:
    served = Served("fast")
    assert served.closed
    served.take_in(a_class("fast", **spec))
    assert served.closed == why
    served.gone()
    assert served.closed == "there is no ExecutionClass fast"


def test_a_key_that_cannot_be_used_is_told_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match=f"^{tmp_path}: Is a directory$"):
        key_in(tmp_path)
    file = tmp_path / "key.pem"
    file.write_text("hello")
    with pytest.raises(errors.Invalid, match=f"^{file}: the binding key is no public key in PEM$"):
        key_in(file)


def test_with_a_key_that_is_none_nothing_is_served() -> None:
    served = Served("fast")
    served.take_in(a_class("fast", runner=RUNNER, warmPool=POOL))
    pem = "-----BEGIN PUBLIC KEY-----\nnone\n-----END PUBLIC KEY-----\n"
    with pytest.raises(errors.Invalid):
        served.take_in(a_class("fast", runner={**RUNNER, "bindingKey": pem}, warmPool=POOL))
    assert served.closed == "ExecutionClass fast cannot be read"


async def test_what_keeps_it_from_serving_is_said_once_for_each_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "isolet.apiserver")
    cluster = FakeCluster()
    target = Target(namespace="runs", class_name="fast")
    dispatcher = KubernetesDispatcher(cluster, GivenAgents(lambda _: None), target)

    async def seen() -> list[tuple[str, str]]:
        caplog.clear()
        for _ in range(3):
            await dispatcher._refreshed()
        return [(r.message, getattr(r, "why", "")) for r in caplog.records]

    assert await seen() == [("not ready", "there is no ExecutionClass fast")]
    cluster.seed(CLASSES, a_class("fast", runner=RUNNER))
    assert await seen() == [
        ("not ready", "ExecutionClass fast has no spec.warmPool for its runner")
    ]
    cluster.seed(CLASSES, a_class("fast", runner=RUNNER, warmPool=POOL))
    assert await seen() == [("not ready", "no ExecutionNode takes new runs")]
    cluster.seed(NODES, a_node("node-0"))
    assert await seen() == [("ready", "")]
    assert dispatcher.ready()
