"""The world that tests of an operator's passes begin with."""

import pytest

from tests.unit.operator.test_passes import World


@pytest.fixture
async def world():
    world = World()
    world.clock.advance(120)  # the leader is older than the objects of the tests
    world.lead()
    await world.start("n1")
    yield world
    await world.operator.close()
