"""A real API server for every test here; without one they fail, they are not skipped."""

import os
from collections.abc import Iterator

import pytest

from isolet.api import admission, crd, policy_identity
from tests.integration.kube import Kube, eventually
from tests.unit.api.objects import an_execution


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    """The API server that KUBECONFIG names."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig or not os.path.exists(kubeconfig):
        pytest.fail(
            "these tests need a real API server: hack/cluster up, then eval"
            ' "$(hack/cluster env)"; hack/test does both',
            pytrace=False,
        )
    server = Kube(kubeconfig)
    yield server
    server.close()


@pytest.fixture(scope="session")
def installed(kube: Kube) -> Iterator[Kube]:
    """The API server with CRDs and admission policies, in force.

    The administrator that tests speak as counts as Isolet itself; a tenant is impersonated.
    """
    for document in crd.documents():
        kube.apply(document).must()
    for document in crd.documents():
        name = document["metadata"]["name"]
        eventually(lambda name=name: _established(kube, name), f"{name} established")
    before = kube.get("ConfigMap", *IDENTITIES).body.get("data")
    for document in admission.documents():
        if document["metadata"]["name"] == policy_identity.IDENTITIES:
            data = before or document["data"]
            before = data
            groups = f"{data.get('groups', '')}\nsystem:masters\n"
            document = {**document, "data": {**data, "groups": groups}}
        kube.apply(document).must()
    _grant_tenants(kube)
    eventually(lambda: _in_force(kube), "the policies in force", seconds=60)
    yield kube
    kube.patch("ConfigMap", IDENTITIES[0], {"data": before}, IDENTITIES[1]).must()
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        kube.delete(kind, "isolet-test-tenant").must()


@pytest.fixture(scope="module")
def namespace(installed: Kube) -> Iterator[str]:
    """A namespace of the test module's own."""
    with installed.namespace() as name:
        yield name


IDENTITIES = (policy_identity.IDENTITIES, policy_identity.SYSTEM_NAMESPACE)
TENANT = "tenant"
"""A user who may do anything with Isolet's kinds and is not Isolet."""


def _grant_tenants(kube: Kube) -> None:
    kube.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "isolet-test-tenant"},
            "rules": [{"apiGroups": ["isolet.dev"], "resources": ["*"], "verbs": ["*"]}],
        }
    ).must()
    kube.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "isolet-test-tenant"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "isolet-test-tenant",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT},
            ],
        }
    ).must()


def _established(kube: Kube, name: str) -> bool:
    found = kube.get("CustomResourceDefinition", name).body.get("status", {}).get("conditions", [])
    return any(c["type"] == "Established" and c["status"] == "True" for c in found)


def _in_force(kube: Kube) -> bool:
    """A tenant is refused and the administrator is not: all the parts have been read."""
    bound = an_execution(name="isolet-test-canary", nodeName="node-0")
    tenant = kube.create(bound, "default", dry=True, user=TENANT)
    return (
        not tenant.ok
        and "may be set, changed or removed only by" in tenant.message
        and kube.create(bound, "default", dry=True).ok
    )
