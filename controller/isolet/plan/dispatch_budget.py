"""What follows from the budgets of a run: deadlines, lifetimes, grace periods, fences. PURE.

All in seconds. A fence has to outlive the run it stands for, and any token that could be sent
again.
"""

from isolet.wire.dispatch import Budgets

DAY = 86_400
MARGIN = 60
"""For what no budget covers: clocks that are read a moment apart, a stop that is late."""


def total(budgets: Budgets) -> int:
    """All of a run, from its assignment until nothing is left."""
    return run_deadline(budgets) + budgets.cleanup_seconds


def run_deadline(budgets: Budgets) -> int:
    """From the assignment until it is ended, whatever it says of itself."""
    return budgets.startup_seconds + budgets.execution_seconds + budgets.finalization_seconds


def drain(budgets: Budgets) -> int:
    """How long a process that serves runs may take to end: as long as the last of them."""
    return total(budgets) + MARGIN


def replay_fence(budgets: Budgets) -> int:
    """From the assignment: how long the same run is refused at the least."""
    return max(run_deadline(budgets), DAY) + MARGIN


def cancel_fence(budgets: Budgets) -> int:
    """From the cancellation of a run that nobody knows: how long it is refused at the least."""
    return max(DAY, budgets.execution_seconds + 3600) + MARGIN
