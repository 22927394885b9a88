"""What only Isolet itself may write: the binding, reserved names, the finalizer, every status.

Who that is stands in one ConfigMap. If it is missing, nobody may: a request that touches nothing
reserved is not affected.
"""

from typing import Any

from isolet.api import checkpoint, execution, executionclass, executionnode, meta, policy, process
from isolet.api.rules import quote

SYSTEM_NAMESPACE = "isolet-system"
IDENTITIES = "isolet-identities"
"""ConfigMap with the names of those who act for Isolet."""

SERVICE_ACCOUNTS = ("isolet-operator", "isolet-apiserver")
RELEASERS = ("system:masters",)

_NAMESPACED = (execution.PLURAL, process.PLURAL, checkpoint.PLURAL)
_ALL = (*_NAMESPACED, executionclass.PLURAL, executionnode.PLURAL)
_PREFIX = quote(meta.RESERVED_PREFIX)
_RELEASE = quote(meta.FORCE_RELEASE)


def identities() -> list[dict[str, Any]]:
    """The ConfigMap as it is delivered, with its namespace."""
    users = (f"system:serviceaccount:{SYSTEM_NAMESPACE}:{name}" for name in SERVICE_ACCOUNTS)
    data = {
        "users": "\n".join(users) + "\n",
        "groups": "",
        "releaseUsers": "",
        "releaseGroups": "\n".join(RELEASERS) + "\n",
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": IDENTITIES, "namespace": SYSTEM_NAMESPACE},
            "data": data,
        },
    ]


def _named_by(users: str, groups: str) -> str:
    def lines(key: str) -> str:
        return f"params.data.?{key}.orValue('').split('\\n').map(n, n.trim()).filter(n, n != '')"

    return (
        f"request.userInfo.username in {lines(users)}"
        f" || request.userInfo.?groups.orValue([]).exists(g, g in {lines(groups)})"
    )


def _changed(part: str, concerns: str) -> str:
    """CEL: a label or annotation that `concerns` holds for was set, changed or removed."""
    new = f"object.metadata.?{part}.orValue({{}})"
    old = f"(oldObject == null ? {{}} : oldObject.metadata.?{part}.orValue({{}}))"
    return (
        f"({new}.exists(k, {concerns} && (!(k in {old}) || {old}[k] != {new}[k]))"
        f" || {old}.exists(k, {concerns} && !(k in {new})))"
    )


def _finalizer_changed() -> str:
    new = "object.metadata.?finalizers.orValue([])"
    old = "(oldObject == null ? [] : oldObject.metadata.?finalizers.orValue([]))"
    return (
        f"({new}.exists(f, f.startsWith({_PREFIX}) && !(f in {old}))"
        f" || {old}.exists(f, f.startsWith({_PREFIX}) && !(f in {new})))"
    )


_NODE_CHANGED = (
    "object.spec.?nodeName.orValue('')"
    " != (oldObject == null ? '' : oldObject.spec.?nodeName.orValue(''))"
)
_LABELS_CHANGED = _changed("labels", f"k.startsWith({_PREFIX})")
_ANNOTATIONS_CHANGED = _changed("annotations", f"k.startsWith({_PREFIX}) && k != {_RELEASE}")
_RELEASE_CHANGED = _changed("annotations", f"k == {_RELEASE}")
_RESERVED = {
    "spec.nodeName": _NODE_CHANGED,
    f"metadata.labels under {meta.RESERVED_PREFIX}": _LABELS_CHANGED,
    f"metadata.annotations under {meta.RESERVED_PREFIX}": _ANNOTATIONS_CHANGED,
    f"metadata.finalizers under {meta.RESERVED_PREFIX}": _finalizer_changed(),
}
_PARAMETERS = {"apiVersion": "v1", "kind": "ConfigMap"}
_REFERENCE = {
    "name": IDENTITIES,
    "namespace": SYSTEM_NAMESPACE,
    "parameterNotFoundAction": "Deny",
}


def _refused(what: str, who: str) -> tuple[str, str]:
    where = f"ConfigMap {SYSTEM_NAMESPACE}/{IDENTITIES}"
    text = f"{what} may be set, changed or removed only by {who} ({where})"
    return f"{quote(text + ', not by ')} + request.userInfo.username", text


def reserved() -> list[dict[str, Any]]:
    """Binding, reserved labels and annotations, finalizer."""
    checks = []
    for what, touched in _RESERVED.items():
        message, fallback = _refused(what, "Isolet's own service accounts")
        expression = f"variables.isIsolet || !({touched})"
        checks.append(policy.Check(expression=expression, message=message, fallback=fallback))
    message, fallback = _refused(
        f"annotation {meta.FORCE_RELEASE}", "those who may release objects"
    )
    checks.append(
        policy.Check(
            expression=f"variables.isIsolet || variables.mayRelease || !{_RELEASE_CHANGED}",
            message=message,
            fallback=fallback,
        )
    )
    touched_at_all = " || ".join([*_RESERVED.values(), _RELEASE_CHANGED])
    return policy.documents(
        "isolet-reserved",
        resources=_NAMESPACED,
        operations=("CREATE", "UPDATE"),
        parameters=_PARAMETERS,
        reference=_REFERENCE,
        conditions={"touches-something-reserved": touched_at_all},
        variables={
            "isIsolet": _named_by("users", "groups"),
            "mayRelease": _named_by("releaseUsers", "releaseGroups"),
        },
        checks=checks,
    )


def status() -> list[dict[str, Any]]:
    """Every status: what Isolet decides later rests on what it wrote there."""
    message, fallback = _refused("status", "Isolet's own service accounts")
    return policy.documents(
        "isolet-status",
        resources=[f"{plural}/status" for plural in _ALL],
        operations=("CREATE", "UPDATE"),
        parameters=_PARAMETERS,
        reference=_REFERENCE,
        variables={"isIsolet": _named_by("users", "groups")},
        checks=[policy.Check(expression="variables.isIsolet", message=message, fallback=fallback)],
    )
