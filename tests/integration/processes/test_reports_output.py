"""What people reported of systems like this one, for Processes: what they print.

docs/reports.md has all. A test is named after its report; most are tables over both places, a
sandbox of its own and a session, and one agent serves them all.
"""

import asyncio
import resource
import time
from pathlib import Path

import pytest

from isolet.agent.operations import State
from isolet.plan import reasons
from isolet.wire.process import OnOverflow, OutputPolicy, StagedFile
from tests.integration.processes.bench import INSIDE, MIB, OWN, PLACES, TOLD, TRAP

pytestmark = pytest.mark.asyncio(loop_scope="module")

both = pytest.mark.parametrize("where", PLACES)

ALL = bytes(range(256))
RANDOM = bytes(i * i * 7 % 251 ^ i % 256 for i in range(1000)) + b"\0\xff\xfe"


def failing_at(limit: int) -> OutputPolicy:
    return OutputPolicy(on_overflow=OnOverflow.FAIL, limit_bytes=limit)


WHOLE = {
    "C01 a line of 100000": ("head -c 100000 /dev/zero | tr '\\0' x; echo", b"x" * 100_000 + b"\n"),
    "C01 40000 without an end": ("head -c 40000 /dev/zero | tr '\\0' x", b"x" * 40_000),
    "C01 exactly 16 KiB": ("head -c 16384 /dev/zero | tr '\\0' x", b"x" * 16_384),
    "C01 exactly 16 KiB and an end": (
        "head -c 16384 /dev/zero | tr '\\0' x; echo",
        b"x" * 16_384 + b"\n",
    ),
    "C02 a letter in two writes": ("printf '\\303'; sleep 0.05; printf '\\251'", "é".encode()),
    "C02 a letter across 16 KiB": (
        "head -c 16382 /dev/zero | tr '\\0' x; printf '\\360\\237\\230\\200y'",
        b"x" * 16_382 + "😀y".encode(),
    ),
    "C04 any bytes": ("cat any", RANDOM),
    "C04 no text": ("printf '\\377\\376'", b"\xff\xfe"),
    "C07 nothing": ("true", b""),
}


@both
@pytest.mark.parametrize("what", WHOLE)
async def test_c01_c02_c04_c07_the_bytes_are_the_programs(bench, where, what):
    script, stdout = WHOLE[what]
    files = (StagedFile(path="any", content=RANDOM),)
    policies = (OutputPolicy(), failing_at(MIB))
    ends = (bench.sh(where, script, files=files, output=output) for output in policies)
    assert [ended.told for ended in await asyncio.gather(*ends)] == [(0, stdout, b"")] * 2


@both
async def test_c03_only_the_stream_that_was_cut_is_marked(bench, where):
    script = "cat euros; printf ok >&2"
    files = (StagedFile(path="euros", content="€".encode() * 2000),)
    ended = await bench.sh(where, script, files=files, output=OutputPolicy(limit_bytes=1000))
    assert ended.stdout == ("€".encode() * 2000)[-1000:]
    assert (ended.stderr, ended.truncated) == (b"ok", ("stdout",))
    assert ended.stdout.decode(errors="ignore") == "€" * 333


@both
async def test_c05_c08_streams_are_apart_and_each_in_order(bench, where):
    script = "i=0; while [ $i -lt 1000 ]; do echo a$i; echo b$i >&2; i=$((i+1)); done"
    ended = await bench.sh(where, script)
    lines = [b"".join(b"%c%d\n" % (letter, i) for i in range(1000)) for letter in b"ab"]
    assert ended.told == (0, *lines)


@both
async def test_c06_both_streams_are_there_after_the_end_and_after_disposal(bench, where):
    operation = await bench.start(where, "sh", "-c", "printf a; printf boom >&2; exit 1")
    await bench.runner.wait("acme", operation)
    before = await bench.runner.read_output("acme", operation)
    assert (before.stdout, before.stderr) == (b"a", b"boom")
    assert (await bench.end(operation)).told == (1, b"a", b"boom")
    assert await bench.runner.read_output("acme", operation) == before


@both
async def test_c09_two_writers_at_once_lose_nothing(bench, where):
    count = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done"
    ended = await bench.sh(where, f"({count}) & ({count}) >&2 & wait", timeout_seconds=120)
    numbers = b"".join(b"%d\n" % i for i in range(20_000))
    assert ended.told == (0, numbers, numbers)


async def test_c11_a_log_that_is_emptied_from_outside_is_told_and_the_end_recorded(bench, witness):
    script = "echo first; sleep 3; echo last; exit 4"
    operation = await bench.start(OWN, "sh", "-c", script)
    await bench.prints(operation, b"first\n")
    container = await bench.container(operation, witness)
    root = Path(witness.docker("info", "--format", "{{.DockerRootDir}}"))
    (log,) = (root / "containers" / container).glob("local-logs/container.log")
    with log.open("r+b") as file:
        file.truncate(0)
    began = time.monotonic()
    ended = await bench.end(operation)
    assert time.monotonic() - began < 120
    assert ended.how == (State.EXITED, reasons.NON_ZERO_EXIT, 4)
    assert ended.stdout.startswith(b"first\n")
    assert ended.stdout == b"first\nlast\n" or ended.incomplete


async def test_c12_the_log_driver_is_our_own_choice_and_readable(bench, witness):
    operation = await bench.start(OWN, "sh", "-c", "echo on; sleep 60")
    await bench.prints(operation, b"on\n")
    seen = witness.inspect(await bench.container(operation, witness))
    assert seen["HostConfig"]["LogConfig"]["Type"] == "local"
    await bench.runner.cancel("acme", operation)
    await bench.end(operation)


@both
async def test_c13_a_flood_ends_at_the_limit_and_everything_with_it(bench, where):
    limit = 60_000  # of lines this short the engine hands on some ten thousand a second
    ended = await bench.run(where, "yes", output=failing_at(limit), timeout_seconds=240)
    assert (ended.state, ended.reason) == (State.FAILED, reasons.OUTPUT_LIMIT_EXCEEDED)
    assert f"limit of {limit} bytes" in ended.message
    assert ended.stdout == b"y\n" * (limit // 2)


def peak() -> int:
    """Most bytes of memory that this process, which is the agent here, ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_c13_a_flood_that_ends_by_itself_costs_the_agent_no_memory(bench):
    before = peak()
    script = "head -c 32m /dev/zero | tr '\\0' x; echo; echo end"
    output = OutputPolicy(limit_bytes=1000)
    ended = await bench.sh(OWN, script, output=output, timeout_seconds=120)
    assert ended.how == (State.EXITED, reasons.SUCCEEDED, 0)
    assert ended.stdout == b"x" * 995 + b"\nend\n"
    assert ended.truncated == ("stdout",)
    assert peak() - before < 32 * MIB


@both
@pytest.mark.parametrize("size", [999, 1000, 1001])
async def test_c14_the_limit_is_exact(bench, where, size):
    script = f"head -c {size} /dev/zero | tr '\\0' x"
    ended = await bench.sh(where, script, output=failing_at(1000))
    if size <= 1000:
        assert ended.how == (State.EXITED, reasons.SUCCEEDED, 0)
    else:
        assert (ended.state, ended.reason) == (State.FAILED, reasons.OUTPUT_LIMIT_EXCEEDED)
    assert ended.stdout == b"x" * min(size, 1000)
    kept = await bench.sh(where, script, output=OutputPolicy(limit_bytes=1000))
    assert kept.how == (State.EXITED, reasons.SUCCEEDED, 0)
    assert (len(kept.stdout), kept.truncated == ("stdout",)) == (min(size, 1000), size > 1000)


@both
async def test_c15_with_fail_the_limit_is_of_both_streams_together(bench, where):
    script = "head -c 600 /dev/zero; head -c 600 /dev/zero >&2"
    ended = await bench.sh(where, script, output=failing_at(1000))
    assert (ended.state, ended.reason) == (State.FAILED, reasons.OUTPUT_LIMIT_EXCEEDED)
    assert "limit of 1000 bytes" in ended.message
    assert len(ended.stdout) + len(ended.stderr) == 1000


@both
async def test_c16_the_end_of_the_output_is_not_the_end(bench, witness, where):
    script = f"{TRAP}; echo on; exec >&- 2>&-; {TOLD}; exit 7"
    operation = await bench.start(where, "sh", "-c", script)
    await bench.prints(operation, b"on\n")
    await asyncio.sleep(1.5)
    assert (await bench.runner.poll("acme", operation)).state is State.RUNNING
    await bench.tell(operation, where, witness)
    ended = await bench.end(operation)
    assert ended.told == (7, b"on\n", b"")
    assert ended.seconds >= 1.5


async def test_c16_short_ones_in_numbers_all_end_with_their_lines(bench):
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; done"
    lines = b"".join(b"line %d\n" % i for i in range(1, 11))
    for where, count in ((OWN, 4), (INSIDE, 8)):
        for _ in range(3):
            ends = await asyncio.gather(*(bench.sh(where, script) for _ in range(count)))
            assert [ended.told for ended in ends] == [(0, lines, b"")] * count
