import asyncio
import contextlib
import random

import pytest

from fakes.containers import prints
from isolet.agent.engine import base
from isolet.base import errors

OUT, ERR = base.Stream.STDOUT, base.Stream.STDERR
EMOJI = "\N{GRINNING FACE}".encode()

EXACT = {
    "nothing": (b"", b""),
    "a line on each": (b"a\n", b"boom\n"),
    "many short lines": (b"a\n" * 1000, b"b\n" * 1000),
    "no newline at the end": (b"one\ntwo", b"err"),
    "empty lines": (b"\n\n\nx\n\n", b""),
    "a long line and a long rest": (b"x" * 100_000 + b"\n" + b"y" * 40_000, b""),
    "long lines and a long rest on both": (
        b"x" * 20_000 + b"\n",
        b"e" * 50_000 + b"\n" + b"f" * 20_000,
    ),
    "a long line at the end": (b"short\n" + b"x" * 40_000 + b"\n", b""),
    "just below the piece": (b"x" * 16_383 + b"\n" + b"y" * 16_383, b""),
    "exactly one piece": (b"x" * 16_384 + b"\n" + b"y\n", b""),
    "exactly two pieces, then nothing": (b"x" * 32_768 + b"\n", b""),
    "two pieces without an end": (b"x" * 32_768, b""),
    "one byte more": (b"x" * 16_385 + b"\n" + b"\n", b""),
    "one byte more without an end": (b"x" * 16_385, b""),
    "no text": (bytes(range(256)) * 8 + b"\n", b"\xff\xfe"),
    "NUL, CR and no UTF-8": (b"\x00\r\n\xc3\x28\r\n\x00", b"\x80\n"),
    "a character across the pieces": (b"x" * 16_382 + EMOJI + b"\n" + EMOJI, b""),
}


@pytest.mark.parametrize("stdout_and_stderr", EXACT.values(), ids=EXACT.keys())
async def test_output_is_what_was_written(bench, tmp_path, stdout_and_stderr):
    stdout, stderr = stdout_and_stderr
    command, changes = bench.copies(tmp_path, stdout, stderr)
    container_id = await bench.started(command, **changes)
    assert await bench.output(container_id) == {OUT: stdout, ERR: stderr}
    await bench.ended(container_id)
    assert await bench.output(container_id, follow=False) == {OUT: stdout, ERR: stderr}


@pytest.mark.parametrize("seed", range(4))
async def test_random_output_is_what_was_written(bench, tmp_path, seed):
    rng = random.Random(seed)
    stdout, stderr = (_lines(rng) for _ in range(2))
    command, changes = bench.copies(tmp_path, stdout, stderr)
    container_id = await bench.started(command, **changes)
    assert await bench.output(container_id) == {OUT: stdout, ERR: stderr}


def _lines(rng):
    sizes = [0, 1, 80, 16_383, 16_384, 16_385, 32_768, 49_152, 50_000]
    lines = [rng.randbytes(rng.choice(sizes)).replace(b"\n", b"\r") for _ in range(30)]
    return b"\n".join(lines) + rng.choice([b"", b"\n"])


async def test_two_writers_at_once_lose_nothing(bench):
    lines = b"".join(b"%d\n" % n for n in range(1, 20_001))

    async def both(process):
        await process.print(lines)
        await process.print(lines, ERR)
        return 0

    container_id = await bench.started(bench.shell("seq 20000 & seq 20000 >&2; wait", both))
    assert await bench.output(container_id) == {OUT: lines, ERR: lines}


async def test_a_reader_that_is_cancelled_resumes_exactly(bench):
    """A client that dies at a random moment, twenty times."""
    script = """
        for i in $(seq 40); do
          seq $((i * 100)) $((i * 100 + 99)); seq $((i * 100)) $((i * 100 + 99)) >&2
          head -c 20000 /dev/zero | tr '\\0' x; echo; sleep 0.05
        done
    """
    container_id = await bench.started(bench.shell(script, _many))
    got = dict.fromkeys(base.Stream, b"")
    reached = dict.fromkeys(base.Stream, 0)
    rng = random.Random(1)
    for _ in range(20):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0.005, 0.15)):
                await _read_on(bench.engine, container_id, got, reached)
    await _read_on(bench.engine, container_id, got, reached)
    numbers = [b"".join(b"%d\n" % (i * 100 + n) for n in range(100)) for i in range(1, 41)]
    assert got[ERR] == b"".join(numbers)
    assert got[OUT] == b"".join(part + b"x" * 20_000 + b"\n" for part in numbers)


async def _many(process):
    for i in range(1, 41):
        numbers = b"".join(b"%d\n" % (i * 100 + n) for n in range(100))
        await process.print(numbers + b"x" * 20_000 + b"\n")
        await process.print(numbers, ERR)
        await asyncio.sleep(0.005)
    return 0


async def _read_on(engine, container_id, got, reached):
    async with contextlib.aclosing(
        engine.output(container_id, after=reached, follow=True)
    ) as frames:
        async for frame in frames:
            assert frame.index == reached[frame.stream] + 1
            got[frame.stream] += frame.data
            reached[frame.stream] = frame.index


async def test_a_line_is_there_while_the_program_still_runs(bench):
    async def program(process):
        await process.print(b"x" * 20_000 + b"\n")
        await process.print(b"ready\n")
        return await _forever()

    script = "head -c 20000 /dev/zero | tr '\\0' x; echo; echo ready; exec sleep 60"
    container_id = await bench.started(bench.shell(script, program))
    got = b""
    async with asyncio.timeout(60):
        async with contextlib.aclosing(
            bench.engine.output(container_id, after={}, follow=True)
        ) as frames:
            async for frame in frames:
                got += frame.data
                if got.endswith(b"ready\n"):
                    break
    assert got == b"x" * 20_000 + b"\nready\n"
    assert (await bench.output(container_id, follow=False))[OUT] == got


async def _forever():
    await asyncio.Event().wait()


async def test_the_last_piece_of_a_long_line_does_not_wait_for_the_next(bench):
    async def program(process):
        await process.print(b"x" * 20_000 + b"\n")
        return await _forever()

    script = "head -c 20000 /dev/zero | tr '\\0' x; echo; exec sleep 60"
    container_id = await bench.started(bench.shell(script, program))
    got = b""
    async with asyncio.timeout(60):
        async with contextlib.aclosing(
            bench.engine.output(container_id, after={}, follow=True)
        ) as frames:
            async for frame in frames:
                got += frame.data
                if len(got) > 20_000:
                    break
    assert got == b"x" * 20_000 + b"\n"


async def test_following_ends_with_the_container_and_not_with_its_streams(bench):
    async def program(process):
        await process.print(b"bye\n")
        await asyncio.sleep(0.05)
        return 0

    container_id = await bench.started(
        bench.shell("echo bye; exec >/dev/null 2>&1; sleep 1", program)
    )
    assert (await bench.output(container_id))[OUT] == b"bye\n"
    assert (await bench.engine.inspect(container_id)).status is base.Status.EXITED


async def test_output_of_a_killed_container_is_there(bench):
    async def program(process):
        await process.print(b"one\n")
        return await _forever()

    container_id = await bench.started(bench.shell("echo one; exec sleep 60", program))
    async for _ in bench.engine.output(container_id, after={}, follow=True):
        break
    await bench.engine.kill(container_id)
    await bench.ended(container_id)
    assert (await bench.output(container_id))[OUT] == b"one\n"


async def test_output_of_a_container_that_is_removed_ends(bench):
    container_id = await bench.started(bench.shell("exec sleep 60"))
    reading = asyncio.create_task(bench.output(container_id))
    await asyncio.sleep(0.1)
    await bench.engine.remove(container_id)
    with contextlib.suppress(errors.NotFound, errors.Conflict):
        async with asyncio.timeout(60):
            await reading


async def test_fewer_frames_than_were_read_before_is_an_error(bench):
    container_id = await bench.started(bench.shell("echo one", prints(b"one\n")))
    await bench.ended(container_id)
    with pytest.raises(errors.Conflict) as lost:
        await bench.output(container_id, after={OUT: 5})
    assert lost.value.reason == "OutputLost"


async def test_output_of_what_is_not_there_is_not_found(bench):
    with pytest.raises(errors.NotFound):
        await bench.output("no-such-container")


async def test_a_slow_reader_holds_no_more_than_a_buffer(real):
    """64 MiB wait in the engine while nobody reads; this process does not grow with them."""
    container_id = await real.started(
        ("sh", "-c", "yes 0123456789012345678901234567890123456789 | head -c 67108864"),
        log_bytes=256 << 20,
        cpu_millis=2000,
    )
    await real.ended(container_id, within=60)
    size = 0
    before = _resident()
    async for frame in real.engine.output(container_id, after={}, follow=False):
        if size == 0:
            await asyncio.sleep(0.5)
            assert _resident() - before < 16 << 20
        size += len(frame.data)
        if size > 1 << 20:
            break
    assert _resident() - before < 16 << 20


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
