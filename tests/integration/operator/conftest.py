"""The operator's own rights: a kubeconfig with its ServiceAccount's token."""

import uuid
from pathlib import Path

import pytest
import yaml

from tests.integration.kube import Kube
from tests.integration.operator.harness import NAMESPACE, World

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def rights(installed: Kube) -> Kube:
    """deploy/operator is applied."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    installed.create(namespace)
    found = installed.kubectl("apply", "-f", str(ROOT / "deploy" / "operator"))
    assert found.returncode == 0, found.stderr
    return installed


@pytest.fixture(scope="session")
def operator_kubeconfig(rights: Kube, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Access to the API server with the operator's rights and no more."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/isolet-operator/token"
    body = {"spec": {"expirationSeconds": 7200}}
    token = rights.request("POST", path, body).must()["status"]["token"]
    config = yaml.safe_load(Path(rights.kubeconfig).read_text())
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "operator"
    file = tmp_path_factory.mktemp("operator") / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    file.chmod(0o600)
    return file


@pytest.fixture
async def world(rights: Kube, operator_kubeconfig: Path, monkeypatch: pytest.MonkeyPatch):
    # Silence is noticed sooner than in earnest; the tests that wait for it would take minutes.
    monkeypatch.setattr("isolet.plan.node.HEARD_SECONDS", 10.0)
    name = f"op-{uuid.uuid4().hex[:10]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    rights.create(body).must()
    world = World(rights, name, operator_kubeconfig)
    # A Lease that an earlier test left behind would have to be waited out.
    rights.request(
        "DELETE",
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/isolet-operator",
    )
    yield world
    await world.close()
    rights.delete("Namespace", name)
