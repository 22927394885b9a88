"""Which leader is obeyed: a pure function over what has been obeyed before, kept by each store."""

from isolet.base import errors
from isolet.wire.base import Fence

Obeyed = tuple[tuple[str, int], ...]
"""For one shard, (Lease uid, highest transitions) in the order in which the Leases came."""


def obey(history: Obeyed, fence: Fence) -> Obeyed:
    """The history once `fence` is obeyed; the same object when nothing is new.

    A Lease that was seen before and is not the last is one that was replaced: a Lease object that
    is deleted and made again has a new uid and starts at few transitions, so only the order of the
    uids tells old from new.

    Raises:
        Fenced: a newer leader has been obeyed.
    """
    if not history or fence.lease_uid not in {uid for uid, _ in history}:
        return (*history, (fence.lease_uid, fence.transitions))
    newest_uid, newest = history[-1]
    if fence.lease_uid != newest_uid:
        raise errors.Fenced(
            f"shard {fence.shard}: Lease {fence.lease_uid} was replaced by {newest_uid}"
        )
    if fence.transitions < newest:
        raise errors.Fenced(
            f"shard {fence.shard}: transitions {fence.transitions} of Lease {newest_uid} are "
            f"older than {newest}, which was obeyed"
        )
    if fence.transitions == newest:
        return history
    return (*history[:-1], (newest_uid, fence.transitions))
