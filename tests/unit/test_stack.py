"""hack/stack: what it says of parts that did not stay, whatever the objects of before say."""

import socket
from pathlib import Path

import pytest

from isolet_cluster.errors import ClusterError
from isolet_cluster.layout import Layout
from isolet_stack.stack import Stack

BOTH = {"agent-node-0", "operator-0"}


@pytest.mark.parametrize(
    ("alive", "said"),
    [
        (set(), "agent-node-0 has ended: see "),
        ({"agent-node-0"}, "operator-0 has ended: see "),
        (BOTH, None),
        (BOTH | {"operator-1"}, None),
    ],
)
def test_a_start_has_come_up_only_when_all_of_it_lives(
    monkeypatch: pytest.MonkeyPatch, alive: set[str], said: str | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stack = Stack(Layout.of("nobody"), Path("kubeconfig"), "kubectl")
        stack.ports = {"node-0": server.getsockname()[1]}
        stack.parts = {part: {} for part in (*BOTH, "operator-1")}
        monkeypatch.setattr(stack, "nodes", lambda: ["node-0"])
        monkeypatch.setattr(stack, "alive", alive.__contains__)
        if said is None:
            stack.wait_started()
        else:
            with pytest.raises(ClusterError, match=f"^{said}"):
                stack.wait_started()
