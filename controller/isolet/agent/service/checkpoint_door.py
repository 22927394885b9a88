"""The part of the agent's interface that is about Checkpoints."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from isolet.agent.service.checkpoints import Checkpoints
from isolet.wire.base import Fence
from isolet.wire.checkpoint import CheckpointObserved, CheckpointWanted, Grant, Part


class CheckpointDoor:
    """Implements `isolet.wire.agent_api.CheckpointAPI`; a base of `Service`."""

    _checkpoints: Checkpoints

    async def put_checkpoint(
        self, wanted: CheckpointWanted, fence: Fence | None
    ) -> CheckpointObserved:
        """See CheckpointAPI."""
        await self._obey(fence)
        return await self._checkpoints.put(wanted)

    async def remove_checkpoint(self, uid: str, fence: Fence | None) -> CheckpointObserved:
        """See CheckpointAPI."""
        await self._obey(fence)
        return await self._checkpoints.remove(uid)

    async def get_checkpoint(self, uid: str) -> CheckpointObserved:
        """See CheckpointAPI."""
        return await self._checkpoints.get(uid)

    async def grant_checkpoint(
        self, uid: str, reader: str, seconds: int, fence: Fence | None
    ) -> Grant:
        """See CheckpointAPI."""
        await self._obey(fence)
        return await self._checkpoints.grant(uid, reader, seconds)

    async def read_checkpoint(
        self,
        uid: str,
        part: Part,
        *,
        offset: int = 0,
        reader: str | None = None,
        token: str | None = None,
    ) -> AsyncIterator[bytes]:
        """See CheckpointAPI."""
        if reader is not None:
            await self._checkpoints.require_grant(uid, reader, token or "")
        async with aclosing(self._checkpoints.read(uid, part, offset)) as pieces:
            async for piece in pieces:
                yield piece

    async def _obey(self, fence: Fence | None) -> None:
        raise NotImplementedError
