"""What a person with kubectl meets: applying, showing, explaining, waiting."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from isolet.api import crd, schema
from tests.integration.conftest import TENANT
from tests.integration.kube import Kube
from tests.unit.api.objects import (
    DIGEST,
    DROP,
    MAXIMUM,
    NO_CLASS,
    PINNED,
    a_checkpoint,
    a_class,
    a_node,
    a_process,
    an_execution,
    resources,
)

ROOT = Path(__file__).resolve().parents[3]
NOW = "2026-01-02T03:04:05Z"
CONDITION = {
    "type": "Succeeded",
    "status": "True",
    "reason": "Succeeded",
    "message": "exit code 0",
    "observedGeneration": 1,
    "lastTransitionTime": NOW,
}

SIDE_BY_SIDE = [{"path": path, "content": ""} for path in ("a", "ab", "a.b", "b/a", "b/c", "b-/d")]

RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("as in the design", an_execution(
        resources={"cpu": "1", "memory": "512Mi", "workspace": "1Gi", "pids": 128, "output": "8Mi"},
        activeDeadlineSeconds=600,
        workspace={
            "medium": "Disk",
            "git": {"repository": "project", "revision": "main"},
            "retainSeconds": 300,
        },
        command=["sh", "-c", "make test"],
        output={"statusTailBytes": 1024},
        network={"mode": "None"},
        desiredState="Running",
        ttlSecondsAfterFinished=3600,
    )),
    ("smallest", an_execution(image=DROP, className=NO_CLASS, command=DROP)),
    ("local id", an_execution(image=DIGEST)),
    ("tag, for the class to judge", an_execution(image="registry.example:5000/a/b_c.d-e:v1.2_3")),
    ("pinned with a port", an_execution(image=f"registry.example:5000/a/b@{DIGEST}")),
    ("least", an_execution(resources=resources(
        cpu="10m", memory="16Mi", workspace="2Mi", tmp="1Mi", shm="64Ki", pids=1, output="1",
    ))),
    ("most", an_execution(resources=resources(
        cpu="128", memory="512Gi", workspace="1Ti", tmp="1Gi", pids=32768, output="64Mi",
    ))),
    ("quantities of all forms", an_execution(resources=resources(
        cpu="1.5", memory="1e9", workspace="1000M", tmp="0.5Gi", shm="65536", output="1.5Mi",
    ))),
    ("memory used to the last byte", an_execution(
        workspace={"medium": "Memory"},
        resources=resources(memory="100Mi", workspace="80Mi", tmp="16Mi", shm="4Mi"),
    )),
    ("longest argument", an_execution(command=["echo", "x" * 130_000])),
    ("odd arguments", an_execution(command=["printf", "%s\n", "$(id)", "", "*", "ä\n\t'\""])),
    ("odd values", an_execution(env=[
        {"name": "_a", "value": "ä\n'\"$x"}, {"name": "B", "value": ""},
    ])),
    ("revision", an_execution(workspace={"git": {
        "repository": "group/project", "revision": "v1.0^{commit}~2",
    }})),
    ("process with all", a_process(
        executionRef=DROP,
        command=DROP,
        template={"className": NO_CLASS, "image": PINNED, "resources": resources()},
        code={"language": "python", "source": "print(input())"},
        files=[
            {"path": "in/a.txt", "content": "a", "mode": 0o600},
            {"path": ".hidden/..b", "contentBase64": "AAEC/w=="},
            {"path": "c", "configMapKeyRef": {"name": "c", "key": "c"}},
            {"path": "d", "secretKeyRef": {"name": "d", "key": "d"}},
        ],
        stdin={"valueBase64": "AAEC/w=="},
        cwd="in",
        timeoutSeconds=30,
        deadlineAt="2030-01-01T00:00:00.123456789+02:00",
        artifacts=[{"glob": "out/**/*.txt"}],
        output={"onOverflow": "Fail", "limit": "1Mi", "statusTailBytes": 4096},
    )),
    ("process in a session", a_process(cwd="", stdin={"value": ""}, shell="true", command=DROP)),
    ("files side by side", a_process(
        files=SIDE_BY_SIDE,
    )),
    ("a runner's files side by side", a_class(
        runner={"command": ["run"], "files": SIDE_BY_SIDE},
    )),
    ("deadline long ago", a_process(deadlineAt="1999-01-01T00:00:00Z")),
    ("deadline far away", a_process(deadlineAt="9999-12-31T23:59:59Z")),
    ("checkpoint", a_checkpoint(reason="handoff")),
    ("class of Memory workspaces", a_class(workspace={"media": ["Memory"], "exec": False})),
    ("class with tags", a_class(images={"allowed": ["a:1", PINNED], "resolveTags": True})),
    ("class for other work", a_class(runtimeHandler="runc", user={"uid": 1, "gid": 4294967294})),
    ("node over a socket", a_node(endpoint="unix:///run/isolet/agent.sock")),
    ("node drained", a_node(
        endpoint="https://[fd00::1]:7443",
        unschedulable=True,
        drain={"deadlineSeconds": 0, "onDeadline": "Terminate"},
    )),
    ("node gone", a_node(outOfService={"reason": "burnt down"})),
]  # fmt: skip


@pytest.mark.parametrize("obj", [c[1] for c in RIGHT], ids=[c[0] for c in RIGHT])
def test_right_object(installed: Kube, namespace: str, obj: dict[str, Any]) -> None:
    """The API server takes it, and both it and the types keep every field as it was written."""
    obj = {**obj, "metadata": {"name": f"right-{namespace}"}}
    kind = next(kind for kind in crd.KINDS if kind.name == obj["kind"])
    kept = installed.create(obj, namespace, dry=True).must()
    _same(obj["spec"], kept["spec"])
    read = kind.model.model_validate(kept)
    _same(_times(kept["spec"]), _times(read.to_object()["spec"]))
    assert read.to_object()["spec"].keys() == kept["spec"].keys()


def _same(part: Any, whole: Any) -> None:
    """Everything in `part` is in `whole`."""
    if isinstance(part, dict):
        for key, value in part.items():
            _same(value, whole[key])
    elif isinstance(part, list):
        assert len(part) == len(whole)
        for one, other in zip(part, whole, strict=True):
            _same(one, other)
    else:
        assert part == whole


def _times(spec: dict[str, Any]) -> dict[str, Any]:
    """Without the one field whose text a type may write in another way."""
    return {key: value for key, value in spec.items() if key != "deadlineAt"}


QUANTITIES = an_execution(
    name="quantities", resources=resources(cpu="1000m", memory="1024Mi", output="1.5Mi")
)


@pytest.mark.parametrize("mode", [[], ["--server-side"]], ids=["client-side", "server-side"])
@pytest.mark.parametrize(
    "obj",
    [
        QUANTITIES,
        an_execution(name="bare", image=DROP, command=DROP),
        a_process(name="bare"),
        a_checkpoint(name="bare"),
        a_class(name="apply-bare"),
        a_class(name="apply-quantities", resources={"maximum": {**MAXIMUM, "cpu": "1000m"}}),
        a_node(name="apply-bare"),
    ],
    ids=lambda value: f"{value['kind']}-{value['metadata']['name']}",
)
def test_applying_again_changes_nothing(
    installed: Kube, namespace: str, mode: list[str], obj: dict[str, Any]
) -> None:
    """Defaults are static and quantities stay as written: what GitOps compares is equal."""
    obj = {**obj, "metadata": {"name": f"{obj['metadata']['name']}-{len(mode)}"}}
    place = ["-n", namespace, *mode, "-f", "-"]
    try:
        first = installed.kubectl("apply", *place, stdin=obj)
        assert first.returncode == 0, first.stderr
        difference = installed.kubectl("diff", *place, stdin=obj)
        assert (difference.returncode, difference.stdout) == (0, ""), difference
        before = installed.get(obj["kind"], obj["metadata"]["name"], namespace).must()
        again = installed.kubectl("apply", *place, stdin=obj)
        assert again.returncode == 0, again.stderr
        after = installed.get(obj["kind"], obj["metadata"]["name"], namespace).must()
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        assert after["metadata"]["generation"] == 1
    finally:
        installed.delete(obj["kind"], obj["metadata"]["name"], namespace)


@pytest.mark.parametrize("mode", [[], ["--server-side"]], ids=["client-side", "server-side"])
@pytest.mark.parametrize(
    ("size", "taken"),
    [(131_072, True), (131_073, False), (200_000, False), (300_000, False), (1_600_000, False)],
)
def test_large_input(
    installed: Kube, namespace: str, mode: list[str], size: int, taken: bool
) -> None:
    """Up to the documented size it works however it is applied; above, the field is named."""
    obj = a_process(name=f"large-{size}-{len(mode)}", stdin={"value": "x" * size})
    done = installed.kubectl("apply", "-n", namespace, *mode, "-f", "-", stdin=obj)
    if taken:
        assert done.returncode == 0, done.stderr[-500:]
        return
    assert done.returncode != 0
    if mode or size < 262_000:
        assert "spec.stdin.value: Too long: may not be more than 131072" in done.stderr
    else:
        # The copy that kubectl puts into an annotation comes to a limit of its own first.
        limits = ("metadata.annotations: Too long", "Request entity too large")
        assert any(limit in done.stderr for limit in limits)


def test_the_largest_objects(installed: Kube, namespace: str) -> None:
    """What is at every bound at once is within CEL's budget, also when it is updated."""
    env = [{"name": f"{'N' * 240}{i}", "value": "x" * 400} for i in range(128)]
    command = ["x" * 131_071, *["y"] * 511]
    reference = {"name": "a" * 253, "key": "k" * 253}
    objects = [
        an_execution("largest", env=env, command=command),
        a_process(
            "largest",
            command=command,
            env=[{"name": e["name"], "valueFrom": {"secretKeyRef": reference}} for e in env],
            files=[{"path": f"{'d/' * 2000}{i}", "content": "x" * 1000} for i in range(64)],
            artifacts=[{"glob": f"{'d/' * 2000}{i}"} for i in range(32)],
        ),
        a_process(
            "largest-paths",
            files=[{"path": f"{'d/' * (1900 + i)}{i}", "content": ""} for i in range(64)],
        ),
        a_process("largest-stdin", stdin={"valueBase64": "AAAA" * 43_691}),
    ]
    for obj in objects:
        name = obj["metadata"]["name"]
        installed.create(obj, namespace).must()
        change = {"spec": {"ttlSecondsAfterFinished": 1}, "metadata": {"labels": {"a": "b"}}}
        installed.patch(obj["kind"], name, change, namespace, user=TENANT).must()
        answer = installed.patch(obj["kind"], name, {"spec": {"command": ["z"]}}, namespace)
        assert answer.code == 422


@pytest.mark.parametrize("name", ["a" * 253, "a" * 63, "a" * 64, "a.b-c"])
def test_names_of_any_length(installed: Kube, namespace: str, name: str) -> None:
    for obj in (an_execution(name), a_process(name), a_checkpoint(name), a_node(name)):
        installed.create(obj, namespace, dry=True).must()
    answer = installed.create(an_execution("a" * 254), namespace, dry=True)
    assert "metadata.name" in answer.message


def test_examples(installed: Kube, namespace: str) -> None:
    """Every example is taken by a strict server."""
    found = 0
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document.get("apiVersion") != "isolet.dev/v1alpha1":
                continue
            found += 1
            document["metadata"]["name"] += f"-{namespace}"
            if document["kind"] == "ExecutionClass":
                document["spec"]["isDefault"] = False  # another test may have one
            elif document["kind"] == "Execution" or "template" in document["spec"]:
                spec = document["spec"]
                spec.get("template", spec)["className"] = NO_CLASS
            installed.create(document, namespace, dry=True).must()
    assert found >= 3


def test_everything_is_explained(installed: Kube) -> None:
    """Every field that kubectl explain shows has a description of its own."""
    for kind in crd.KINDS:
        done = installed.kubectl("explain", kind.plural, "--recursive", "--output=plaintext")
        assert done.returncode == 0, done.stderr
        for path, node in schema.walk(crd.object_schema(kind)):
            last = path.rsplit(".", 1)[-1]
            if path.startswith((".spec", ".status")) and not last.endswith(("]", "}")):
                assert node["description"].endswith((".", ":")), path
    done = installed.kubectl("explain", "execution.spec.resources.memory")
    assert "exceeding it kills the sandbox" in " ".join(done.stdout.split())


def test_what_get_shows(installed: Kube, namespace: str) -> None:
    name = "shown"
    installed.create(an_execution(name, nodeName="node-0"), namespace).must()
    status = {
        "conditions": [CONDITION],
        "exitCode": 0,
        "deadline": "2036-01-02T03:04:05Z",
        "resolved": {"image": PINNED},
    }
    installed.patch("Execution", name, {"status": status}, namespace, sub="status").must()
    rows = {}
    for short in ("iexec", "execution", "executions"):
        done = installed.kubectl("get", short, name, "-n", namespace, "-o", "wide")
        assert done.returncode == 0, done.stderr
        rows[short] = [line.split() for line in done.stdout.splitlines()]
    header, row = rows["iexec"]
    assert " ".join(header) == "NAME SUCCEEDED REASON NODE AGE EXIT IMAGE DEADLINE RUN"
    assert [row[i] for i in (0, 1, 2, 3, 5, 6, 7)] == [
        name, "True", "Succeeded", "node-0", "0", PINNED, "2036-01-02T03:04:05Z",
    ]  # fmt: skip
    assert rows["execution"][1][0] == rows["executions"][1][0] == name
    narrow = installed.kubectl("get", "iexec", name, "-n", namespace).stdout
    assert narrow.splitlines()[0].split() == ["NAME", "SUCCEEDED", "REASON", "NODE", "AGE"]
    listed = installed.kubectl("get", "isolet", "-n", namespace, "-o", "name").stdout
    assert f"execution.isolet.dev/{name}" in listed
    waited = installed.kubectl(
        "wait", "--for=condition=Succeeded", f"execution/{name}", "-n", namespace, "--timeout=5s"
    )
    assert waited.returncode == 0, waited.stderr


def test_no_status_field_is_pruned(installed: Kube, namespace: str) -> None:
    """Every field the types can write into a status comes back from the server."""
    for make, kind in (
        (an_execution, crd.EXECUTION),
        (a_process, crd.PROCESS),
        (a_checkpoint, crd.CHECKPOINT),
        (a_class, crd.EXECUTION_CLASS),
        (a_node, crd.EXECUTION_NODE),
    ):
        name = f"status-{namespace}"
        installed.create(make(name), namespace).must()
        try:
            full = crd.object_schema(kind)["properties"]["status"]
            status = _filled(full)
            change = {"status": status}
            installed.patch(kind.name, name, change, namespace, sub="status").must()
            found = installed.get(kind.name, name, namespace).must()["status"]
            assert json.dumps(found, sort_keys=True) == json.dumps(status, sort_keys=True)
            read = kind.model.model_validate(installed.get(kind.name, name, namespace).body)
            assert read.to_object()["status"] == status
        finally:
            installed.delete(kind.name, name, namespace)


def _filled(node: schema.Schema) -> Any:
    """A value with every field that the schema knows."""
    if "enum" in node:
        return node["enum"][0]
    match node["type"]:
        case "object" if "properties" in node:
            return {name: _filled(value) for name, value in node["properties"].items()}
        case "object":
            return {"a": _filled(node["additionalProperties"])}
        case "array":
            return [_filled(node["items"])]
        case "integer":
            return max(node.get("minimum", 1), 1)
        case "boolean":
            return True
        case _ if node.get("format") == "date-time":
            return NOW
        case _:
            said = " ".join(r["message"] for r in node.get("x-kubernetes-validations", ()))
            return "64Mi" if "512Mi" in said else "1" if "250m" in said else "a"
