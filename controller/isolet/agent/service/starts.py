"""The parts that bring a sandbox from its record to its end, put together; cold or in a slot."""

from collections.abc import Callable
from dataclasses import dataclass

from isolet.agent.deadline_book import DeadlineBook
from isolet.agent.service.assign import Assigner
from isolet.agent.service.context import Context
from isolet.agent.service.effects import Effects
from isolet.agent.service.events import EventLog
from isolet.agent.service.facts import Facts
from isolet.agent.service.images import Images
from isolet.agent.service.imports import Imports
from isolet.agent.service.inputs import Inputs
from isolet.agent.service.pools import Pools
from isolet.agent.service.restorer import Restorer


@dataclass(frozen=True, slots=True)
class Starts:
    """What looks, what acts, and what gives slots away."""

    facts: Facts
    effects: Effects
    assigner: Assigner


def assemble(
    context: Context,
    book: DeadlineBook,
    events: EventLog,
    sources: tuple[Inputs, Restorer, Imports],
    pools: Pools,
    wake: Callable[[str], None],
) -> Starts:
    """All of them; `sources` is what a workspace and its program may begin with."""
    inputs, restorer, imports = sources
    images = Images(context.engine)
    facts = Facts(context, images, inputs, restorer, events, imports, wake, pools.outlook)
    assigner = Assigner(context, book, inputs, pools, facts.drop)
    effects = Effects(context, facts, inputs, restorer, book, imports, assigner)
    return Starts(facts, effects, assigner)
