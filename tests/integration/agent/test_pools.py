"""Warm pools on a real engine: what a slot is given comes out as from a cold start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from isolet.agent import deadlines
from isolet.agent.host import ExecutionHost
from isolet.base import errors, names
from isolet.plan import reasons, warm
from isolet.plan.sandbox_model import Kind
from isolet.wire.execution import (
    Amendment,
    EnvVar,
    ExecRequest,
    ExecutionWanted,
    Medium,
    State,
    Step,
)
from isolet.wire.pool import PoolObserved, PoolsWanted, PoolWanted, WhenEmpty
from tests.witness import Witness, loops_below

CLASS = "warm"


def pool_of(spec, **changes: object) -> PoolWanted:
    """The pool that serves this spec."""
    base = {
        "class_name": CLASS,
        "class_uid": "class-1",
        "generation": 1,
        "image": spec.image,
        "runtime": spec.runtime,
        "user": spec.user,
        "resources": spec.resources,
        "medium": spec.workspace.medium,
        "minimum": 1,
        "maximum": 1,
    }
    return PoolWanted(**{**base, **changes})


def wanted(uid: str, spec, **changes: object) -> ExecutionWanted:
    base = {"uid": uid, "name": uid, "class_name": CLASS, "active_deadline_seconds": 600}
    return ExecutionWanted(spec=spec, **{**base, **changes})


async def until(look, within: float = 120.0):
    """What `look` gives once it gives something."""
    async with asyncio.timeout(within):
        while not (found := await look()):
            await asyncio.sleep(0.02)
    return found


async def pool_seen(service) -> PoolObserved:
    return (await service.node()).pools[0]


async def ready(service, count: int = 1) -> None:
    """Wait until so many slots wait, and nothing else is going on in the pool."""

    async def look() -> bool:
        found = await pool_seen(service)
        return (found.ready, found.creating, found.retiring) == (count, 0, 0)

    await until(look)


async def slots_of(node) -> list:
    """The containers that are labelled as slots."""
    labels = {names.LABEL_INSTALLATION: node.installation, names.LABEL_KIND: "slot"}
    seen = []
    for found in await node.engine.containers(labels):
        with contextlib.suppress(errors.NotFound):
            seen.append(await node.engine.inspect(found.id))
    return seen


async def ended(service, uid: str):
    async def look():
        found = await service.get(uid)
        return found if found.outcome is not None else None

    return await until(look)


async def stdout(service, uid: str) -> bytes:
    return (await service.output(uid, "stdout", 0, 1 << 20)).data


@pytest_asyncio.fixture
async def pooled(node) -> AsyncIterator:
    """The node; its pools are gone at the end, and no slot is left."""
    yield node
    if node.service is None:
        await node.open()
    await node.service.put_pools(PoolsWanted(), None)

    async def gone() -> bool:
        # Once its record is gone, so are container, disk and launch folder.
        return not any(record.kind is Kind.SLOT for record in await node.store.list())

    await until(gone)


async def test_any_bytes_come_through_a_slot(pooled, spec) -> None:
    service = pooled.service
    program = spec(
        "sh", "-c", 'printf %s "$A" | od -An -tx1; printf %s "$B" | wc -c; id -u; cat; exit 3'
    )
    await service.put_pools(PoolsWanted(pools=(pool_of(program),)), None)
    await ready(service)
    (slot,) = await slots_of(pooled)
    env = (
        EnvVar(name="A", value=b"a\nb\xff'\"\\ \t$(x)`"),
        EnvVar(name="B", value=b"\n" * (32 << 10)),
        EnvVar(name="isolet_line", value=b"mine"),
    )
    command = ("sh", "-c", f"{program.command[2]}", "it's", "", "two\nlines", "\u00e9")
    given = program.model_copy(update={"env": env, "command": command})
    seen = await service.put(wanted("u1", given), None)
    assert seen.step is Step.DISPATCHED
    result = await ended(service, "u1")
    assert (result.outcome.reason, result.outcome.exit_code) == (reasons.NON_ZERO_EXIT, 3)
    words = (await stdout(service, "u1")).split()
    assert bytes(int(w, 16) for w in words[:-2]) == env[0].value
    assert words[-2:] == [b"32768", b"65532"]
    assert (await pooled.store.get("u1")).container_id == slot.id


async def test_arguments_and_environment_are_those_of_a_cold_start(pooled, spec, python) -> None:
    """The same program twice, once in a slot: what it sees of itself must not differ."""
    show = (
        "import os, sys, json; json.dump([sys.argv[1:], sorted((k, v) for k, v in "
        "os.environb.items() if k != b'HOSTNAME').__repr__(), os.getcwd(), sys.stdin.read(), "
        "os.getuid(), sorted(os.listdir('/workspace'))], sys.stdout)"
    )
    bounds = {"memory_bytes": 128 << 20}
    base = spec("python3", "-c", show, "x\ny", "", "*", image=python, resources=bounds)
    base = base.model_copy(update={"env": (EnvVar(name="V", value=b"\xfe\n\xff"),)})
    service = pooled.service
    await service.put(wanted("cold", base), None)
    assert (await ended(service, "cold")).outcome.succeeded
    await service.put_pools(PoolsWanted(pools=(pool_of(base),)), None)
    await ready(service)
    assert (await service.put(wanted("warm", base), None)).step is Step.DISPATCHED
    assert (await ended(service, "warm")).outcome.succeeded
    assert await stdout(service, "warm") == await stdout(service, "cold")


@pytest.mark.parametrize("medium", list(Medium))
async def test_a_session_in_a_slot_takes_commands_and_leaves_nothing(pooled, spec, medium) -> None:
    service, session = pooled.service, spec(medium=medium)
    await service.put_pools(PoolsWanted(pools=(pool_of(session),)), None)
    await ready(service)
    assert (await service.put(wanted("s1", session), None)).step is Step.DISPATCHED

    async def running() -> bool:
        return (await service.get("s1")).step is Step.RUNNING

    await until(running)
    record = await pooled.store.get("s1")
    named = await pooled.engine.inspect(names.container_name(pooled.installation, "s1"))
    assert named.id == record.container_id
    request = ExecRequest(
        command=("sh", "-c", 'cat > f; wc -c < f; echo "$V"; id -u'),
        env=(EnvVar(name="V", value=b"a\nb"),),
        stdin=b"x" * 70000,
    )
    result = await service.exec("s1", request)
    assert (result.exit_code, result.stdout) == (0, b"70000\na\nb\n65532\n")
    await service.put_pools(PoolsWanted(), None)
    seen = await ExecutionHost(service).terminate("s1")
    assert seen.nothing_left
    with pytest.raises(errors.NotFound):
        await pooled.engine.inspect(record.container_id)

    await ExecutionHost(service).reclaim("s1")

    async def clean() -> bool:
        node = await service.node()
        left = node.strays or await pooled.store.list() or loops_below(pooled.root)
        return not left

    await until(clean)


async def test_a_duplicate_or_cancelled_uid_costs_no_slot(pooled, spec) -> None:
    service, program = pooled.service, spec("true")
    await service.put(wanted("was-here", program), None)
    await ended(service, "was-here")
    await service.put_pools(PoolsWanted(pools=(pool_of(program),)), None)
    await ready(service)
    (before,) = await slots_of(pooled)
    assert (await service.put(wanted("was-here", program), None)).outcome.succeeded
    await service.remove("cancelled-ahead", None)
    with pytest.raises(errors.Conflict, match="ended here before"):
        await service.put(wanted("cancelled-ahead", program), None)
    other = spec("false")
    with pytest.raises(errors.Conflict):
        await service.put(wanted("was-here", other), None)
    (after,) = await slots_of(pooled)
    assert after.id == before.id
    assert (await pool_seen(service)).ready == 1
    # Positive control: a new one does take it.
    await service.put(wanted("new", program), None)
    assert (await pooled.store.get("new")).container_id == before.id


async def test_of_many_at_once_one_gets_the_slot_and_none_is_lost(pooled, spec) -> None:
    service, program = pooled.service, spec("echo", "ran")
    pool = pool_of(program, when_empty=WhenEmpty.REFUSE)
    await service.put_pools(PoolsWanted(pools=(pool,)), None)
    await ready(service)
    (slot,) = await slots_of(pooled)
    tries = [service.put(wanted(f"u{number}", program), None) for number in range(32)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    refused = [r.reason for r in results if isinstance(r, errors.Refused)]
    assert refused == [reasons.NO_WARM_SLOT] * 31
    (won,) = [r.uid for r in results if not isinstance(r, Exception)]
    assert (await ended(service, won)).outcome.succeeded
    assert (await stdout(service, won), (await pooled.store.get(won)).container_id) == (
        b"ran\n",
        slot.id,
    )
    # Nothing is left of those that were refused: they may come again.
    for uid in {f"u{number}" for number in range(32)} - {won}:
        with pytest.raises(errors.NotFound):
            await service.get(uid)


async def test_who_waits_gets_a_slot_by_and_by(pooled, spec) -> None:
    service, program = pooled.service, spec("echo", "ran")
    pool = pool_of(program, when_empty=WhenEmpty.WAIT)
    await service.put_pools(PoolsWanted(pools=(pool,)), None)
    await ready(service)
    uids = ["w1", "w2", "w3"]
    for uid in uids:
        await service.put(wanted(uid, program), None)

    async def waits() -> bool:
        found = [(await service.get(uid)).waiting for uid in uids]
        return any(w is not None and w.reason == reasons.POOL_EMPTY for w in found)

    await until(waits)
    for uid in uids:
        assert (await ended(service, uid)).outcome.succeeded
        assert (await pooled.store.get(uid)).slot is not None
    assert (await pool_seen(service)).missed_total == 2


async def test_an_empty_pool_starts_cold(pooled, spec) -> None:
    service, program = pooled.service, spec("echo", "ran")
    await service.put_pools(PoolsWanted(pools=(pool_of(program),)), None)
    await ready(service)
    for uid in ("c1", "c2"):
        await service.put(wanted(uid, program), None)
    slots = []
    for uid in ("c1", "c2"):
        assert (await ended(service, uid)).outcome.succeeded
        slots.append((await pooled.store.get(uid)).slot is None)
    assert slots == [False, True]


async def test_limits_of_an_execution_hold_in_a_slot(pooled, spec) -> None:
    service, sleeps = pooled.service, spec("sh", "-c", "sleep 600")
    await service.put_pools(PoolsWanted(pools=(pool_of(sleeps, minimum=3, maximum=3),)), None)
    await ready(service, 3)
    given = sleeps.model_copy(update={"maximum_deadline_seconds": 2})
    await service.put(wanted("late", given, active_deadline_seconds=2), None)
    entry = [e for e in deadlines.read(pooled.run / "deadlines.json").entries if e.container_id]
    record = await pooled.store.get("late")
    (mine,) = [e for e in entry if e.container_id == record.container_id]
    assert mine.deadline_boottime == record.dispatched_boottime + 2
    missing = sleeps.model_copy(update={"command": ("/no/such",)})
    await service.put(wanted("missing", missing), None)
    await service.put(wanted("cancelled", sleeps), None)
    change = Amendment(active_deadline_seconds=600, state=State.TERMINATED)
    await service.amend("cancelled", change, None)
    assert {
        uid: (await ended(service, uid)).outcome.reason for uid in ("late", "missing", "cancelled")
    } == {
        "late": reasons.DEADLINE_EXCEEDED,
        "missing": reasons.START_FAILED,
        "cancelled": reasons.CANCELLED,
    }


async def test_an_agent_that_restarts_keeps_good_slots_and_gives_them_away(pooled, spec) -> None:
    program = spec("echo", "ran")
    await pooled.service.put_pools(
        PoolsWanted(pools=(pool_of(program, minimum=2, maximum=2),)), None
    )
    await ready(pooled.service, 2)
    before = {slot.id for slot in await slots_of(pooled)}
    await pooled.close()
    await pooled.open()
    await ready(pooled.service, 2)
    assert {slot.id for slot in await slots_of(pooled)} == before
    await pooled.service.put(wanted("u1", program), None)
    assert (await ended(pooled.service, "u1")).outcome.succeeded
    assert (await pooled.store.get("u1")).container_id in before
    assert await stdout(pooled.service, "u1") == b"ran\n"


async def test_an_agent_that_restarts_removes_doubtful_slots(pooled, spec, socket) -> None:
    """One that is another than it was made, one that has ended; the good one stays."""
    program = spec("true")
    await pooled.service.put_pools(
        PoolsWanted(pools=(pool_of(program, minimum=3, maximum=3),)), None
    )
    await ready(pooled.service, 3)
    altered, ended_, good = await slots_of(pooled)
    await pooled.close()
    witness = Witness(socket)
    witness.docker("update", "--pids-limit", "4000", altered.id)
    witness.docker("kill", ended_.id)
    await pooled.open()
    await ready(pooled.service, 3)
    after = {slot.id for slot in await slots_of(pooled)}
    assert after & {altered.id, ended_.id, good.id} == {good.id}


async def test_what_began_in_a_slot_outlives_an_agent_that_is_long_away(
    pooled, spec, monkeypatch
) -> None:
    """One that died before it heard of the start: its successor first reads what was said."""
    monkeypatch.setattr(warm, "ACK_SECONDS", 5.0)
    service, program = pooled.service, spec("sh", "-c", "sleep 9; echo ran")
    await service.put_pools(PoolsWanted(pools=(pool_of(program),)), None)
    await ready(service)
    monkeypatch.setattr(service._workers, "ensure", lambda uid: None)
    await service.put(wanted("u1", program), None)
    await asyncio.sleep(warm.ACK_SECONDS + 0.5)
    assert (await pooled.store.get("u1")).step is Step.DISPATCHED
    await pooled.close()
    await pooled.open()
    assert (await ended(pooled.service, "u1")).outcome.succeeded
    assert await stdout(pooled.service, "u1") == b"ran\n"


async def test_a_slot_that_dies_as_it_is_given_costs_nothing(pooled, spec, socket) -> None:
    """Killed by a stranger right before: what it was given is started cold, and runs once."""
    service, program = pooled.service, spec("echo", "ran", retain_seconds=60)
    await service.put_pools(PoolsWanted(pools=(pool_of(program),)), None)
    await ready(service)
    (slot,) = await slots_of(pooled)
    Witness(socket).docker("kill", slot.id)
    await service.put(wanted("u1", program), None)
    assert (await ended(service, "u1")).outcome.succeeded
    assert await stdout(service, "u1") == b"ran\n"
    assert (await pooled.store.get("u1")).container_id != slot.id
    await ExecutionHost(service).reclaim("u1")


async def test_an_edit_of_the_class_rolls_the_pool_and_touches_no_work(pooled, spec) -> None:
    service, sleeps = pooled.service, spec("sleep", "600")
    await service.put_pools(PoolsWanted(pools=(pool_of(sleeps, minimum=2, maximum=2),)), None)
    await ready(service, 2)
    await service.put(wanted("u1", sleeps), None)
    await ready(service, 2)
    old = {slot.id for slot in await slots_of(pooled)}
    mine = (await pooled.store.get("u1")).container_id
    edited = pool_of(sleeps, minimum=2, maximum=2, generation=2)
    await service.put_pools(PoolsWanted(pools=(edited,)), None)

    async def rolled() -> bool:
        now = {slot.id for slot in await slots_of(pooled)}
        return now & old == {mine} and len(now) == 3

    await until(rolled)
    await ready(service, 2)
    assert (await service.get("u1")).outcome is None
    await ExecutionHost(service).reclaim("u1")


async def test_a_slot_that_is_too_old_is_replaced(pooled, spec) -> None:
    service, program = pooled.service, spec("true")
    pool = pool_of(program, idle_timeout_seconds=10)
    await service.put_pools(PoolsWanted(pools=(pool,)), None)
    await ready(service)
    (before,) = await slots_of(pooled)

    async def replaced() -> bool:
        found = await slots_of(pooled)
        return len(found) == 1 and found[0].id != before.id

    await until(replaced)
    await ready(service)


async def test_a_pool_that_the_node_forbids_says_why(pooled, spec) -> None:
    huge = spec("true", resources={"memory_bytes": 400 << 30})
    await pooled.service.put_pools(PoolsWanted(pools=(pool_of(huge),)), None)

    async def said() -> str:
        return (await pool_seen(pooled.service)).message

    assert "more than the whole node gives" in await until(said)
    assert not await slots_of(pooled)
