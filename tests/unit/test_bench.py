"""The bench's own arithmetic, and its arrivals, which wait for nobody."""

import asyncio
import itertools
import statistics

import pytest
from isolet_bench.arrivals import open_loop, poisson
from isolet_bench.report import Target, quantile


@pytest.mark.parametrize(
    ("count", "part", "rank"),
    [
        (1, 0.5, 1), (1, 0.99, 1), (2, 0.5, 1), (3, 0.5, 2), (8, 0.5, 4), (10, 0.5, 5),
        (12, 0.5, 6), (10, 0.9, 9), (20, 0.9, 18), (40, 0.9, 36), (40, 0.99, 40), (100, 0.99, 99),
        (101, 0.99, 100), (200, 0.99, 198), (9, 0.0, 1), (9, 1.0, 9),
    ],
)  # fmt: skip
def test_a_quantile_is_the_nearest_rank(count: int, part: float, rank: int) -> None:
    values = [float(n) for n in range(count, 0, -1)]
    assert quantile(values, part) == rank
    # The definition: so many do not pass it, and of no lesser one that is true.
    assert sum(v <= rank for v in values) >= part * count - 1e-9
    assert rank == 1 or sum(v <= rank - 1 for v in values) < part * count


@pytest.mark.parametrize(
    ("measured", "limit", "at_least", "met"),
    [(8, 8, False, True), (8.1, 8, False, False), (0.9, 0.9, True, True), (0.8, 0.9, True, False)],
)
def test_a_target(measured: float, limit: float, at_least: bool, met: bool) -> None:
    target = Target("x", measured, limit, "ms", at_least=at_least)
    assert target.met is met
    assert ("MISSED" in target.text()) is not met


def test_arrivals_are_as_many_and_as_dense_as_asked_and_alike_for_a_seed() -> None:
    found = poisson(rate=4.0, count=4000, seed=1)
    assert found == poisson(rate=4.0, count=4000, seed=1) != poisson(rate=4.0, count=4000, seed=2)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *found])]
    assert len(found) == 4000
    assert min(gaps) > 0
    # Gaps of a Poisson process have a mean and a deviation of 1 / rate.
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)


async def test_a_call_that_is_not_answered_holds_nobody_up_and_is_charged_from_its_arrival() -> (
    None
):
    last, intended = asyncio.Event(), []

    async def one(arrival: float) -> None:
        intended.append(arrival)
        if len(intended) == 3:
            last.set()
        await last.wait()  # The first is answered only once the last has been sent.

    await asyncio.wait_for(open_loop([0.0, 0.001, 0.003], one), 60)
    assert [at - intended[0] for at in intended] == pytest.approx([0.0, 0.001, 0.003], abs=1e-6)
