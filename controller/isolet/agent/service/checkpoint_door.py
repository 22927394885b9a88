"""The part of the agent's interface that is about Checkpoints."""

from collections.abc import AsyncIterator

from isolet.agent.service.checkpoints import Checkpoints
from isolet.base import errors
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
        raise errors.Refused("copies do not leave this node yet", reason="Unsupported")

    async def read_checkpoint(
        self, uid: str, part: Part, *, reader: str | None = None, token: str | None = None
    ) -> AsyncIterator[bytes]:
        """See CheckpointAPI."""
        if reader is not None or token is not None:
            raise errors.Refused("copies do not leave this node yet", reason="Unsupported")
        async for piece in self._checkpoints.read(uid, part):
            yield piece

    async def _obey(self, fence: Fence | None) -> None:
        raise NotImplementedError
