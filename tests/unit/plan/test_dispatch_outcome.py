"""Success is three things at once; everything else has its own reason."""

import itertools

import pytest

from isolet.plan import dispatch_budget as budget
from isolet.plan import reasons
from isolet.plan.dispatch_outcome import Evidence, Exit, Stop, decide
from isolet.wire.dispatch import Budgets

CANCELLED = Stop(reason=reasons.CANCELLED, message="it was cancelled")
HANDOVER = Stop(reason=reasons.HANDOVER_TIMEOUT, message="not taken")
TABLE = {
    "whole": (Evidence(confirmed_dead=True, exit=Exit(code=0), completed=True), reasons.SUCCEEDED),
    "no result": (Evidence(confirmed_dead=True, exit=Exit(code=0)), reasons.RESULT_MISSING),
    "a result and another exit": (
        Evidence(confirmed_dead=True, exit=Exit(code=3), completed=True),
        reasons.NON_ZERO_EXIT,
    ),
    "dies": (Evidence(confirmed_dead=True, exit=Exit(code=137)), reasons.NON_ZERO_EXIT),
    "out of memory": (
        Evidence(confirmed_dead=True, exit=Exit(code=137, oom_killed=True), completed=True),
        reasons.OOM_KILLED,
    ),
    "out of memory, and nobody saw its code": (
        Evidence(confirmed_dead=True, exit=Exit(code=None, oom_killed=True)),
        reasons.OOM_KILLED,
    ),
    "gone": (Evidence(confirmed_dead=True, exit=Exit(code=None)), reasons.CONTAINER_LOST),
    "gone with a result": (
        Evidence(confirmed_dead=True, exit=Exit(code=None), completed=True),
        reasons.CONTAINER_LOST,
    ),
    "cancelled": (Evidence(confirmed_dead=True, stop=CANCELLED), reasons.CANCELLED),
    "cancelled with a result": (
        Evidence(confirmed_dead=True, stop=CANCELLED, completed=True),
        reasons.CANCELLED,
    ),
    "nobody knows whether it got its document": (
        Evidence(confirmed_dead=True, exit=Exit(code=1), delivery_unknown=True),
        reasons.START_UNCONFIRMED,
    ),
    "nor did it come in time": (
        Evidence(confirmed_dead=True, stop=HANDOVER, delivery_unknown=True),
        reasons.START_UNCONFIRMED,
    ),
    "it was not taken": (Evidence(confirmed_dead=True, stop=HANDOVER), reasons.HANDOVER_TIMEOUT),
    "cancelled before anybody knew": (
        Evidence(confirmed_dead=True, stop=CANCELLED, delivery_unknown=True),
        reasons.CANCELLED,
    ),
}


@pytest.mark.parametrize(("seen", "reason"), TABLE.values(), ids=TABLE)
def test_how_a_run_ended(seen: Evidence, reason: str) -> None:
    outcome = decide(seen)
    assert outcome is not None
    assert (outcome.reason, outcome.succeeded) == (reason, reason == reasons.SUCCEEDED)


EVERYTHING = [
    Evidence(confirmed_dead=dead, stop=stop, exit=end, completed=done, delivery_unknown=unknown)
    for dead, stop, end, done, unknown in itertools.product(
        (False, True),
        (None, CANCELLED, HANDOVER),
        (None, *(Exit(code=c, oom_killed=o) for c in (None, 0, 1, 137) for o in (False, True))),
        (False, True),
        (False, True),
    )
]


def test_success_is_a_result_an_exit_with_0_and_every_process_confirmed_dead() -> None:
    for seen in EVERYTHING:
        outcome = decide(seen)
        assert (outcome is None) == (not seen.confirmed_dead)
        if outcome is not None and outcome.succeeded:
            assert seen.completed
            assert seen.exit == Exit(code=0)
            assert seen.stop is None


def test_the_budgets_of_the_defaults() -> None:
    budgets = Budgets()
    assert budget.total(budgets) == 3810
    assert budget.run_deadline(budgets) == 3780
    assert budget.drain(budgets) == 3870
    assert budget.replay_fence(budgets) == 86_460
    assert budget.cancel_fence(budgets) == 86_460


def test_what_is_derived_outlives_what_it_is_for() -> None:
    for seconds in (1, 600, 86_400):
        budgets = Budgets(execution_seconds=seconds)
        assert budget.run_deadline(budgets) < budget.total(budgets) < budget.drain(budgets)
        assert budget.replay_fence(budgets) >= budget.run_deadline(budgets) + budget.MARGIN
        assert budget.cancel_fence(budgets) >= seconds + 3600
