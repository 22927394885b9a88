"""An API server in memory: resource versions, conflicts, merge-patches, pages, scripted faults."""

import asyncio
import copy
import itertools

from isolet.base import errors
from isolet.operator.kube import Page


def merge(target, patch):
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class FakeCluster:
    def __init__(self):
        self.objects = {}
        self.version = 100
        self.uids = itertools.count(1)
        self.writes = []
        self.faults = []
        self.delay = None

    # what a test does

    def seed(self, kind, obj):
        metadata = obj["metadata"]
        self.version += 1
        stored = copy.deepcopy(obj)
        stored["metadata"].setdefault("uid", f"uid-{next(self.uids)}")
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind.kind, metadata.get("namespace", ""), metadata["name"]] = stored
        return copy.deepcopy(stored)

    def vanish(self, kind, namespace, name):
        self.version += 1
        del self.objects[kind.kind, namespace, name]

    def fail(self, *faults):
        """The next calls raise these; None lets one pass."""
        self.faults += faults

    # what the operator does

    async def _enter(self):
        await asyncio.sleep(0)
        if self.delay is not None:
            await self.delay.wait()
        if self.faults:
            fault = self.faults.pop(0)
            if fault is not None:
                raise fault

    async def get(self, kind, namespace, name):
        await self._enter()
        try:
            return copy.deepcopy(self.objects[kind.kind, namespace, name])
        except KeyError:
            raise errors.NotFound(f"{kind.kind} {name} not found") from None

    async def list(self, kind, options):
        await self._enter()
        items = [
            copy.deepcopy(obj)
            for (of, namespace, _), obj in sorted(self.objects.items())
            if of == kind.kind and (not options.namespace or namespace == options.namespace)
        ]
        begin = int(options.token or 0)
        end = begin + options.limit
        token = str(end) if end < len(items) else None
        return Page(items[begin:end], self.version, token)

    async def create(self, kind, namespace, body):
        await self._enter()
        name = body["metadata"]["name"]
        if (kind.kind, namespace, name) in self.objects:
            raise errors.Conflict(f"{name} exists", reason="AlreadyExists")
        self.writes.append(("create", kind.kind, name))
        new = copy.deepcopy(body)
        if namespace:
            new["metadata"]["namespace"] = namespace
        return self.seed(kind, new)

    async def patch(self, kind, namespace, name, body, subresource=""):
        known = await self.get(kind, namespace, name)
        self._check(known, body)
        self.writes.append(("patch", kind.kind, name, subresource))
        if subresource:
            body = {subresource: body.get(subresource)}
        return self._store(kind, known, merge(known, body))

    async def replace(self, kind, namespace, name, body):
        known = await self.get(kind, namespace, name)
        self._check(known, body)
        self.writes.append(("replace", kind.kind, name))
        return self._store(kind, known, copy.deepcopy(body))

    async def delete(self, kind, namespace, name, only_if):
        known = await self.get(kind, namespace, name)
        if only_if.uid and only_if.uid != known["metadata"]["uid"]:
            raise errors.Conflict("another uid")
        if only_if.version and only_if.version != known["metadata"]["resourceVersion"]:
            raise errors.Conflict("another version")
        self.writes.append(("delete", kind.kind, name))
        self.vanish(kind, namespace, name)

    def _check(self, known, body):
        asked = body["metadata"].get("resourceVersion")
        if asked and asked != known["metadata"]["resourceVersion"]:
            raise errors.Conflict("the object has been modified")

    def _store(self, kind, known, new):
        new["metadata"]["uid"] = known["metadata"]["uid"]
        new["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
        if new == known:
            return copy.deepcopy(known)
        return self.seed(kind, new)
