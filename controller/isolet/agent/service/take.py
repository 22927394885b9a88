"""Takes a workspace while nothing in its sandbox can change it.

A running sandbox on disk is paused by the engine, read by a helper through a mount of its own, and
let go on before the copy is forced to disk. Whatever happens in between, it is let go on: here, or
by the next agent, which finds in the store that it may stand still.
"""

from isolet.agent.engine.base import Status
from isolet.agent.service.context import Context
from isolet.base import errors
from isolet.plan.sandbox_model import SandboxRecord
from isolet.wire.checkpoint import Manifest


class CannotBeTaken(errors.Refused):
    """What is in the workspace, or around it, stands against it: trying again would not help."""


class Taker:
    """Takes one workspace at a time; holds nothing of it itself."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def thaw(self, record: SandboxRecord) -> None:
        """Let the sandbox go on if it stands still. May be repeated.

        Raises:
            Unavailable, Unconfirmed: the engine does not say that it does.
        """
        engine = self._context.engine
        try:
            seen = await engine.inspect(record.container_name)
            if seen.status is Status.PAUSED:
                await engine.unpause(record.container_name)
        except errors.NotFound:
            return

    async def take(self, record: SandboxRecord, host: SandboxRecord) -> tuple[Manifest, str]:
        """Have a whole copy in place; its manifest and the digest of that.

        Raises:
            CannotBeTaken: it cannot be, now or later.
            Unavailable, Unconfirmed: the engine went away.
        """
        raise CannotBeTaken("this agent takes no workspaces yet")
