"""Which ends an engine may have made up, as a table over its restarts."""

import pytest

from isolet.plan.engine_ends import is_doubtful

FIRST, SECOND = {500.0: 503.0}, {900.0: 904.0}
"""When each was started, and first answered."""

# Code, when it ended, the engine's processes that were seen; the present one was started at 900.
DOUBTS = {
    "0 as the engine came up": (0, 900.2, SECOND, True),
    "255 as it came up": (255, 900.2, SECOND, True),
    "any other code is true": (3, 900.2, SECOND, False),
    "no code": (None, 900.2, SECOND, False),
    "no time": (0, None, SECOND, True),
    "before it came up": (0, 899.0, SECOND, False),
    "after it had answered": (0, 905.0, SECOND, False),
    "a slow restore": (0, 980.0, {900.0: 990.0}, True),
    "an agent that came an hour later": (0, 1600.0, {900.0: 4500.0}, False),
    "as the engine before it came up": (0, 501.0, FIRST | SECOND, True),
    "between the two": (0, 700.0, FIRST | SECOND, False),
    "nobody has seen the present one yet": (0, 950.0, FIRST, True),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_only_an_end_that_may_be_made_up_is_doubted(name: str) -> None:
    code, ended, eras, doubted = DOUBTS[name]
    assert is_doubtful(code, ended, eras, 900.0, 1000.0) is doubted
