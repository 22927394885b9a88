import asyncio
import contextlib
from datetime import timedelta

from fakes.containers import prints
from isolet.agent.engine import config


async def read_until(bench, since, last, container_id):
    """Events of one container up to the action `last`."""
    seen = []
    events = bench.engine.events(since=since, installation=bench.installation)
    async with asyncio.timeout(60), contextlib.aclosing(events):
        async for event in events:
            if event.container_id == container_id:
                seen.append(event)
                if event.action == last:
                    return seen


def actions(seen):
    return [event.action for event in seen if not event.action.startswith(("exec_", "attach"))]


async def test_a_life_is_told_and_told_again_from_a_moment_on(bench):
    asked = bench.config(bench.shell("exit 3", prints(code=3)))
    container_id = await bench.engine.create(asked)
    created = await bench.engine.inspect(container_id)
    since = created.created_at - timedelta(seconds=1)
    following = asyncio.create_task(read_until(bench, since, "destroy", container_id))
    await bench.engine.start(container_id)
    await bench.ended(container_id)
    await bench.engine.remove(container_id)

    seen = await following
    assert actions(seen) == ["create", "start", "die", "destroy"]
    for event in seen:
        assert event.container_name == asked.name
        assert event.labels == config.own_labels(asked.labels)
    [die] = [event for event in seen if event.action == "die"]
    assert die.exit_code == 3
    assert await read_until(bench, since, "destroy", container_id) == seen


async def test_without_a_moment_only_what_is_new_is_told(bench):
    old = await bench.engine.create(bench.config(bench.shell("true")))
    events = bench.engine.events(since=None, installation=bench.installation)
    async with contextlib.aclosing(events):
        first = asyncio.ensure_future(anext(events))
        new = []
        async with asyncio.timeout(60):
            while not first.done():  # What is made before it listens, it does not hear of.
                new.append(await bench.engine.create(bench.config(bench.shell("true"))))
                await asyncio.wait([first], timeout=0.5)
        assert (await first).container_id in new
        assert old not in new


async def test_another_installation_is_not_heard(bench):
    since = (await _created(bench)).created_at - timedelta(seconds=1)
    events = bench.engine.events(since=since, installation="another")
    async with contextlib.aclosing(events):
        first = asyncio.ensure_future(anext(events))
        await asyncio.wait([first], timeout=0.3)
        assert not first.done()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first


async def _created(bench):
    return await bench.engine.inspect(await bench.engine.create(bench.config(bench.shell("true"))))


async def test_out_of_memory_is_told_before_the_end(bench):
    async def grow(process):
        process.oom_killed = True
        return 137

    command = bench.shell("x=a; while :; do x=$x$x; done", grow)
    container_id = await bench.engine.create(bench.config(command, memory_bytes=64 << 20))
    since = (await bench.engine.inspect(container_id)).created_at
    following = asyncio.create_task(read_until(bench, since, "die", container_id))
    await bench.engine.start(container_id)
    told = actions(await following)
    assert told[-2:] == ["oom", "die"]


async def test_the_command_of_an_exec_is_not_told(real):
    container_id = await real.started(("sleep", "60"))
    since = (await real.engine.inspect(container_id)).created_at
    async with real.engine.exec(
        container_id,
        ("sh", "-c", "exit 9 # secret"),
        user="65532",
        working_dir="/tmp",
        stdin=False,
    ) as stream:
        async for _ in stream.output():
            pass
    seen = await read_until(real, since, "exec_die", container_id)
    assert "secret" not in repr(seen)
    assert (seen[-1].exec_id, seen[-1].exit_code) == (stream.id, 9)
