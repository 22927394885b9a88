import asyncio

import pytest

from fakes.containers import prints
from isolet.agent.engine import base
from isolet.base import errors

OUT, ERR = base.Stream.STDOUT, base.Stream.STDERR
BIG = bytes(range(256)) * (8 * 4096)


async def cat(process):
    while data := await process.read():
        await process.print(data)
    return 0


def run(bench, container_id, command, *, stdin=False, **more):
    place = {"user": "65532", "working_dir": "/workspace", **more}
    return bench.engine.exec(container_id, command, stdin=stdin, **place)


async def collect(stream):
    got = dict.fromkeys(base.Stream, b"")
    async for name, data in stream.output():
        got[name] += data
    return got


async def code_of(bench, exec_id):
    async with asyncio.timeout(60):
        while True:
            facts = await bench.engine.inspect_exec(exec_id)
            if not facts.running:
                return facts.exit_code
            await asyncio.sleep(0.01)


@pytest.fixture
async def container_id(bench):
    return await bench.started(bench.shell("exec sleep 600"))


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, len(BIG)])
async def test_input_of_any_size_goes_through_cat(bench, container_id, size):
    async with run(bench, container_id, bench.command("cat", program=cat), stdin=True) as stream:

        async def feed():
            await stream.write(BIG[:size])
            await stream.close_stdin()

        async with asyncio.timeout(60):
            got, _ = await asyncio.gather(collect(stream), feed())
    assert got == {OUT: BIG[:size], ERR: b""}
    assert await code_of(bench, stream.id) == 0


async def test_a_program_that_reads_only_the_start_still_has_its_output(bench, container_id):
    async def head(process):
        await process.print((await process.read()).split(b"\n")[0] + b"\n")
        return 0

    command = bench.command("head", "-n", "1", program=head)
    for _ in range(5):
        async with run(bench, container_id, command, stdin=True) as stream:

            async def feed(stream=stream):
                await stream.write(b"first\n" + BIG)
                await stream.close_stdin()

            async with asyncio.timeout(60):
                got, _ = await asyncio.gather(collect(stream), feed())
        assert got == {OUT: b"first\n", ERR: b""}
        assert await code_of(bench, stream.id) == 0


@pytest.mark.parametrize("code", [0, 7, 125, 126, 127])
async def test_exit_codes(bench, container_id, code):
    command = bench.shell(f"echo out; echo err >&2; exit {code}", prints(b"out\n", b"err\n", code))
    async with run(bench, container_id, command) as stream:
        assert await collect(stream) == {OUT: b"out\n", ERR: b"err\n"}
    assert await code_of(bench, stream.id) == code


async def test_without_input_it_reads_the_end_at_once(bench, container_id):
    async with run(bench, container_id, bench.command("cat", program=cat)) as stream:
        async with asyncio.timeout(60):
            assert await collect(stream) == {OUT: b"", ERR: b""}
    assert await code_of(bench, stream.id) == 0


async def test_user_and_folder(real):
    container_id = await real.started(("sleep", "60"))
    async with run(
        real, container_id, ("sh", "-c", "id -u; pwd"), user="1234:1234", working_dir="/tmp"
    ) as stream:
        assert (await collect(stream))[OUT] == b"1234\n/tmp\n"


async def test_work_goes_on_when_its_client_leaves(bench, container_id):
    async def program(process):
        await process.print(b"on\n")
        await asyncio.sleep(0.2)
        return 5

    command = bench.shell("echo on; sleep 3; exit 5", program)
    async with run(bench, container_id, command) as stream:
        exec_id = stream.id
        async for _ in stream.output():
            break
    assert (await bench.engine.inspect_exec(exec_id)).running
    assert await code_of(bench, exec_id) == 5


async def test_a_reader_and_a_writer_end_when_the_exec_is_left(bench, container_id):
    command = bench.shell("exec sleep 60")
    async with run(bench, container_id, command, stdin=True) as stream:
        reading = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.05)
    if bench.is_fake:
        await bench.engine.kill(container_id)
    async with asyncio.timeout(60):
        await asyncio.wait([reading])
    reading.exception()


@pytest.mark.parametrize("lived", [0.05, 0.15, 0.3])
async def test_it_ends_with_its_container(bench, lived):
    """The engine itself leaves some of these streams open for ever: hence several at once."""

    async def one():
        container_id = await bench.started(bench.shell("exec sleep 600"))
        async with run(bench, container_id, bench.shell("exec sleep 600")) as stream:
            reading = asyncio.create_task(collect(stream))
            await asyncio.sleep(lived)
            await bench.engine.kill(container_id)
            async with asyncio.timeout(60):
                await reading

    await asyncio.gather(*(one() for _ in range(6)))


async def test_not_in_a_container_that_is_paused_or_not_running_or_gone(bench, container_id):
    await bench.engine.pause(container_id)
    await _refuses(bench, container_id, errors.Conflict)
    await bench.engine.unpause(container_id)
    await bench.engine.kill(container_id)
    await bench.ended(container_id)
    await _refuses(bench, container_id, errors.Conflict)
    await bench.engine.remove(container_id)
    await _refuses(bench, container_id, errors.NotFound)


async def _refuses(bench, container_id, error):
    with pytest.raises(error):
        async with run(bench, container_id, bench.shell("true")):
            pytest.fail("it ran")


async def test_an_exec_that_nobody_made_is_not_found(bench):
    with pytest.raises(errors.NotFound):
        await bench.engine.inspect_exec("0" * 64)
