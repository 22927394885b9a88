"""Times as people and programs write them: absolute, with a zone, and nothing else."""

import re
from datetime import datetime

RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def read(value: object) -> datetime:
    """The time that a text, or a datetime, stands for.

    A number is none: whether it counts seconds or milliseconds, and since when, is a guess.

    Raises:
        ValueError: anything else, a text or datetime without a zone among it.
    """
    if isinstance(value, datetime):
        time = value
    elif isinstance(value, str) and RFC3339.fullmatch(value):
        time = datetime.fromisoformat(value)
    else:
        raise ValueError("must be an RFC 3339 time with a zone, such as 2030-01-01T00:00:00Z")
    if time.tzinfo is None:
        raise ValueError("must have a time zone, such as 2030-01-01T00:00:00Z")
    return time
