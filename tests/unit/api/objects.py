"""Objects as users write them: right by default, changed by keyword."""

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4
PINNED = f"registry.example/python@{DIGEST}"
NO_CLASS = "not-there-yet"
"""No test makes it, so no class has a say in what uses it."""
RESOURCES: dict[str, Any] = {
    "cpu": "1",
    "memory": "512Mi",
    "workspace": "1Gi",
    "tmp": "16Mi",
    "shm": "4Mi",
    "pids": 128,
    "output": "8Mi",
}
MAXIMUM: dict[str, Any] = {
    "cpu": "4",
    "memory": "4Gi",
    "workspace": "10Gi",
    "tmp": "1Gi",
    "shm": "64Mi",
    "pids": 1024,
    "output": "64Mi",
}


def an_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in spec.items() if value is not DROP}
    return {
        "apiVersion": "isolet.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


DROP: Any = object()
"""As a value: leave that field out."""


def an_execution(name: str = "hello", **spec: Any) -> dict[str, Any]:
    base = {"className": NO_CLASS, "image": PINNED, "command": ["true"]}
    return an_object("Execution", name, {**base, **spec})


def a_process(name: str = "job", **spec: Any) -> dict[str, Any]:
    base = {"executionRef": {"name": "hello"}, "command": ["true"]}
    return an_object("Process", name, {**base, **spec})


def a_checkpoint(name: str = "saved", **spec: Any) -> dict[str, Any]:
    return an_object("Checkpoint", name, {"executionRef": {"name": "hello"}, **spec})


def a_class(name: str = "standard", **spec: Any) -> dict[str, Any]:
    base = {
        "images": {"allowed": [PINNED], "default": PINNED},
        "namespaceSelector": {},
        "resources": {"default": RESOURCES, "maximum": MAXIMUM},
    }
    return an_object("ExecutionClass", name, {**base, **spec})


def a_node(name: str = "node-0", **spec: Any) -> dict[str, Any]:
    return an_object("ExecutionNode", name, {"endpoint": "https://10.0.0.1:7443", **spec})


def resources(**changes: Any) -> dict[str, Any]:
    """Complete resources with some changed."""
    return {key: v for key, v in {**RESOURCES, **changes}.items() if v is not DROP}
