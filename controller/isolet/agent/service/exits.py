"""How an exec ended: the engine may say that it runs for a moment after its streams have closed."""

import asyncio

from isolet.agent.engine.base import Engine
from isolet.base import errors

LOOKS = 200
LOOK_SECONDS = 0.05


async def exit_code(engine: Engine, exec_id: str) -> int:
    """The exit code of an exec whose streams have ended.

    Raises:
        Unconfirmed: the engine does not say in time.
    """
    for _ in range(LOOKS):
        facts = await engine.inspect_exec(exec_id)
        if not facts.running and facts.exit_code is not None:
            return facts.exit_code
        await asyncio.sleep(LOOK_SECONDS)
    raise errors.Unconfirmed("the engine does not say how the command ended")
