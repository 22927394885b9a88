"""The operator's effects by name: every one can be struck right before and right after.

`at(Effect.BIND, call)` is the only way an effect is made, so the list below is complete as long as
no module calls a write of `Cluster` or of an agent without it (tests/arch looks for that).
"""

from collections import Counter
from collections.abc import Awaitable
from enum import StrEnum
from typing import TypeVar

from isolet.base import steps

T = TypeVar("T")


class Effect(StrEnum):
    """Everything the operator does to the world."""

    LEASE_ACQUIRE = "operator.lease.acquire"
    LEASE_RENEW = "operator.lease.renew"
    LEASE_RELEASE = "operator.lease.release"
    BIND = "operator.bind"
    RELEASE = "operator.release"
    OBJECT_DELETE = "operator.object.delete"
    STATUS = "operator.status"
    NODE_STATUS = "operator.node.status"
    EVENT = "operator.event"
    TOMBSTONE_WRITE = "operator.tombstone.write"
    TOMBSTONE_DELETE = "operator.tombstone.delete"
    AGENT_PUT = "operator.agent.put"
    AGENT_AMEND = "operator.agent.amend"
    AGENT_REMOVE = "operator.agent.remove"
    AGENT_GRANT = "operator.agent.grant"
    AGENT_REMOVE_STRAYS = "operator.agent.remove-strays"
    AGENT_PUT_POOLS = "operator.agent.put-pools"

    @property
    def before(self) -> str:
        """The step right before the effect."""
        return f"{self}.before"

    @property
    def after(self) -> str:
        """The step right after it, before anything is remembered of it."""
        return f"{self}.after"


STEPS: tuple[str, ...] = tuple(step for effect in Effect for step in (effect.before, effect.after))
"""All steps, for the tests that kill the operator at each."""


done: Counter[Effect] = Counter()
"""How often each effect was made and answered in this process, for a metric."""


async def at(effect: Effect, call: Awaitable[T]) -> T:
    """Await `call`, with the effect's two steps around it."""
    steps.reach(effect.before)
    result = await call
    steps.reach(effect.after)
    done[effect] += 1
    return result
