"""The form of a ValidatingAdmissionPolicy with its binding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isolet.api import meta

API_VERSION = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One validation: what must hold, and what to say if it does not."""

    expression: str
    message: str
    """CEL that makes the message."""
    fallback: str
    """The message if that CEL fails."""

    def document(self) -> dict[str, Any]:
        """The check as an entry of `validations`."""
        return {
            "expression": self.expression,
            "message": self.fallback,
            "messageExpression": self.message,
            "reason": "Forbidden",
        }


def documents(
    name: str,
    *,
    resources: Sequence[str],
    operations: Sequence[str],
    parameters: Mapping[str, str],
    reference: Mapping[str, Any],
    variables: Mapping[str, str],
    checks: Sequence[Check],
    conditions: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """A policy and its binding. What breaks the policy is refused, and so is all if it cannot run.

    Args:
        name: of both objects.
        resources: plurals, with their subresource.
        operations: CREATE, UPDATE.
        parameters: the `paramKind`.
        reference: the `paramRef` of the binding.
        variables: CEL by name; each may use those before it.
        checks: all must hold.
        conditions: CEL by name; only requests that satisfy all are looked at.
    """
    rule = {
        "apiGroups": [meta.GROUP],
        "apiVersions": ["*"],
        "operations": list(operations),
        "resources": list(resources),
    }
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "paramKind": dict(parameters),
        "matchConstraints": {"resourceRules": [rule]},
        "variables": [{"name": key, "expression": cel} for key, cel in variables.items()],
        "validations": [check.document() for check in checks],
    }
    if conditions:
        spec["matchConditions"] = [{"name": k, "expression": cel} for k, cel in conditions.items()]
    binding = {"policyName": name, "validationActions": ["Deny"], "paramRef": dict(reference)}
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": spec,
        },
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": binding,
        },
    ]
