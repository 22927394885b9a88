"""What may be changed after creation, and what may not: judged by a real API server."""

from typing import Any

import pytest

from tests.integration.kube import Kube
from tests.unit.api.objects import (
    DIGEST,
    a_checkpoint,
    a_process,
    an_execution,
    resources,
)

REMOVED = None  # in a merge patch

FULL_EXECUTION = an_execution(
    name="full",
    resources=resources(),
    activeDeadlineSeconds=600,
    schedulingDeadlineSeconds=60,
    workspace={
        "medium": "Disk",
        "git": {"repository": "project", "revision": "main"},
        "retainSeconds": 300,
    },
    env=[{"name": "A", "value": "1"}],
    output={"statusTailBytes": 1024},
    nodeSelector={"zone": "a"},
    ttlSecondsAfterFinished=3600,
)
SESSION = an_execution(name="session")
del SESSION["spec"]["command"]
FULL_PROCESS = a_process(
    name="full",
    env=[{"name": "A", "value": "1"}],
    files=[{"path": "a", "content": "x"}],
    stdin={"value": "x"},
    cwd="src",
    timeoutSeconds=60,
    deadlineAt="2030-01-01T00:00:00Z",
    artifacts=[{"glob": "out/*"}],
    output={"onOverflow": "Fail"},
)
IMMUTABLE = "cannot be changed, added or removed; make a new object instead"

# object, change, field
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("class", FULL_EXECUTION, {"className": "other"}, "className"),
    ("class removed", FULL_EXECUTION, {"className": REMOVED}, "className"),
    ("image", FULL_EXECUTION, {"image": f"other@{DIGEST}"}, "image"),
    ("image removed", FULL_EXECUTION, {"image": REMOVED}, "image"),
    ("command", FULL_EXECUTION, {"command": ["false"]}, "command"),
    ("command removed", FULL_EXECUTION, {"command": REMOVED}, "command"),
    ("command added", SESSION, {"command": ["true"]}, "command"),
    ("env added", SESSION, {"env": [{"name": "A", "value": "1"}]}, "env"),
    ("env value", FULL_EXECUTION, {"env": [{"name": "A", "value": "2"}]}, "env"),
    ("env removed", FULL_EXECUTION, {"env": REMOVED}, "env"),
    ("memory", FULL_EXECUTION, {"resources": {"memory": "1Gi"}}, "resources"),
    ("equal memory", FULL_EXECUTION, {"resources": {"memory": "524288Ki"}}, "resources"),
    ("resources added", SESSION, {"resources": {"cpu": "1"}}, "resources"),
    ("resources removed", FULL_EXECUTION, {"resources": REMOVED}, "resources"),
    ("revision", FULL_EXECUTION, {"workspace": {"git": {"revision": "dev"}}}, "workspace"),
    ("git removed", FULL_EXECUTION, {"workspace": {"git": REMOVED}}, "workspace"),
    ("workspace removed", FULL_EXECUTION, {"workspace": REMOVED}, "workspace"),
    ("retention", FULL_EXECUTION, {"workspace": {"retainSeconds": 301}}, "workspace"),
    ("medium", SESSION, {"workspace": {"medium": "Memory"}}, "workspace"),
    ("checkpoint", SESSION, {"restoreFrom": {"checkpointName": "x"}}, "restoreFrom"),
    ("idle timeout added", SESSION, {"idleTimeoutSeconds": 60}, "idleTimeoutSeconds"),
    ("waiting", FULL_EXECUTION, {"schedulingDeadlineSeconds": 61}, "schedulingDeadlineSeconds"),
    ("tail", FULL_EXECUTION, {"output": {"statusTailBytes": 4096}}, "output"),
    ("output added", SESSION, {"output": {}}, "output"),
    ("selector", FULL_EXECUTION, {"nodeSelector": {"zone": "b"}}, "nodeSelector"),
    ("selector added", SESSION, {"nodeSelector": {}}, "nodeSelector"),
    ("reference", FULL_PROCESS, {"executionRef": {"name": "other"}}, "executionRef"),
    ("process command", FULL_PROCESS, {"command": ["false"]}, "command"),
    ("process env", FULL_PROCESS, {"env": REMOVED}, "env"),
    ("file", FULL_PROCESS, {"files": [{"path": "a", "content": "y"}]}, "files"),
    ("stdin", FULL_PROCESS, {"stdin": REMOVED}, "stdin"),
    ("cwd", FULL_PROCESS, {"cwd": REMOVED}, "cwd"),
    ("timeout removed", FULL_PROCESS, {"timeoutSeconds": REMOVED}, "timeoutSeconds"),
    ("deadline", FULL_PROCESS, {"deadlineAt": "2031-01-01T00:00:00Z"}, "deadlineAt"),
    ("artifacts", FULL_PROCESS, {"artifacts": REMOVED}, "artifacts"),
    ("policy", FULL_PROCESS, {"output": {"onOverflow": "KeepTail"}}, "output"),
    ("checkpoint's source", a_checkpoint(), {"executionRef": {"name": "x"}}, "executionRef"),
    ("checkpoint's reason", a_checkpoint(), {"reason": "why"}, "reason"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("obj", "change", "field"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(
    installed: Kube, namespace: str, obj: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    made = _made(installed, namespace, obj)
    answer = installed.patch(obj["kind"], made, {"spec": change}, namespace)
    assert answer.code == 422, answer
    assert (f"spec.{field}", f"{field} {IMMUTABLE}") in _causes(answer), answer.causes


ALLOWED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("extended", FULL_EXECUTION, {"activeDeadlineSeconds": 1200}),
    ("deadline of its own", SESSION, {"activeDeadlineSeconds": 60}),
    ("deadline of the class", FULL_EXECUTION, {"activeDeadlineSeconds": REMOVED}),
    ("kept longer", FULL_EXECUTION, {"ttlSecondsAfterFinished": 7200}),
    ("kept", FULL_EXECUTION, {"ttlSecondsAfterFinished": REMOVED}),
    ("terminated", FULL_EXECUTION, {"desiredState": "Terminated"}),
    ("process cancelled", FULL_PROCESS, {"desiredState": "Cancelled"}),
    ("process kept", FULL_PROCESS, {"ttlSecondsAfterFinished": 60}),
    ("checkpoint not for ever", a_checkpoint(), {"ttlSecondsAfterFinished": 60}),
]


@pytest.mark.parametrize(
    ("obj", "change"), [case[1:] for case in ALLOWED], ids=[case[0] for case in ALLOWED]
)
def test_allowed(
    installed: Kube, namespace: str, obj: dict[str, Any], change: dict[str, Any]
) -> None:
    made = _made(installed, namespace, obj)
    installed.patch(obj["kind"], made, {"spec": change}, namespace, dry=True).must()


@pytest.mark.parametrize(
    ("obj", "final", "back"),
    [(FULL_EXECUTION, "Terminated", "Running"), (FULL_PROCESS, "Cancelled", "Running")],
    ids=["execution", "process"],
)
def test_the_end_is_not_taken_back(
    installed: Kube, namespace: str, obj: dict[str, Any], final: str, back: str
) -> None:
    obj = {**obj, "metadata": {"name": f"ended-{obj['kind'].lower()}"}}
    made = _made(installed, namespace, obj)
    installed.patch(obj["kind"], made, {"spec": {"desiredState": final}}, namespace).must()
    for value in (back, REMOVED):
        answer = installed.patch(obj["kind"], made, {"spec": {"desiredState": value}}, namespace)
        assert answer.code == 422
        assert f"desiredState cannot be taken back once it is {final}" in answer.message
    # What is mutable still is, and the rest still is not.
    installed.patch(obj["kind"], made, {"spec": {"ttlSecondsAfterFinished": 1}}, namespace).must()


def test_a_node_is_written_once(installed: Kube, namespace: str) -> None:
    for obj in (FULL_EXECUTION, FULL_PROCESS, a_checkpoint()):
        obj = {**obj, "metadata": {"name": "bound"}}
        made = _made(installed, namespace, obj)
        change = {
            "spec": {"nodeName": "node-0"},
            "metadata": {"finalizers": ["isolet.dev/sandbox"]},
        }
        installed.patch(obj["kind"], made, change, namespace).must()
        for value in ("node-1", REMOVED):
            answer = installed.patch(obj["kind"], made, {"spec": {"nodeName": value}}, namespace)
            assert answer.code == 422
            assert "nodeName is written once and never changed or removed" in answer.message
        installed.patch(obj["kind"], made, {"metadata": {"finalizers": []}}, namespace).must()


def test_the_status_endpoint_changes_no_spec(installed: Kube, namespace: str) -> None:
    made = _made(installed, namespace, FULL_EXECUTION)
    change = {"spec": {"command": ["false"]}, "metadata": {"labels": {"isolet.dev/origin": "x"}}}
    installed.patch("Execution", made, change, namespace, sub="status").must()
    found = installed.get("Execution", made, namespace).must()
    assert found["spec"]["command"] == ["true"]
    assert "labels" not in found["metadata"]


def _made(kube: Kube, namespace: str, obj: dict[str, Any]) -> str:
    answer = kube.create(obj, namespace)
    assert answer.ok or answer.body["reason"] == "AlreadyExists", answer
    return str(obj["metadata"]["name"])


def _causes(answer: Any) -> list[tuple[str, str]]:
    return [(field, text.removeprefix("Invalid value: ")) for field, text in answer.causes]
