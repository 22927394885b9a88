"""Writes a status: the difference as one merge-patch at the version that was looked at.

The last step of a pass, also after a failed action. A status that has changed meanwhile is a
Conflict: the next pass starts from a fresh read. Called by `reconcile`, the only writer of status.
"""

from collections.abc import Mapping
from typing import Any

from isolet.api import meta
from isolet.base import errors
from isolet.operator.cache import ObjectCache
from isolet.operator.kube import Cluster, Kind, Object
from isolet.operator.steps import Effect, at


def difference(stored: object, wanted: object) -> Any:
    """The merge-patch that makes `stored` into `wanted`; an empty one for equal objects.

    Lists are replaced whole, as a merge-patch can do no other; a key that is not wanted is set to
    null.
    """
    if not isinstance(stored, Mapping) or not isinstance(wanted, Mapping):
        return wanted
    patch: dict[str, Any] = {key: None for key in stored if key not in wanted}
    for key, value in wanted.items():
        if key not in stored:
            patch[key] = value
        elif stored[key] != value:
            patch[key] = difference(stored[key], value)
    return patch


def status_patch(obj: Object, status: meta.Model) -> Object | None:
    """The patch that gives `obj` this status; None if it has it.

    Fields that this version's type does not have were written by a newer operator and are left.
    """
    stored = obj.get("status") or {}
    model = type(status)
    known = {field.alias or name for name, field in model.model_fields.items()}
    ours = {key: value for key, value in stored.items() if key in known}
    # An empty list says the same as none.
    wanted = {key: value for key, value in status.to_object().items() if value != []}
    patch = difference(ours, wanted)
    if not patch:
        return None
    version = obj["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "status": patch}


async def publish(
    cluster: Cluster,
    cache: ObjectCache,
    kind: Kind,
    obj: Object,
    status: meta.Model,
    effect: Effect = Effect.STATUS,
) -> bool:
    """Write the status if it differs; returns whether it was written.

    Raises:
        Conflict: the object has changed since; look again.
        IsoletError: it could not be written.
    """
    patch = status_patch(obj, status)
    if patch is None:
        return False
    metadata = obj["metadata"]
    call = cluster.patch(
        kind, metadata.get("namespace", ""), metadata["name"], patch, subresource="status"
    )
    try:
        cache.put(kind, await at(effect, call), own=True)
    except errors.NotFound:
        # Gone meanwhile: there is nobody left to tell.
        return False
    return True
