"""The part of the agent in memory that is about Checkpoints."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.base import Fence
from isolet.wire.checkpoint import (
    CheckpointObserved,
    CheckpointStep,
    CheckpointWanted,
    Grant,
    Part,
)
from isolet.wire.execution import Outcome

PIECE = 1 << 20
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class MemoryCheckpoints:
    """Checkpoints are whole at once, and their parts are what the test says."""

    def __init__(self) -> None:
        self.checkpoints: dict[str, CheckpointObserved] = {}
        self.checkpoints_wanted: dict[str, CheckpointWanted] = {}
        self.parts: dict[tuple[str, Part], bytes] = {}
        self.grants: list[tuple[str, str, int]] = []
        self.readings: list[tuple[str, str | None, str | None]] = []
        self.reading = 0
        self.pause: asyncio.Event | None = None
        """Waited for after each piece, where there is one."""
        self._gone_checkpoints: set[str] = set()

    async def put_checkpoint(
        self, wanted: CheckpointWanted, fence: Fence | None
    ) -> CheckpointObserved:
        self._enter("put_checkpoint", fence)
        known = self.checkpoints_wanted.get(wanted.uid)
        if known is None and wanted.uid in self._gone_checkpoints:
            raise errors.Conflict(f"{wanted.uid} has ended here", reason="AlreadyEnded")
        if known is not None and known.spec != wanted.spec:
            raise errors.Conflict(f"{wanted.uid} is another request")
        self.checkpoints_wanted[wanted.uid] = wanted
        return self.checkpoints.setdefault(wanted.uid, _whole(wanted))

    async def remove_checkpoint(self, uid: str, fence: Fence | None) -> CheckpointObserved:
        self._enter("remove_checkpoint", fence)
        self._gone_checkpoints.add(uid)
        self.checkpoints_wanted.pop(uid, None)
        seen = self.checkpoints.pop(uid, None) or CheckpointObserved(
            uid=uid,
            namespace="",
            name="",
            sequence=0,
            execution_uid="",
            step=CheckpointStep.DISPOSED,
        )
        return seen.model_copy(update={"removing": True, "on_node": False, "nothing_left": True})

    async def get_checkpoint(self, uid: str) -> CheckpointObserved:
        self._enter("get_checkpoint")
        if uid not in self.checkpoints:
            raise errors.NotFound(f"no Checkpoint {uid}")
        return self.checkpoints[uid]

    async def grant_checkpoint(
        self, uid: str, reader: str, seconds: int, fence: Fence | None
    ) -> Grant:
        self._enter("grant_checkpoint", fence)
        if uid not in self.checkpoints:
            raise errors.NotFound(f"no Checkpoint {uid}")
        self.grants.append((uid, reader, seconds))
        return Grant(token=f"{uid}/{reader}", expires_at=NOON + timedelta(seconds=seconds))

    async def read_checkpoint(
        self,
        uid: str,
        part: Part,
        *,
        offset: int = 0,
        reader: str | None = None,
        token: str | None = None,
    ) -> AsyncIterator[bytes]:
        self._enter("read_checkpoint")
        self.readings.append((uid, reader, token))
        if (uid, part) not in self.parts:
            raise errors.NotFound(f"no copy of {uid}")
        if reader is not None and token != f"{uid}/{reader}":
            raise errors.Refused("no such grant", reason="GrantRefused")
        data = self.parts[uid, part]
        self.reading += 1
        try:
            for place in range(offset, len(data), PIECE):
                yield data[place : place + PIECE]
                if self.pause is not None:
                    await self.pause.wait()
        finally:
            self.reading -= 1

    def _enter(self, call: str, fence: Fence | None = None) -> None:
        raise NotImplementedError


def _whole(wanted: CheckpointWanted) -> CheckpointObserved:
    return CheckpointObserved(
        uid=wanted.uid,
        namespace=wanted.namespace,
        name=wanted.name,
        sequence=1,
        generation=wanted.generation,
        execution_uid=wanted.spec.execution_uid,
        step=CheckpointStep.ENDED,
        outcome=Outcome(succeeded=True, reason=reasons.CHECKPOINT_READY, message="whole"),
        on_node=True,
        started_at=NOON,
        ended_at=NOON,
    )
