import asyncio

import pytest

from fakes.containers import prints
from isolet.agent.engine import base
from isolet.base import errors

OUT = base.Stream.STDOUT


async def test_a_hung_call_ends_in_time_and_holds_up_no_other(faulty):
    stuck = await faulty.engine.create(faulty.config(faulty.shell("true")))
    others = [await faulty.engine.create(faulty.config(faulty.shell("true"))) for _ in range(4)]
    faulty.hang("inspect")
    hung = asyncio.create_task(faulty.engine.inspect(stuck))
    await asyncio.sleep(0.02)
    await asyncio.gather(*(faulty.engine.inspect(other) for other in others))
    assert not hung.done()
    with pytest.raises(errors.Unavailable) as raised:
        async with asyncio.timeout(60):
            await hung
    assert not isinstance(raised.value, errors.Unconfirmed)
    await faulty.engine.inspect(stuck)


async def test_a_create_that_hangs_is_unconfirmed_and_not_repeated(faulty):
    config = faulty.config(faulty.shell("true"))
    faulty.hang("create")
    with pytest.raises(errors.Unconfirmed):
        await faulty.engine.create(config)
    assert faulty.count("create") == 1
    with pytest.raises(errors.NotFound):
        await faulty.engine.inspect(config.name)


async def test_a_create_whose_answer_is_lost_is_found_by_name(faulty):
    config = faulty.config(faulty.shell("true"))
    faulty.drop("create")
    with pytest.raises(errors.Unconfirmed):
        await faulty.engine.create(config)
    assert faulty.count("create") == 1
    [found] = await faulty.engine.containers(faulty.labels())
    assert (await faulty.engine.inspect(config.name)).id == found.id


async def test_a_start_whose_answer_is_lost_ran_once(faulty):
    command = faulty.shell("echo ran", prints(b"ran\n"))
    container_id = await faulty.engine.create(faulty.config(command))
    faulty.drop("start")
    with pytest.raises(errors.Unconfirmed):
        await faulty.engine.start(container_id)
    assert faulty.count("start") == 1
    await faulty.ended(container_id)
    assert (await faulty.output(container_id))[OUT] == b"ran\n"


@pytest.mark.parametrize("call", ["kill", "create_volume"])
async def test_any_change_whose_answer_is_lost_is_unconfirmed(faulty, call):
    container_id = await faulty.started(faulty.shell("exec sleep 60"))
    faulty.drop(call)
    change = {
        "kill": lambda: faulty.engine.kill(container_id),
        "create_volume": lambda: faulty.engine.create_volume(
            f"{faulty.installation}-v", faulty.labels(), {}
        ),
    }[call]
    with pytest.raises(errors.Unconfirmed):
        await change()
    assert faulty.count(call) == 1


async def test_a_removal_whose_answer_is_lost_is_confirmed_by_looking(proxied):
    container_id = await proxied.started(("sleep", "60"))
    proxied.drop("remove")
    await proxied.engine.remove(container_id)
    assert proxied.count("remove") == 1
    assert await proxied.engine.containers(proxied.labels()) == []


async def test_a_removal_that_nobody_confirms_is_unconfirmed(faulty):
    container_id = await faulty.started(faulty.shell("exec sleep 60"))
    faulty.hang("remove")
    with pytest.raises(errors.Unconfirmed):
        await faulty.engine.remove(container_id)
    assert faulty.count("remove") == 1
    assert (await faulty.engine.inspect(container_id)).status is base.Status.RUNNING


async def test_an_engine_that_is_away_is_unavailable_and_comes_back(faulty):
    config = faulty.config(faulty.shell("exec sleep 60"))
    container_id = await faulty.engine.create(config)
    await faulty.engine.start(container_id)
    await faulty.away()
    for call in (
        faulty.engine.info(),
        faulty.engine.inspect(container_id),
        faulty.engine.kill(container_id),
        faulty.engine.create(config),
        faulty.engine.create_volume(f"{faulty.installation}-v", {}, {}),
        faulty.output(container_id),
    ):
        with pytest.raises(errors.Unavailable) as raised:
            await call
        assert not isinstance(raised.value, errors.Unconfirmed)
    await faulty.back()
    assert (await faulty.engine.inspect(container_id)).status is base.Status.RUNNING
    assert len(await faulty.engine.containers(faulty.labels())) == 1


async def test_streams_say_that_the_engine_went(faulty):
    container_id = await faulty.started(faulty.shell("exec sleep 60"))
    reading = asyncio.create_task(faulty.output(container_id))
    events = faulty.engine.events(since=None, installation=faulty.installation)
    hearing = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.3)
    await faulty.away()
    for task in (reading, hearing):
        with pytest.raises(errors.Unavailable):
            async with asyncio.timeout(60):
                await task
    await faulty.back()


@pytest.mark.parametrize("after", [1, 150, 400, 4000, 50_000])
async def test_output_that_is_cut_off_is_resumed_exactly(proxied, after):
    container_id = await proxied.started(("seq", "20000"))
    await proxied.ended(container_id)
    proxied.proxy.rule("/logs", "cut", after=after)
    got = []
    with pytest.raises(errors.Unavailable):
        await _read(proxied.engine, container_id, got)
    await _read(proxied.engine, container_id, got)
    assert b"".join(got) == b"".join(b"%d\n" % n for n in range(1, 20_001))


async def _read(engine, container_id, got):
    async for frame in engine.output(container_id, after={OUT: len(got)}, follow=False):
        got.append(frame.data)


async def test_an_answer_that_is_cut_off_is_no_answer(proxied):
    container_id = await proxied.engine.create(proxied.config(("true",)))
    proxied.proxy.rule("GET .*/json", "cut", after=500)
    with pytest.raises(errors.Unavailable):
        await proxied.engine.inspect(container_id)
    await proxied.engine.inspect(container_id)


async def test_a_caller_that_gives_up_leaves_nothing_open(proxied):
    container_id = await proxied.engine.create(proxied.config(("true",)))
    proxied.hang("inspect")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await proxied.engine.inspect(container_id)
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) < 10
    await proxied.engine.inspect(container_id)
