"""What people reported of systems like this one, for Processes: what they are given.

docs/reports.md has all. A test is named after its report; most are tables over both places, a
sandbox of its own and a session, and one agent serves them all.
"""

import asyncio
import hashlib

import pytest

from isolet.base import errors
from isolet.wire.execution import EnvVar
from isolet.wire.process import OutputPolicy, StagedFile
from tests.e2e.test_secrets import CommandLines
from tests.integration.processes.bench import MIB, OWN, PLACES
from tests.unit.api.refusals import CREDENTIALS, HARMLESS

pytestmark = pytest.mark.asyncio(loop_scope="module")

both = pytest.mark.parametrize("where", PLACES)

ALL = bytes(range(256))


def numbered(size: int) -> bytes:
    """Bytes of which none can be missing or doubled unseen."""
    return b"".join(b"%01023d\n" % i for i in range(size // 1024 + 1))[:size]


# D: standard input.


@both
async def test_d01_no_input_and_empty_input_are_an_end_at_once(bench, where):
    for _ in range(2 if where == OWN else 5):
        ends = (bench.run(where, "cat", stdin=stdin) for stdin in (None, b"", None, b""))
        for ended in await asyncio.gather(*ends):
            assert ended.told == (0, b"", b"")
            assert ended.seconds < 60


@both
@pytest.mark.parametrize("size", [65_536, 65_537, 8 * MIB])
async def test_d03_input_of_any_size_comes_back(bench, where, size):
    data = numbered(size)
    output = OutputPolicy(limit_bytes=16 * MIB)
    ended = await bench.run(where, "cat", stdin=data, output=output, timeout_seconds=60)
    code, stdout, stderr = ended.told
    assert (code, len(stdout), stderr) == (0, size, b"")
    assert hashlib.sha256(stdout).digest() == hashlib.sha256(data).digest()


@both
async def test_d04_one_that_reads_only_the_start_ends_well(bench, where):
    ended = await bench.run(where, "head", "-n", "1", stdin=numbered(8 * MIB))
    assert ended.told == (0, numbered(1024), b"")


EXACT = {
    "four bytes": (("wc", "-c"), b"\x00\x01\x02\xff", b"4\n"),
    "line ends of Windows": (("cat",), b"a\r\nb\r\n", b"a\r\nb\r\n"),
    "every byte": (("cat",), ALL, ALL),
    "no end of line": (("cat",), b"x", b"x"),
}


@both
@pytest.mark.parametrize("what", EXACT)
async def test_d05_input_is_delivered_to_the_byte(bench, where, what):
    command, stdin, stdout = EXACT[what]
    assert (await bench.run(where, *command, stdin=stdin)).told == (0, stdout, b"")


@both
async def test_d06_nothing_that_is_printed_at_once_is_lost(bench, where):
    batches, size = (2, 4) if where == OWN else (3, 8)
    for _ in range(batches):
        ends = (bench.run(where, "echo", "hi", stdin=b"unread") for _ in range(size))
        assert [e.told for e in await asyncio.gather(*ends)] == [(0, b"hi\n", b"")] * size


async def test_d08_what_is_too_large_is_refused_with_field_and_bound(bench):
    most = 16 * MIB
    just = await bench.run(OWN, "wc", "-c", stdin=bytes(most), timeout_seconds=60)
    assert just.told == (0, b"%d\n" % most, b"")
    with pytest.raises(errors.Invalid, match=rf"stdin.*{most}"):
        await bench.start(OWN, "cat", stdin=bytes(most + 1))
    files = tuple(StagedFile(path=f"f{i}", content=bytes(most // 2)) for i in range(3))
    with pytest.raises(errors.Invalid, match=rf"files.*{most}"):
        await bench.start(OWN, "true", files=files)


# K: environment and secrets.


@both
async def test_k01_harmless_names_are_given(bench, where):
    env = tuple(EnvVar(name=name, value=b"v") for name in HARMLESS)
    ended = await bench.run(where, "/bin/cat", "/proc/self/environ", env=env)
    given = set(ended.stdout.split(b"\0"))
    assert {f"{name}=v".encode() for name in HARMLESS} <= given


NO_NAMES = ("API-KEY", "TOK\u200bEN", "1A", "A B", "", "A=B", "ÄPFEL")
PLANT = b"plant-k02"


@both
async def test_k02_telling_names_and_no_names_are_refused_and_no_value_repeated(bench, where):
    before = len((await bench.node.service.snapshot()).processes)
    for name in CREDENTIALS:
        request = await bench.request(where, "true", env=(EnvVar(name=name, value=PLANT),))
        with pytest.raises(errors.Refused, match=f"{name} looks like a credential") as caught:
            await bench.runner.start(request)
        assert PLANT.decode() not in str(caught.value)
    for name in NO_NAMES:
        with pytest.raises(ValueError, match="name") as wrong:
            EnvVar(name=name, value=PLANT)
        assert PLANT.decode() not in str(wrong.value)
    with pytest.raises(ValueError, match="value") as wrong:
        EnvVar(name="GREETING", value=PLANT * 10_000)
    assert PLANT.decode() not in str(wrong.value)
    assert len((await bench.node.service.snapshot()).processes) == before


@both
async def test_k03_no_command_line_shows_a_value(bench, where):
    words = {"env": "canary-k03-77", "stdin": "canary-k03-78", "file": "canary-k03-79"}
    control = "sleep-control-k03"
    lines = CommandLines({**words, "control": control})
    lines.start()
    values = {
        "env": (EnvVar(name="GREETING", value=words["env"].encode()),),
        "stdin": words["stdin"].encode(),
        "files": (StagedFile(path="f", content=words["file"].encode()),),
    }
    ended = await bench.sh(where, "echo $GREETING; cat f -; sleep 1", **values)
    pipe = asyncio.subprocess.PIPE
    shown = await asyncio.create_subprocess_exec("sh", "-c", f"read x # {control}", stdin=pipe)
    async with asyncio.timeout(60):
        while "control" not in lines.found:
            await asyncio.sleep(0.05)
    await shown.communicate(b"\n")
    lines.over.set()
    await asyncio.to_thread(lines.join)
    assert ended.stdout.decode() == f"{words['env']}\n{words['file']}{words['stdin']}"
    assert lines.found.keys() == {"control"}


@both
async def test_k05_empty_and_telling_values_are_the_users_own(bench, where, monkeypatch):
    for name in ("HOME", "DOCKER_HOST", "AGENT_ONLY"):
        monkeypatch.setenv(name, "/of/the/agent")
    values = {"HOME": b"", "DOCKER_HOST": b"x", "PATH": b""}
    env = tuple(EnvVar(name=name, value=value) for name, value in values.items())
    ended = await bench.run(where, "/bin/cat", "/proc/self/environ", env=env)
    given = dict(item.split(b"=", 1) for item in ended.stdout.split(b"\0") if item)
    assert {name: given[name.encode()] for name in values} == values
    assert b"AGENT_ONLY" not in given


@both
async def test_k06_a_name_twice_and_a_value_that_is_no_text_are_refused(bench, where):
    twice = tuple(EnvVar(name="A", value=value) for value in (b"1", b"2"))
    with pytest.raises(errors.Refused, match=r"^env\.1\.name: A is given twice$"):
        await bench.start(where, "true", env=twice)
    for value in (1, True, None, 1e3):
        with pytest.raises(ValueError, match="value"):
            EnvVar(name="A", value=value)
