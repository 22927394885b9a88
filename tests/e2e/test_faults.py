"""SIGKILL of agent and operator at each of their steps, as the code lists them.

One test for each step, so that a step that is never reached is a test that fails. While the process
is killed and started again a fixed mix of work goes through it; the judge is the engines' own event
streams, `docker inspect` and what a watch of the API server has shown.
"""

import itertools
from collections.abc import Iterator

import pytest

from isolet.agent.steps import AgentStep
from tests.e2e.faults_arena import SEED, Arena, arena_of, chance, mix
from tests.e2e.world import World

pytestmark = pytest.mark.faults

NODES = ("node-0", "node-1")


def journeys() -> list[tuple[str, ...]]:
    """Every step of the agent once, three in each journey, in the order of a sandbox's life."""
    steps = [step.value for step in AgentStep]
    third = -(-len(steps) // 3)
    thirds = [steps[begin : begin + third] for begin in range(0, len(steps), third)]
    for part in thirds:
        chance(*part).shuffle(part)
    return [tuple(filter(None, found)) for found in itertools.zip_longest(*thirds)]


def rounds() -> list[tuple[tuple[str, ...], ...]]:
    """The journeys, one for each node at a time."""
    found = journeys()
    return [tuple(found[begin : begin + len(NODES)]) for begin in range(0, len(found), len(NODES))]


@pytest.fixture(scope="module")
def arena(whole: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    print(f"seed {SEED}: ISOLET_FAULT_SEED={SEED} makes the same choices again")
    folder = tmp_path_factory.mktemp("traps")
    parts = (*(f"agent-{node}" for node in NODES), "operator-0")
    with whole.in_namespace() as world, arena_of(world, folder, *parts) as arena:
        arena.settle_in()
        yield arena
        arena.judge()
        arena.end_standing()
    whole.nothing_left()


@pytest.mark.parametrize("steps", rounds(), ids=lambda r: "+".join(itertools.chain(*r)))
def test_the_agents_are_killed_at(arena: Arena, steps: tuple[tuple[str, ...], ...]) -> None:
    dice = chance(*itertools.chain(*steps))
    traps = [arena.trap(f"agent-{node}") for node in NODES]
    tag = f"{dice.randrange(1 << 24):06x}"
    for trap, mine in zip(traps, steps, strict=False):
        trap.set(*mine)
    arena.perform([work for n in (0, 1) for work in mix(NODES[n], f"{tag}-{n}", dice)])
    for trap, mine in zip(traps, steps, strict=False):
        assert tuple(trap.sprung()) == mine, f"{trap.part} came only to {trap.sprung()}"
    arena.judge()
