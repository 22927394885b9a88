"""What a warm slot needs of an engine: an input that outlives its clients, and another name."""

import asyncio
import contextlib

import pytest

from isolet.agent.engine import base
from isolet.base import errors

OUT = base.Stream.STDOUT


async def repeats(process):
    """As the shell loop does: one line for each line."""
    while data := await process.read():
        await process.print(data)
    return 0


async def waiting(bench):
    script = 'while IFS= read -r l; do echo "$l"; done'
    return await bench.started(bench.shell(script, repeats), open_stdin=True)


async def printed(bench, container_id, wanted):
    """Follow the output until this much has come."""
    got = b""
    async with asyncio.timeout(60):
        frames = bench.engine.output(container_id, after={}, follow=True)
        async with contextlib.aclosing(frames):
            async for frame in frames:
                got += frame.data
                if len(got) >= len(wanted):
                    break
    assert got == wanted


async def test_input_goes_on_after_whoever_was_attached_has_gone(bench):
    container_id = await waiting(bench)
    async with bench.engine.attach(container_id) as stream:
        await stream.write(b"one\n")
        await printed(bench, container_id, b"one\n")
    async with bench.engine.attach(container_id) as stream:
        await stream.write(b"two\n")
        await printed(bench, container_id, b"one\ntwo\n")
    assert (await bench.engine.inspect(container_id)).status is base.Status.RUNNING


async def test_an_engine_that_goes_ends_the_attachment(faulty):
    container_id = await waiting(faulty)
    async with faulty.engine.attach(container_id) as stream:
        ended = asyncio.create_task(stream.ended())
        await asyncio.sleep(0.05)
        assert not ended.done()
        await faulty.away()
        async with asyncio.timeout(60):
            await ended
        with pytest.raises(errors.Unconfirmed):
            await stream.write(b"x\n")
    await faulty.back()


async def test_a_running_container_gets_another_name_and_keeps_its_id(bench):
    config = bench.config(bench.shell("exec sleep 600"))
    container_id = await bench.engine.create(config)
    await bench.engine.start(container_id)
    other = bench.config(bench.shell("exec sleep 600")).name
    for _ in range(2):
        await bench.engine.rename(container_id, other)
        found = await bench.engine.inspect(other)
        assert (found.id, found.name) == (container_id, other)
    with pytest.raises(errors.NotFound):
        await bench.engine.inspect(config.name)


async def test_a_name_that_another_has_is_a_conflict(bench):
    taken = bench.config(bench.shell("exec sleep 600"))
    await bench.engine.create(taken)
    container_id = await bench.started(bench.shell("exec sleep 600"))
    with pytest.raises(errors.Conflict):
        await bench.engine.rename(container_id, taken.name)
