"""Tombstones: what was given up without its agent's word, and must go should its node come back.

Each is a ConfigMap in the operator's namespace, so that it outlives the object and the node's
object. All are read once when this process becomes leader, since only a leader writes them.
"""

import contextlib
import json
from dataclasses import dataclass, field
from datetime import datetime

from isolet.api import meta
from isolet.base import errors, log, names
from isolet.operator.kube import CONFIG_MAPS, Cluster, ListOptions, Object, Precondition
from isolet.operator.steps import Effect, at
from isolet.plan.model import Cause, Tombstone

_log = log.get("operator.tombstones")

LABEL = "isolet.dev/tombstone"
_DATA = "tombstone.json"


@dataclass
class Tombstones:
    """The stored tombstones, and what is known of them."""

    cluster: Cluster
    namespace: str
    complete: bool = False
    """Whether all were read since this leader began."""
    _known: dict[tuple[str, str], Tombstone] = field(default_factory=dict)

    def all(self) -> tuple[Tombstone, ...]:
        """Those that are known."""
        return tuple(self._known.values())

    async def load(self) -> None:
        """Read them all.

        Raises:
            IsoletError: the list broke off; `complete` stays as it was.
        """
        found: dict[tuple[str, str], Tombstone] = {}
        token: str | None = None
        while True:
            options = ListOptions(labels=LABEL, namespace=self.namespace, token=token)
            page = await self.cluster.list(CONFIG_MAPS, options)
            for obj in page.items:
                tombstone = read(obj)
                if tombstone is not None:
                    found[tombstone.uid, tombstone.node] = tombstone
            token = page.token
            if token is None:
                break
        # What was written while this was read is not in the list.
        self._known, self.complete = found | self._known, True

    async def write(self, tombstone: Tombstone) -> None:
        """Store one; one that is there already is kept."""
        if (tombstone.uid, tombstone.node) in self._known:
            return
        body = {
            "metadata": {"name": name_of(tombstone.uid, tombstone.node), "labels": {LABEL: "true"}},
            "data": {_DATA: _dump(tombstone)},
        }
        create = self.cluster.create(CONFIG_MAPS, self.namespace, body)
        with contextlib.suppress(errors.Conflict):
            await at(Effect.TOMBSTONE_WRITE, create)
        self._known[tombstone.uid, tombstone.node] = tombstone

    async def drop(self, uid: str, node: str) -> None:
        """Forget one; an absent one is a success."""
        delete = self.cluster.delete(
            CONFIG_MAPS, self.namespace, name_of(uid, node), Precondition()
        )
        with contextlib.suppress(errors.NotFound):
            await at(Effect.TOMBSTONE_DELETE, delete)
        self._known.pop((uid, node), None)


def name_of(uid: str, node: str) -> str:
    """The ConfigMap's name: the same for the same object and node."""
    return f"isolet-tombstone-{names.short_digest(uid, node)}"


def read(obj: Object) -> Tombstone | None:
    """A tombstone from its ConfigMap; None, with a warning, for what is none."""
    try:
        data = json.loads(obj["data"][_DATA])
        return Tombstone(
            uid=data["uid"],
            namespace=data["namespace"],
            name=data["name"],
            node=data["node"],
            cause=Cause(data["cause"]),
            detail=data.get("detail", ""),
            written_at=datetime.fromisoformat(data["writtenAt"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        _log.warning(
            "not a tombstone", extra={"object": obj["metadata"]["name"], "detail": str(error)}
        )
        return None


def _dump(tombstone: Tombstone) -> str:
    return json.dumps(
        {
            "uid": tombstone.uid,
            "namespace": tombstone.namespace,
            "name": tombstone.name,
            "node": tombstone.node,
            "cause": tombstone.cause.value,
            "detail": tombstone.detail,
            "writtenAt": meta.format_time(tombstone.written_at),
        },
        sort_keys=True,
    )
