"""Whether the engine's word of a container's end can be taken, after it was restarted. PURE.

An engine that is killed just as it takes in an end has forgotten it when it comes up: dockerd then
finds no task, and makes up an exit code, 0 or 255, and a time between its start and its first
answer. (Measured on 20.10.24: 0 for a program that had exited with 3. `restoredProcess.Delete` in
its libcontainerd gives 255, moby 45788 is the 0.)
"""

from collections.abc import Mapping

MADE_UP = (0, 255)
"""Codes that an engine gives to an end that it has forgotten."""

LONGEST_RESTORE_SECONDS = 600.0
"""An engine that comes up has looked at all its containers by then, however many."""


def is_doubtful(
    code: int | None, ended: float | None, eras: Mapping[float, float], up_since: float, now: float
) -> bool:
    """Whether an engine may have made up this end of a container that is older than it.

    All times are boot-time seconds.

    Args:
        code: as the engine says.
        ended: when, as the engine says; None: at no time.
        eras: of each process of the engine that was seen, when it was started, and when it was
            first seen to answer: it had looked at all its containers by then.
        up_since: when the present one was started.
        now: the present time.
    """
    if code not in MADE_UP:
        return False
    if ended is None:
        return True
    return any(
        since <= ended <= min(answered, since + LONGEST_RESTORE_SECONDS)
        for since, answered in {up_since: now, **eras}.items()
    )
