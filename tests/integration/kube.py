"""A small, synchronous view of a real API server for tests: plain dicts in, plain answers out."""

import contextlib
import json
import os
import subprocess
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import kubernetes
import yaml

KUBECTL = os.environ.get("ISOLET_KUBECTL", "kubectl")
PLURALS = {
    "Namespace": ("v1", "namespaces", False),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "Execution": ("isolet.dev/v1alpha1", "executions", True),
    "Process": ("isolet.dev/v1alpha1", "processes", True),
    "Checkpoint": ("isolet.dev/v1alpha1", "checkpoints", True),
    "ExecutionClass": ("isolet.dev/v1alpha1", "executionclasses", False),
    "ExecutionNode": ("isolet.dev/v1alpha1", "executionnodes", False),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ValidatingAdmissionPolicy": (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        False,
    ),
    "ValidatingAdmissionPolicyBinding": (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        False,
    ),
}


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    code: int
    body: dict[str, Any]

    @property
    def ok(self) -> bool:
        return self.code < 400

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Field and message of each mistake."""
        causes = self.body.get("details", {}).get("causes", [])
        return [(cause.get("field", ""), cause.get("message", "")) for cause in causes]

    def must(self) -> dict[str, Any]:
        assert self.ok, self.body
        return self.body


class Kube:
    """One API server, as its administrator unless `user` says otherwise."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig
        self._client = kubernetes.config.new_client_from_config(kubeconfig)

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        user: str | None = None,
        group: str | None = None,
    ) -> Answer:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if user is not None:
            headers["Impersonate-User"] = user
            if group is not None:
                headers["Impersonate-Group"] = group
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        if "yaml" in content_type:
            body = json.dumps(body)
        url = self._client.configuration.host + path
        if query:
            url += "?" + urllib.parse.urlencode(query)
        response = self._client.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=30
        )
        return Answer(response.status, _json(response.read()))

    def path(self, kind: str, namespace: str | None, name: str = "", sub: str = "") -> str:
        api_version, plural, namespaced = PLURALS[kind]
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        place = f"/namespaces/{namespace}" if namespaced else ""
        parts = [root + place, plural, *filter(None, [name, sub])]
        return "/".join(parts)

    def create(
        self, obj: dict[str, Any], namespace: str | None = None, *, dry: bool = False, **who: Any
    ) -> Answer:
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})}
        return self.request("POST", self.path(obj["kind"], namespace), obj, query=query, **who)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Answer:
        return self.request("GET", self.path(kind, namespace, name))

    def delete(self, kind: str, name: str, namespace: str | None = None, **who: Any) -> Answer:
        return self.request("DELETE", self.path(kind, namespace, name), **who)

    def patch(
        self,
        kind: str,
        name: str,
        change: dict[str, Any],
        namespace: str | None = None,
        *,
        sub: str = "",
        dry: bool = False,
        **who: Any,
    ) -> Answer:
        return self.request(
            "PATCH",
            self.path(kind, namespace, name, sub),
            change,
            content_type="application/merge-patch+json",
            query={"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})},
            **who,
        )

    def apply(
        self, obj: dict[str, Any], namespace: str | None = None, manager: str = "tests", **who: Any
    ) -> Answer:
        namespace = obj["metadata"].get("namespace", namespace)
        return self.request(
            "PATCH",
            self.path(obj["kind"], namespace, obj["metadata"]["name"]),
            obj,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": manager, "force": "true", "fieldValidation": "Strict"},
            **who,
        )

    def kubectl(self, *arguments: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl; an object as `stdin` is given as YAML."""
        text = stdin if stdin is None or isinstance(stdin, str) else yaml.safe_dump(stdin)
        return subprocess.run(
            [KUBECTL, "--kubeconfig", self.kubeconfig, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextlib.contextmanager
    def namespace(self, **labels: str) -> Iterator[str]:
        """A namespace of one's own."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": labels},
            }
        ).must()
        try:
            yield name
        finally:
            self.delete("Namespace", name)


def eventually(check: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Waits until something is so; caches of the API server lag behind writes."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def _json(body: Any) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (TypeError, ValueError):
        return {"message": str(body)}
    return found if isinstance(found, dict) else {"message": str(found)}
