"""How a run ended, from all that was seen of it. PURE.

Succeeded is three things at once: a terminal event whose payload is an object, exit code 0, and
every process confirmed dead. Whatever ends a run from outside is named by the first that did.
"""

from dataclasses import dataclass

from isolet.plan import reasons
from isolet.wire.execution import Outcome

_OUR_OWN = frozenset({reasons.HANDOVER_TIMEOUT})
"""Ends that tell less than that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Why a run was ended by us."""

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How the sandbox ended, as the engine tells it."""

    code: int | None
    """None: it is gone and nobody saw how."""
    oom_killed: bool = False
    output_lost: bool = False
    """Some output was lost outside our reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was seen."""

    confirmed_dead: bool
    stop: Stop | None = None
    """The first wish of ours to end it."""
    exit: Exit | None = None
    """None: it was not waited for, since it was ended."""
    completed: bool = False
    """Its terminal event was read."""
    delivery_unknown: bool = False
    """Nobody knows whether the runner was given its document, and it has said nothing."""


def decide(seen: Evidence) -> Outcome | None:
    """The outcome; None as long as something of it may still run."""
    if not seen.confirmed_dead:
        return None
    code = seen.exit.code if seen.exit is not None else None
    if seen.delivery_unknown and (seen.stop is None or seen.stop.reason in _OUR_OWN):
        return _failed(reasons.START_UNCONFIRMED, "nobody can say whether it got its document")
    if seen.stop is not None:
        return _failed(seen.stop.reason, seen.stop.message, code)
    if seen.exit is not None and seen.exit.oom_killed:
        return _failed(reasons.OOM_KILLED, "memory ran out and the sandbox was killed", code)
    if seen.exit is None or code is None:
        return _failed(reasons.CONTAINER_LOST, "the sandbox is gone and nobody saw how it ended")
    if code != 0:
        return _failed(reasons.NON_ZERO_EXIT, f"the runner exited with {code}", code)
    if not seen.completed:
        lost = "; some of its output was lost" if seen.exit.output_lost else ""
        return _failed(
            reasons.RESULT_MISSING, f"the runner exited with 0 and gave no result{lost}", code
        )
    return Outcome(
        succeeded=True, reason=reasons.SUCCEEDED, message="the runner gave its result", exit_code=0
    )


def _failed(reason: str, message: str, code: int | None = None) -> Outcome:
    return Outcome(succeeded=False, reason=reason, message=message, exit_code=code)
