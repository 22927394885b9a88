"""Laws of fencing over any sequence of leaders."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from isolet.agent.store import fences
from isolet.base import errors
from isolet.wire.base import Fence

FENCES = st.lists(
    st.builds(Fence, lease_uid=st.sampled_from("abcd"), transitions=st.integers(0, 4)), max_size=30
)


def _run(sequence: list[Fence]) -> tuple[fences.Obeyed, list[bool]]:
    history: fences.Obeyed = ()
    verdicts = []
    for fence in sequence:
        try:
            history = fences.obey(history, fence)
            verdicts.append(True)
        except errors.Fenced:
            verdicts.append(False)
    return history, verdicts


@given(FENCES)
def test_a_leader_that_was_passed_is_never_obeyed_again(sequence: list[Fence]) -> None:
    history, verdicts = _run(sequence)
    obeyed = [fence for fence, good in zip(sequence, verdicts, strict=True) if good]
    for before, after in itertools.pairwise(obeyed):
        if before.lease_uid == after.lease_uid:
            assert after.transitions >= before.transitions
        else:
            assert all(
                later.lease_uid != before.lease_uid for later in obeyed[obeyed.index(after) :]
            )
    assert len({uid for uid, _ in history}) == len(history)


@given(FENCES)
def test_the_one_obeyed_last_is_obeyed_again_and_changes_nothing(sequence: list[Fence]) -> None:
    history, _ = _run(sequence)
    if history:
        uid, transitions = history[-1]
        assert fences.obey(history, Fence(lease_uid=uid, transitions=transitions)) is history
