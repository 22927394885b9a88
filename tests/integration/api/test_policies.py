"""The admission policies on a real API server: who may write what, and what a class allows."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from isolet.api import executionclass, policy_identity
from tests.integration.conftest import TENANT
from tests.integration.kube import Kube, eventually
from tests.unit.api.objects import (
    DIGEST,
    DROP,
    MAXIMUM,
    PINNED,
    RESOURCES,
    a_checkpoint,
    a_class,
    a_process,
    an_execution,
    resources,
)

_numbers = itertools.count()

OPERATOR = "system:serviceaccount:isolet-system:isolet-operator"
ONLY_ISOLET = (
    "only by Isolet's own service accounts (ConfigMap isolet-system/isolet-identities),"
    " not by tenant"
)
RELEASE = {"isolet.dev/force-release": "the node burnt down"}


@pytest.fixture(scope="module")
def server(installed: Kube) -> Iterator[Kube]:
    """The operator's service account may do what the tenant may, as far as RBAC goes."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "isolet-test-operator"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "isolet-test-tenant",
        },
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": "isolet-operator",
                "namespace": policy_identity.SYSTEM_NAMESPACE,
            }
        ],
    }
    installed.apply(binding).must()
    yield installed
    installed.delete("ClusterRoleBinding", "isolet-test-operator").must()


def _with(obj: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


RESERVED = [
    ("nodeName", lambda make: make(nodeName="node-0"), "spec.nodeName"),
    (
        "label",
        lambda make: _with(make(), labels={"isolet.dev/origin": "cli"}),
        "metadata.labels under isolet.dev/",
    ),
    (
        "annotation",
        lambda make: _with(make(), annotations={"isolet.dev/class-generation": "7"}),
        "metadata.annotations under isolet.dev/",
    ),
    (
        "finalizer",
        lambda make: _with(make(), finalizers=["isolet.dev/sandbox"]),
        "metadata.finalizers under isolet.dev/",
    ),
    (
        "force-release",
        lambda make: _with(make(), annotations=RELEASE),
        "annotation isolet.dev/force-release",
    ),
]
MAKERS = [an_execution, a_process, a_checkpoint]


@pytest.mark.parametrize("make", MAKERS, ids=["execution", "process", "checkpoint"])
@pytest.mark.parametrize(("build", "what"), [r[1:] for r in RESERVED], ids=[r[0] for r in RESERVED])
def test_created_with_something_reserved(
    server: Kube, namespace: str, make: Any, build: Any, what: str
) -> None:
    obj = build(make)
    answer = server.create(obj, namespace, dry=True, user=TENANT)
    assert answer.code == 403
    assert f"{what} may be set, changed or removed only by" in answer.message
    assert "not by tenant" in answer.message
    server.create(obj, namespace, dry=True, user=OPERATOR).must()
    server.create(make(), namespace, dry=True, user=TENANT).must()


CHANGES = [
    ("node", {"spec": {"nodeName": "node-0"}}, "spec.nodeName"),
    ("label set", {"metadata": {"labels": {"isolet.dev/x": "1"}}}, "metadata.labels"),
    ("label changed", {"metadata": {"labels": {"isolet.dev/is": "2"}}}, "metadata.labels"),
    ("label removed", {"metadata": {"labels": {"isolet.dev/is": None}}}, "metadata.labels"),
    ("all labels removed", {"metadata": {"labels": None}}, "metadata.labels"),
    ("annotation", {"metadata": {"annotations": {"isolet.dev/is": None}}}, "metadata.annotations"),
    ("finalizer removed", {"metadata": {"finalizers": None}}, "metadata.finalizers"),
    ("finalizer of ours", {"metadata": {"finalizers": ["isolet.dev/o"]}}, "metadata.finalizers"),
]


@pytest.mark.parametrize(("change", "what"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_changed_something_reserved(
    server: Kube, namespace: str, change: dict[str, Any], what: str
) -> None:
    name = f"owned-{next(_numbers)}"
    obj = _with(
        an_execution(name),
        labels={"isolet.dev/is": "1", "mine": "1"},
        annotations={"isolet.dev/is": "1"},
        finalizers=["isolet.dev/sandbox", "tenant.example/own"],
    )
    server.create(obj, namespace).must()
    answer = server.patch("Execution", name, change, namespace, dry=True, user=TENANT)
    assert answer.code == 403, answer
    assert what in answer.message
    assert ONLY_ISOLET in answer.message
    server.patch("Execution", name, change, namespace, dry=True, user=OPERATOR).must()
    for own in (
        {"metadata": {"labels": {"mine": "2", "notisolet.dev/x": "1"}}},
        {"metadata": {"annotations": {"mine": "2"}}},
        {"metadata": {"finalizers": ["isolet.dev/sandbox"]}},
        {"spec": {"ttlSecondsAfterFinished": 5}},
        {"spec": {"desiredState": "Terminated"}},
    ):
        server.patch("Execution", name, own, namespace, dry=True, user=TENANT).must()
    server.patch("Execution", name, {"metadata": {"finalizers": None}}, namespace).must()


def test_only_isolet_writes_a_status(server: Kube, namespace: str) -> None:
    for obj in (an_execution("told"), a_process("told"), a_checkpoint("told")):
        server.create(obj, namespace).must()
        change = {"status": {"observedGeneration": 1}}
        answer = server.patch(obj["kind"], "told", change, namespace, sub="status", user=TENANT)
        assert answer.code == 403
        assert ONLY_ISOLET in answer.message
        server.patch(obj["kind"], "told", change, namespace, sub="status", user=OPERATOR).must()


def test_identities_are_one_object(server: Kube, namespace: str) -> None:
    """An installation under other names changes a ConfigMap and no policy."""
    bound = an_execution(nodeName="node-0")
    released = _with(an_execution(), annotations=RELEASE)
    name, place = policy_identity.IDENTITIES, policy_identity.SYSTEM_NAMESPACE
    before = server.get("ConfigMap", name, place).must()["data"]
    tenant = {"user": TENANT, "group": "isolet-operators"}

    def allowed(obj: dict[str, Any]) -> bool:
        return server.create(obj, namespace, dry=True, **tenant).ok

    try:
        assert not allowed(bound)
        data = {**before, "groups": f"{before['groups']}  isolet-operators \n"}
        server.patch("ConfigMap", name, {"data": data}, place).must()
        eventually(lambda: allowed(bound), "the group counts as Isolet")
        data = {**before, "releaseUsers": f"{TENANT}\n"}
        server.patch("ConfigMap", name, {"data": data}, place).must()
        eventually(lambda: not allowed(bound), "the group counts no more")
        eventually(lambda: allowed(released), "the tenant may release")
    finally:
        server.patch("ConfigMap", name, {"data": {**before, "releaseUsers": ""}}, place).must()
    eventually(lambda: not allowed(released), "the tenant may not release")


# ---------------------------------------------------------------- classes


@pytest.fixture
def a_real_class(server: Kube, namespace: str) -> Iterator[Any]:
    """Makes a class and waits until the policies know it."""
    made = []

    def make(**spec: Any) -> str:
        name = f"{namespace}-{next(_numbers)}"
        server.create(a_class(name, **spec)).must()
        made.append(name)
        # Nothing can ask for that much, so once it is refused the class is known.
        probe = an_execution(className=name, activeDeadlineSeconds=86400)
        eventually(lambda: not server.create(probe, namespace, dry=True).ok, "the class is known")
        return name

    yield make
    for name in made:
        server.delete("ExecutionClass", name)


def _refusal(server: Kube, namespace: str, obj: dict[str, Any]) -> str:
    answer = server.create(obj, namespace, dry=True, user=TENANT)
    return "" if answer.ok else answer.message.split("denied request: ")[-1]


def test_what_a_class_allows(server: Kube, namespace: str, a_real_class: Any) -> None:
    name = a_real_class(workspace={"media": ["Disk"], "gitRepositories": ["project"]})
    git = {"repository": "project", "revision": "main"}
    secret = [{"name": "A_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    plain = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]
    table: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"resources": MAXIMUM}, ""),
        ({"resources": {"cpu": "4000m", "memory": "4096Mi"}}, ""),
        ({"workspace": {"git": git, "retainSeconds": 3600}}, ""),
        ({"activeDeadlineSeconds": 3600, "env": plain, "image": DROP}, ""),
        ({"image": f"other@{DIGEST}"}, "spec.image: class {} does not allow this image"),
        ({"resources": {"cpu": "4001m"}}, "spec.resources.cpu: class {} allows at most 4"),
        ({"resources": {"memory": "5Gi"}}, "spec.resources.memory: class {} allows at most 4Gi"),
        ({"resources": {"pids": 1025}}, "spec.resources.pids: class {} allows at most 1024"),
        ({"resources": {"tmp": "2Gi"}}, "spec.resources.tmp: class {} allows at most 1Gi"),
        (
            {"resources": {"tmp": "600Mi"}},
            "spec.resources: class {} completes it so that tmp, shm and a Memory workspace, which"
            " are memory, do not fit into memory",
        ),
        (
            {"workspace": {"medium": "Memory"}, "resources": {"workspace": "64Mi"}},
            "spec.workspace.medium: class {} does not allow this medium",
        ),
        (
            {"workspace": {"git": {**git, "repository": "other"}}},
            "spec.workspace.git.repository: class {} does not allow this repository",
        ),
        (
            {"workspace": {"retainSeconds": 3601}},
            "spec.workspace.retainSeconds: class {} allows at most 3600",
        ),
        (
            {"activeDeadlineSeconds": 3601},
            "spec.activeDeadlineSeconds: class {} allows at most 3600",
        ),
        ({"env": secret}, "spec: class {} does not allow secretKeyRef (env.allowSecretRefs)"),
    ]
    for spec, want in table:
        obj = an_execution(**{"className": name, **spec})
        assert _refusal(server, namespace, obj) == want.format(name), spec


def test_a_class_without_defaults(server: Kube, namespace: str, a_real_class: Any) -> None:
    name = a_real_class(
        images={"allowed": [PINNED]},
        resources={"default": {"cpu": "1"}, "maximum": MAXIMUM},
        env={"allowSecretRefs": True},
        deadlines={"maximumIdleTimeoutSeconds": 60},
    )
    own = resources(cpu=DROP)
    missing = "has no default for it: it is mandatory and must be given"
    assert _refusal(server, namespace, an_execution(className=name, resources=own)) == ""
    for bound in own:
        spec = {key: value for key, value in own.items() if key != bound}
        want = f"spec.resources.{bound}: class {name} {missing}"
        obj = an_execution(className=name, resources=spec)
        assert _refusal(server, namespace, obj) == want
    obj = an_execution(className=name, resources=own, image=DROP)
    want = f"spec.image: class {name} has no default image: one must be given"
    assert _refusal(server, namespace, obj) == want
    # From a Checkpoint come image and resources.
    obj = an_execution(className=name, image=DROP, restoreFrom={"checkpointName": "x"})
    assert _refusal(server, namespace, obj) == ""
    idle = an_execution(className=name, resources=own, command=DROP, idleTimeoutSeconds=61)
    want = f"spec.idleTimeoutSeconds: class {name} allows at most 60"
    assert _refusal(server, namespace, idle) == want


def test_a_process_is_judged_like_an_execution(
    server: Kube, namespace: str, a_real_class: Any
) -> None:
    name = a_real_class()
    key = {"secretKeyRef": {"name": "s", "key": "k"}}
    secret = f"spec: class {name} does not allow secretKeyRef (env.allowSecretRefs)"
    template: dict[str, Any] = {"className": name}
    table: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, ""),
        (
            {"image": f"other@{DIGEST}"},
            {},
            f"spec.template.image: class {name} does not allow this image",
        ),
        (
            {"resources": {"cpu": "5"}},
            {},
            f"spec.template.resources.cpu: class {name} allows at most 4",
        ),
        ({}, {"env": [{"name": "A", "valueFrom": key}]}, secret),
        ({}, {"files": [{"path": "a", **key}]}, secret),
        ({}, {"stdin": key}, secret),
    ]
    for sandbox, spec, want in table:
        obj = a_process(executionRef=DROP, template={**template, **sandbox}, **spec)
        assert _refusal(server, namespace, obj) == want
    # In an Execution it is judged at the binding: the class is that Execution's.
    assert _refusal(server, namespace, a_process(env=[{"name": "A", "valueFrom": key}])) == ""


@pytest.mark.parametrize(
    ("selector", "granted"),
    [
        ({}, True),
        ({"matchLabels": {"team": "a"}}, True),
        ({"matchLabels": {"team": "b"}}, False),
        ({"matchLabels": {"team": "a", "tier": "gold"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["b"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["b"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        (
            {
                "matchLabels": {"team": "a"},
                "matchExpressions": [{"key": "tier", "operator": "Exists"}],
            },
            False,
        ),
    ],
)
def test_a_class_is_granted_by_labels(
    server: Kube, a_real_class: Any, selector: dict[str, Any], granted: bool
) -> None:
    """The policy and the types judge alike."""
    name = a_real_class(namespaceSelector=selector)
    with server.namespace(team="a") as namespace:
        refusal = _refusal(server, namespace, an_execution(className=name))
    want = f"spec.className: class {name} is not granted to this namespace (its namespaceSelector)"
    assert refusal == ("" if granted else want)
    model = executionclass.LabelSelector.model_validate(selector)
    assert model.matches({"team": "a", "kubernetes.io/metadata.name": namespace}) is granted


def test_a_deadline_is_extended_up_to_the_maximum(
    server: Kube, namespace: str, a_real_class: Any
) -> None:
    name = a_real_class()
    server.create(an_execution("long", className=name), namespace).must()
    patch = {"spec": {"activeDeadlineSeconds": 3600}}
    server.patch("Execution", "long", patch, namespace, user=TENANT).must()
    patch = {"spec": {"activeDeadlineSeconds": 3601}}
    answer = server.patch("Execution", "long", patch, namespace, user=TENANT)
    assert f"class {name} allows at most 3600" in answer.message


def test_a_class_edit_touches_nothing_that_is_there(
    server: Kube, namespace: str, a_real_class: Any
) -> None:
    """Writes to an object that its class would refuse by now still go through."""
    name = a_real_class()
    obj = an_execution("older", className=name, activeDeadlineSeconds=3000, resources=RESOURCES)
    server.create(obj, namespace).must()
    small = {**MAXIMUM, "memory": "64Mi", "tmp": "1Mi"}
    change = {
        "namespaceSelector": {"matchLabels": {"nobody": "has"}},
        "resources": {"default": None, "maximum": small},
        "deadlines": {"defaultSeconds": 60, "maximumSeconds": 60},
    }
    server.patch("ExecutionClass", name, {"spec": change}).must()
    again = an_execution("newer", className=name)
    eventually(lambda: not server.create(again, namespace, dry=True).ok, "the edit is known")
    for write in (
        {"spec": {"nodeName": "node-0"}, "metadata": {"finalizers": ["isolet.dev/sandbox"]}},
        {"spec": {"desiredState": "Terminated"}},
        {"metadata": {"finalizers": []}},
    ):
        server.patch("Execution", "older", write, namespace).must()


def test_one_default_class(server: Kube, namespace: str) -> None:
    """And an object that names no class is judged by it."""
    defaults = [
        c
        for c in server.request("GET", server.path("ExecutionClass", None)).must()["items"]
        if c["spec"]["isDefault"]
    ]
    name = f"{namespace}-default"
    if not defaults:
        server.create(a_class(name, isDefault=True)).must()
    try:
        second = a_class(f"{namespace}-second", isDefault=True)
        eventually(lambda: not server.create(second, dry=True).ok, "the first default is known")
        answer = server.create(second, dry=True)
        first = defaults[0]["metadata"]["name"] if defaults else name
        assert f"spec.isDefault: class {first} is the default already" in answer.message
        server.create(a_class(f"{namespace}-second"), dry=True).must()
        server.patch("ExecutionClass", first, {"metadata": {"labels": {"a": "b"}}}, dry=True).must()
        obj = an_execution(className=DROP, image=f"stranger@{DIGEST}")
        assert f"class {first} does not allow this image" in _refusal(server, namespace, obj)
    finally:
        if not defaults:
            server.delete("ExecutionClass", name)
