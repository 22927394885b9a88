"""What an agent promises about Checkpoints, however it is reached."""

from datetime import timedelta

import pytest

from isolet.base import errors
from isolet.wire.base import Fence
from isolet.wire.checkpoint import CheckpointSpec, CheckpointWanted
from tests.contract.client.harness import Served, Way
from tests.contract.client.memory_checkpoints import NOON
from tests.contract.client.wire import request, send


def wanted(uid: str = "c-1", **changes: object) -> CheckpointWanted:
    spec = CheckpointSpec(**{"execution_uid": "e-1", "reason": "before\nlunch ü", **changes})
    return CheckpointWanted(uid=uid, namespace="acme", name="one", generation=3, spec=spec)


async def test_the_whole_request_arrives(way: Way) -> None:
    seen = await way.api.put_checkpoint(wanted(), None)
    assert way.agent.checkpoints_wanted["c-1"] == wanted()
    assert seen == way.agent.checkpoints["c-1"]
    assert await way.api.put_checkpoint(wanted(), None) == seen
    assert await way.api.get_checkpoint("c-1") == seen
    assert (await way.api.snapshot()).checkpoints == (seen,)


async def test_another_request_is_a_conflict(way: Way) -> None:
    await way.api.put_checkpoint(wanted(), None)
    with pytest.raises(errors.Conflict):
        await way.api.put_checkpoint(wanted(execution_uid="e-2"), None)


async def test_what_is_removed_is_gone_and_never_comes_again(way: Way) -> None:
    await way.api.put_checkpoint(wanted(), None)
    gone = await way.api.remove_checkpoint("c-1", None)
    assert (gone.removing, gone.on_node, gone.nothing_left) == (True, False, True)
    assert (await way.api.remove_checkpoint("never", None)).nothing_left
    with pytest.raises(errors.NotFound):
        await way.api.get_checkpoint("c-1")
    with pytest.raises(errors.Conflict) as caught:
        await way.api.put_checkpoint(wanted(), None)
    assert caught.value.reason == "AlreadyEnded"


async def test_a_grant_names_reader_and_time(way: Way) -> None:
    await way.api.put_checkpoint(wanted(), None)
    grant = await way.api.grant_checkpoint("c-1", "node-2", 60, None)
    assert (grant.token, grant.expires_at) == ("c-1/node-2", NOON + timedelta(seconds=60))
    assert way.agent.grants == [("c-1", "node-2", 60)]
    with pytest.raises(errors.NotFound):
        await way.api.grant_checkpoint("none", "node-2", 60, None)


async def test_an_old_fence_is_refused(way: Way) -> None:
    await way.api.put_checkpoint(wanted(), Fence(lease_uid="l", transitions=2))
    old = Fence(lease_uid="l", transitions=1)
    for call in (
        way.api.put_checkpoint(wanted(), old),
        way.api.remove_checkpoint("c-1", old),
        way.api.grant_checkpoint("c-1", "node-2", 1, old),
    ):
        with pytest.raises(errors.Fenced):
            await call


@pytest.mark.parametrize(
    ("method", "path", "who"),
    [
        ("PUT", "/v1/checkpoints/c", "stream"),
        ("DELETE", "/v1/checkpoints/c", "stream"),
        ("POST", "/v1/checkpoints/c/grant", "stream"),
        ("GET", "/v1/checkpoints/c", "dispatch"),
    ],
)
async def test_each_call_needs_its_right(served: Served, method: str, path: str, who: str) -> None:
    answer = await send(served, request(method, path, b"{}"), who)
    assert (answer.status, answer.reason) == (403, "IdentityNotAllowed")


BAD = {
    "no Execution": ("PUT", "", b'{"uid": "c-1", "name": "one", "spec": {}}'),
    "a uid that leads out": (
        "PUT",
        "",
        b'{"uid": "c-1", "name": "one", "spec": {"executionUid": "../x"}}',
    ),
    "another uid": ("PUT", "", b'{"uid": "c-2", "name": "one", "spec": {"executionUid": "e"}}'),
    "a reader without a name": ("POST", "/grant", b'{"reader": "", "seconds": 1}'),
    "a grant for ever": ("POST", "/grant", b'{"reader": "node-2", "seconds": 3601}'),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_malformed_is_refused_before_anything(served: Served, name: str) -> None:
    method, end, body = BAD[name]
    headers = ("Content-Type: application/json",)
    path = f"/v1/checkpoints/c-1{end}"
    answer = await send(served, request(method, path, body, headers))
    assert answer.status == 422
    assert served.agent.calls == []
