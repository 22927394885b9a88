"""The lease stands in front of every write to the API server.

A process that was frozen past its lease and woken finds here that it may not write; what it had
already sent carries a resource version and conflicts. A write never waits longer than the lease has
still to run. Reads are free.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from isolet.base import errors
from isolet.operator.kube import Cluster, Kind, ListOptions, Object, Page, Precondition
from isolet.operator.leader import Leadership


@dataclass(frozen=True, slots=True)
class GuardedCluster:
    """`kube.Cluster` for the leader."""

    inner: Cluster
    leadership: Leadership

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See `Cluster.get`."""
        return await self.inner.get(kind, namespace, name)

    async def list(self, kind: Kind, options: ListOptions) -> Page:
        """See `Cluster.list`."""
        return await self.inner.list(kind, options)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """See `Cluster.create`; Fenced without a valid lease."""
        self.leadership.check()
        return await self._in_time(self.inner.create(kind, namespace, body))

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Object, subresource: str = ""
    ) -> Object:
        """See `Cluster.patch`; Fenced without a valid lease."""
        self.leadership.check()
        return await self._in_time(self.inner.patch(kind, namespace, name, body, subresource))

    async def replace(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """See `Cluster.replace`; Fenced without a valid lease."""
        self.leadership.check()
        return await self._in_time(self.inner.replace(kind, namespace, name, body))

    async def delete(self, kind: Kind, namespace: str, name: str, only_if: Precondition) -> None:
        """See `Cluster.delete`; Fenced without a valid lease."""
        self.leadership.check()
        await self._in_time(self._delete(kind, namespace, name, only_if))

    async def _delete(self, kind: Kind, namespace: str, name: str, only_if: Precondition) -> Object:
        await self.inner.delete(kind, namespace, name, only_if)
        return {}

    async def _in_time(self, write: Awaitable[Object]) -> Object:
        try:
            async with asyncio.timeout(max(0.0, self.leadership.remaining())):
                return await write
        except TimeoutError:
            raise errors.Unconfirmed("no answer while the lease lasted") from None
