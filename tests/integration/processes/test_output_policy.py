"""How much output is kept: the end of each stream, or all of it and an end for too much."""

import asyncio

from isolet.agent.operations import State
from isolet.agent.runner import ProcessRunner
from isolet.plan import reasons
from isolet.wire.process import OnOverflow, OutputPolicy

COUNT = "i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); done; printf 'no newline \\377'"


async def test_a_flood_keeps_its_end_on_little_disk(runner, request_of, node):
    script = "head -c 30000000 /dev/zero; echo; echo the end"
    await runner.start(request_of("sh", "-c", script, output=OutputPolicy(limit_bytes=10_000)))
    ended = await runner.wait("acme", "one")
    found = await runner.read_output("acme", "one")
    assert (ended.state, ended.exit_code) == (State.EXITED, 0)
    assert found.stdout == b"\0" * (10_000 - 9) + b"\nthe end\n"
    assert found.truncated == ("stdout",)
    kept = [p for p in (node.root / "state" / "output").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in kept) <= 20_000


async def test_fail_ends_it_at_the_limit(runner, request_of):
    policy = OutputPolicy(on_overflow=OnOverflow.FAIL, limit_bytes=1000)
    await runner.start(request_of("sh", "-c", "yes; sleep 60", output=policy))
    ended = await runner.wait("acme", "one")
    assert (ended.state, ended.reason) == (State.FAILED, reasons.OUTPUT_LIMIT_EXCEEDED)
    assert len((await runner.read_output("acme", "one")).stdout) == 1000


async def test_the_end_is_right_after_the_agent_was_away(node, request_of):
    runner = ProcessRunner(node.service)
    script = "sleep 1; " + COUNT % 2000 + "; sleep 1.5; echo; echo last"
    policy = OutputPolicy(limit_bytes=3000)
    await runner.start(request_of("sh", "-c", script, output=policy))
    await asyncio.sleep(1.5)
    await node.close()
    await asyncio.sleep(0.5)
    runner = ProcessRunner(await node.open())
    await runner.wait("acme", "one")
    found = await runner.read_output("acme", "one")
    whole = b"".join(b"%d\n" % i for i in range(2000)) + b"no newline \xff\nlast\n"
    assert found.stdout == whole[-3000:]
    assert (found.truncated, found.incomplete) == (("stdout",), False)
