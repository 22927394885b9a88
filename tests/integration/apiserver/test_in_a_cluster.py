"""The front door with a real API server: its own rights and no more, real tokens, real names."""

import asyncio
import uuid
from pathlib import Path

import pytest
import yaml

from isolet.apiserver.auth import KubernetesReviewer, Unauthenticated
from isolet.apiserver.kubernetes import KubernetesDispatcher, Target, object_name
from isolet.base import errors
from isolet.operator.cluster import Access, KubeCluster
from tests.contract.apiserver.test_dispatcher_contract import InACluster, dispatch
from tests.fakes.dispatcher import GivenAgents
from tests.integration.kube import Kube
from tests.unit.api.objects import a_class, a_node

ROOT = Path(__file__).parents[3]
SYSTEM = "isolet-system"


class InAKubernetes(InACluster):
    """Agents as in the contract, objects in a real API server, with the front door's own rights."""

    def __init__(self, kube: Kube, namespace: str, kubeconfig: Path) -> None:
        super().__init__()
        self.kube, self.namespace, self.kubeconfig = kube, namespace, kubeconfig
        self.prefix = f"fd-{uuid.uuid4().hex[:8]}"
        self.slots = {f"{self.prefix}-{n}": slots for n, slots in enumerate(self.slots.values())}

    async def start(self, folder) -> None:
        runner = {"command": ["/app/runtime"], "budgets": {"cleanupSeconds": 1}}
        self.kube.create(a_class(self.prefix, runner=runner, warmPool={"size": 1})).must()
        self.clients = {}
        for name, slots in self.slots.items():
            await self._agent(name, slots, folder / name)
            self.kube.create(a_node(name)).must()
        self.cluster = await KubeCluster.connect(Access(kubeconfig=self.kubeconfig))
        target = Target(namespace=self.namespace, class_name=self.prefix, cancelled_ahead=3)
        self.dispatcher = self.another(target)
        await self.dispatcher.start()

    def seed(self, *_: object) -> None: ...

    async def close(self) -> None:
        await super().close()
        await self.cluster.close()
        for name in self.slots:
            self.kube.delete("ExecutionNode", name)
        self.kube.delete("ExecutionClass", self.prefix)

    def object(self, run_id: str = "run") -> dict:
        return self.kube.get("Execution", object_name(run_id), self.namespace).must()

    def slot(self, run_id: str):
        uid = self.object(run_id)["metadata"]["uid"]
        return next(s.seen[uid] for s in self.slots.values() if uid in s.seen)


@pytest.fixture
def place_of_runs(installed: Kube):
    with installed.namespace() as name:
        text = (ROOT / "deploy" / "apiserver" / "rbac.yaml").read_text()
        for document in yaml.safe_load_all(text.replace("namespace: runs", f"namespace: {name}")):
            done = installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
            assert done.returncode == 0, done.stderr
        yield name


def token(kube: Kube, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"spec": {"expirationSeconds": 3600}}
    return str(kube.request("POST", path, body).must()["status"]["token"])


@pytest.fixture
def kubeconfig(installed: Kube, place_of_runs: str, tmp_path: Path) -> Path:
    config = yaml.safe_load(Path(installed.kubeconfig).read_text())
    held = token(installed, SYSTEM, "isolet-apiserver")
    config["users"] = [{"name": "front", "user": {"token": held}}]
    for context in config["contexts"]:
        context["context"]["user"] = "front"
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
async def place(installed: Kube, place_of_runs: str, kubeconfig: Path, tmp_path: Path):
    made = InAKubernetes(installed, place_of_runs, kubeconfig)
    await made.start(tmp_path)
    yield made
    await made.close()


async def test_a_run_is_an_object_that_holds_nothing_of_its_document(place: InAKubernetes) -> None:
    document = b'{"run_id":"run","payload":"hunter2"}'
    run = await (await place.dispatcher.reserve(dispatch(document=document))).commit()
    found = place.object()
    assert "hunter2" not in str(found)
    assert found["spec"]["nodeName"] in place.slots
    assert "finalizers" not in found["metadata"]
    assert found["metadata"]["generation"] == 1
    await place.completes("run")
    assert [line async for line in run.follow(0)][-1].ended.succeeded
    assert place.object()["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


async def test_two_front_doors_and_one_run_id(place: InAKubernetes) -> None:
    other = KubernetesDispatcher(
        place.cluster,
        GivenAgents(place.clients.__getitem__),
        Target(namespace=place.namespace, class_name=place.prefix),
    )
    await other.start()
    doors = (place.dispatcher, other)
    found = await asyncio.gather(
        *(door.reserve(dispatch()) for door in doors), return_exceptions=True
    )
    assert sum(not isinstance(one, Exception) for one in found) == 1
    assert sum(isinstance(one, errors.Conflict) for one in found) == 1
    assert place.free() == 1
    await other.close()


async def test_cancelled_ahead_and_bounded(place: InAKubernetes) -> None:
    for number in range(3):
        assert (await place.dispatcher.cancel(f"run-{number}")).confirmed
    with pytest.raises(errors.Unavailable) as found:
        await place.dispatcher.cancel("run-3")
    assert found.value.reason == "TooManyCancellations"
    with pytest.raises(errors.Conflict):
        await place.dispatcher.reserve(dispatch("run-0"))
    await place.dispatcher._refreshed()
    with pytest.raises(errors.Unavailable):
        await place.dispatcher.cancel("run-3")
    place.kube.delete("Execution", object_name("run-0"), place.namespace).must()
    await place.dispatcher._refreshed()
    assert (await place.dispatcher.cancel("run-3")).confirmed


async def test_a_run_that_was_not_begun_gives_its_name_free(place: InAKubernetes) -> None:
    reserved = await place.dispatcher.reserve(dispatch())
    for slots in place.slots.values():
        slots.reserved.clear()
    with pytest.raises(errors.Unavailable):
        await reserved.commit()
    assert place.kube.get("Execution", object_name("run"), place.namespace).code == 404


async def test_who_kubernetes_allows_may(installed: Kube, place: InAKubernetes) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "caller"}}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "caller"},
        "rules": [
            {"apiGroups": ["isolet.dev"], "resources": ["executions/dispatch"], "verbs": ["create"]}
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "caller"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": "caller",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "caller", "namespace": place.namespace}],
    }
    for document in (account, role, binding):
        text = yaml.safe_dump(document)
        done = installed.kubectl("apply", "-n", place.namespace, "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr
    held = token(installed, place.namespace, "caller")
    reviewer = KubernetesReviewer(place.cluster, place.namespace)
    assert await reviewer.allows(held, "create")
    assert not await reviewer.allows(held, "delete")
    assert not await KubernetesReviewer(place.cluster, "default").allows(held, "create")
    with pytest.raises(Unauthenticated):
        await reviewer.allows("nonsense", "create")
