"""What an agent promises, however it is reached."""

import asyncio
from contextlib import aclosing

import pytest

from isolet.api.fields import MAX_INLINE
from isolet.base import errors
from isolet.wire.base import Fence
from isolet.wire.dispatch import RunnerContract
from isolet.wire.execution import (
    Amendment,
    EnvVar,
    ExecRequest,
    ExecResult,
    ExecutionSpec,
    Outcome,
    State,
    Step,
)
from isolet.wire.node import Stray
from isolet.wire.pool import PoolsWanted, PoolWanted
from isolet.wire.process import StagedFile
from tests.contract.client.harness import Way, resources, wanted

FAILED = Outcome(succeeded=False, reason="NonZeroExit", message="exit 9", exit_code=9)
ANY_BYTES = bytes(range(256)) * 3


def fence(transitions: int, lease: str = "lease-a") -> Fence:
    return Fence(lease_uid=lease, transitions=transitions)


async def test_put_may_be_repeated(way: Way) -> None:
    first = await way.api.put(wanted(), None)
    assert first.step is Step.RUNNING
    assert await way.api.put(wanted(), None) == first
    assert await way.api.get("uid-1") == first


async def test_the_whole_message_arrives(way: Way) -> None:
    spec = ExecutionSpec(
        image="registry.example/python@sha256:" + "b" * 64,
        resources=resources(),
        command=("printf", "%s", "ünï\n\t\"'\\ \u2028\x01"),
        env=(EnvVar(name="BYTES", value=ANY_BYTES[1:256]),),
    )
    message = wanted(spec=spec, namespace="team-a", class_name="standard", generation=7)
    seen = await way.api.put(message, fence(1))
    assert seen.spec_digest == spec.digest(b"memory")
    assert (seen.namespace, seen.name, seen.generation) == ("team-a", "hello", 7)


async def test_another_spec_under_the_same_uid_is_a_conflict(way: Way) -> None:
    await way.api.put(wanted(), None)
    other = ExecutionSpec(image="sha256:" + "c" * 64, resources=resources())
    with pytest.raises(errors.Conflict):
        await way.api.put(wanted(spec=other), None)


async def test_amend_ends_it(way: Way) -> None:
    await way.api.put(wanted(), None)
    change = Amendment(active_deadline_seconds=60, state=State.TERMINATED, generation=2)
    seen = await way.api.amend("uid-1", change, fence(1))
    assert seen.outcome is not None
    assert seen.outcome.reason == "Terminated"


async def test_amend_moves_the_deadline_or_leaves_it(way: Way) -> None:
    before = await way.api.put(wanted(), None)
    left = await way.api.amend("uid-1", Amendment(generation=2), None)
    assert (left.deadline_at, left.generation) == (before.deadline_at, 2)
    moved = await way.api.amend("uid-1", Amendment(active_deadline_seconds=90), None)
    assert moved.deadline_at is not None
    assert before.deadline_at is not None
    assert (moved.deadline_at - before.deadline_at).total_seconds() == 30


async def test_amend_of_nothing_is_not_found(way: Way) -> None:
    with pytest.raises(errors.NotFound):
        await way.api.amend("none", Amendment(active_deadline_seconds=1), None)


async def test_remove_leaves_nothing_and_nothing_comes_back(way: Way) -> None:
    await way.api.put(wanted(), None)
    assert (await way.api.remove("uid-1", None)).nothing_left
    with pytest.raises(errors.Conflict) as caught:
        await way.api.put(wanted(), None)
    assert caught.value.reason == "AlreadyEnded"


async def test_remove_of_what_never_was_answers_at_once(way: Way) -> None:
    assert (await way.api.remove("never", None)).nothing_left
    with pytest.raises(errors.Conflict):
        await way.api.put(wanted("never"), None)


async def test_an_older_leader_is_fenced(way: Way) -> None:
    await way.api.put(wanted("a"), fence(5))
    for old in (fence(4), fence(0)):
        with pytest.raises(errors.Fenced):
            await way.api.put(wanted("b"), old)
    await way.api.put(wanted("b"), fence(6))
    await way.api.remove("b", fence(0, "lease-b"))
    with pytest.raises(errors.Fenced):
        await way.api.remove("a", fence(7))


async def test_get_of_nothing_is_not_found(way: Way) -> None:
    with pytest.raises(errors.NotFound):
        await way.api.get("none")


async def test_snapshot_has_all(way: Way) -> None:
    seen = [await way.api.put(wanted(f"uid-{n}"), None) for n in range(5)]
    snapshot = await way.api.snapshot()
    assert snapshot.executions == tuple(seen)
    assert snapshot.sequence == 5


async def test_watch_tells_past_and_present(way: Way) -> None:
    await way.api.put(wanted("a"), None)
    seen: list[tuple[int, str]] = []
    async with aclosing(way.api.watch(0)) as changes:
        async for change in changes:
            if change.execution is None:
                if change.sequence == 1:
                    await way.api.put(wanted("b"), None)
                continue
            seen.append((change.sequence, change.execution.uid))
            if len(seen) == 2:
                break
    assert seen == [(1, "a"), (2, "b")]


async def test_watch_sends_bookmarks(way: Way) -> None:
    async with aclosing(way.api.watch(0)) as changes:
        quiet = [await anext(changes), await anext(changes)]
    assert [(c.execution, c.sequence) for c in quiet] == [(None, 0), (None, 0)]


async def test_output_is_exact(way: Way) -> None:
    await way.api.put(wanted(), None)
    way.agent.finish("uid-1", FAILED, stdout=ANY_BYTES, stderr=b"")
    whole = await way.streams.output("uid-1", "stdout", 0, 1 << 20)
    assert (whole.data, whole.total_bytes, whole.complete) == (ANY_BYTES, len(ANY_BYTES), True)
    middle = await way.streams.output("uid-1", "stdout", 10, 5)
    assert (middle.offset, middle.data) == (10, ANY_BYTES[10:15])
    tail = await way.streams.output("uid-1", "stdout", -4, 100)
    assert (tail.offset, tail.data) == (len(ANY_BYTES) - 4, ANY_BYTES[-4:])
    nothing = await way.streams.output("uid-1", "stderr", 0, 1)
    assert (nothing.data, nothing.total_bytes) == (b"", 0)


async def test_output_of_nothing_is_not_found(way: Way) -> None:
    with pytest.raises(errors.NotFound):
        await way.streams.output("none", "stdout", 0, 1)


async def test_exec_carries_any_bytes_both_ways(way: Way) -> None:
    await way.api.put(wanted(), None)
    now = way.agent.clock.now()

    def cat(_uid: str, request: ExecRequest) -> ExecResult:
        return ExecResult(
            exit_code=3,
            stdout=request.stdin,
            stderr=request.env[0].value,
            started_at=now,
            completed_at=now,
        )

    way.agent.run = cat
    request = ExecRequest(
        command=("cat",), stdin=ANY_BYTES * 4096, env=(EnvVar(name="A", value=b"\xff\x00"),)
    )
    result = await way.streams.exec("uid-1", request)
    assert result == cat("uid-1", request)


async def test_exec_where_nothing_runs_is_a_conflict(way: Way) -> None:
    await way.api.put(wanted(), None)
    way.agent.finish("uid-1", FAILED)
    with pytest.raises(errors.Conflict) as caught:
        await way.streams.exec("uid-1", ExecRequest(command=("true",)))
    assert caught.value.reason == "NotRunning"


async def test_node_says_who_it_is(way: Way) -> None:
    node = await way.api.node()
    assert (node.name, node.wire_versions) == ("node-1", (1,))
    assert node.now == way.agent.clock.now()


async def test_strays_are_removed(way: Way) -> None:
    stray = Stray(kind="container", name="isolet-1", uid="x", age_seconds=60.5)
    way.agent.strays.append(stray)
    assert (await way.api.node()).strays == (stray,)
    assert list(await way.api.remove_strays(["isolet-1"], fence(1))) == []
    assert (await way.api.node()).strays == ()


async def test_pools_are_wanted_as_a_whole(way: Way) -> None:
    pool = PoolWanted(
        class_name="warm",
        generation=2,
        image="sha256:" + "a" * 64,
        resources=resources(),
        minimum=3,
        maximum=3,
    )
    wish = PoolsWanted(pools=(pool,))
    seen = await way.api.put_pools(wish, fence(1))
    assert seen.digest == wish.digest()
    assert [(p.class_name, p.generation, p.target) for p in seen.pools] == [("warm", 2, 3)]
    with pytest.raises(errors.Fenced):
        await way.api.put_pools(PoolsWanted(), fence(0))


async def test_a_node_may_have_many_pools_with_all_the_files_that_a_class_may_give(
    way: Way,
) -> None:
    files = (StagedFile(path="model", content=b"a" * MAX_INLINE),)
    runner = RunnerContract(command=("/app/runtime",), files=files)
    pools = [
        PoolWanted(
            class_name=f"class-{number}",
            image="sha256:" + "1" * 64,
            resources=resources(),
            minimum=1,
            maximum=1,
            runner=runner,
        )
        for number in range(40)
    ]
    seen = await way.api.put_pools(PoolsWanted(pools=tuple(pools)), fence(1))
    assert len(seen.pools) == 40


@pytest.mark.parametrize(
    "error",
    [
        errors.Invalid("which field"),
        errors.Refused("which policy", reason="NodePolicy"),
        errors.NotFound("no such thing"),
        errors.Conflict("not what you think"),
        errors.Fenced("too late"),
        errors.Unavailable("later", reason="NodeFull", retry_after=5),
        errors.Unconfirmed("nobody knows"),
        errors.Corrupt("needs a person"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_every_error_arrives_as_what_it_is(way: Way, error: errors.IsoletError) -> None:
    way.agent.fail_with = error
    for call in (way.api.put(wanted(), None), way.api.get("uid-1")):
        with pytest.raises(errors.IsoletError) as caught:
            await call
        assert type(caught.value) is type(error)
        assert (caught.value.reason, caught.value.message) == (error.reason, error.message)
        if isinstance(error, errors.Unavailable):
            assert isinstance(caught.value, errors.Unavailable)
            assert caught.value.retry_after == error.retry_after


async def test_watch_that_cannot_begin_says_why(way: Way) -> None:
    way.agent.fail_with = errors.Unavailable("not now", reason="EngineUnavailable")
    with pytest.raises(errors.Unavailable) as caught:
        async for _ in way.api.watch(0):
            pass
    assert caught.value.reason == "EngineUnavailable"


async def test_many_calls_at_once(way: Way) -> None:
    await asyncio.gather(*(way.api.put(wanted(f"uid-{n}"), fence(1)) for n in range(100)))
    assert len((await way.api.snapshot()).executions) == 100


@pytest.mark.parametrize("uid", ["../../etc/passwd", "a/b", "a" * 65, "", ".", "a\n", "a?b", "ü"])
async def test_a_uid_that_is_none_harms_nobody(way: Way, uid: str) -> None:
    await way.api.put(wanted("a"), None)
    for call in (way.api.get(uid), way.streams.exec(uid, ExecRequest(command=("true",)))):
        with pytest.raises((errors.Invalid, errors.NotFound)):
            await call
