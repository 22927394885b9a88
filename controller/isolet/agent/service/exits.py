"""How an exec ended: the engine may say that it runs for a moment after its streams have closed."""

import asyncio

from isolet.agent.engine.base import Engine
from isolet.base import errors

LOOKS = 200
LOOK_SECONDS = 0.05


async def exit_code(engine: Engine, exec_id: str) -> int:
    """The exit code of an exec whose streams have ended.

    An engine that went away tells nothing, and one that was restarted has forgotten its execs: that
    it knows none says nothing of a container, nor of what was looked for in it.

    Raises:
        Unconfirmed: the engine does not say, or not in time.
    """
    for _ in range(LOOKS):
        try:
            facts = await engine.inspect_exec(exec_id)
        except (errors.NotFound, errors.Unavailable) as error:
            raise errors.Unconfirmed(
                f"the engine does not say how the command ended: {error.message}"
            ) from error
        if not facts.running and facts.exit_code is not None:
            return facts.exit_code
        await asyncio.sleep(LOOK_SECONDS)
    raise errors.Unconfirmed("the engine does not say how the command ended")
