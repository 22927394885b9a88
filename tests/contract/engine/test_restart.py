"""The engine is killed and comes back. It disturbs whoever else uses that daemon meanwhile."""

import asyncio
import contextlib
import subprocess
from pathlib import Path

import pytest

from isolet.agent.engine import base
from isolet.base import errors

OUT = base.Stream.STDOUT
CLUSTER = Path(__file__).parents[3] / "hack" / "cluster"

pytestmark = pytest.mark.faults


async def test_a_killed_engine_loses_no_output_and_its_client_goes_on(real):
    # What one prints that ends while the engine is away is lost with the engine: it waits for it.
    script = "for i in $(seq 100); do echo $i; sleep 0.1; done; until [ -e go ]; do sleep 0.1; done"
    container_id = await real.started(("sh", "-c", script), log_bytes=64 << 20)
    before, up = await real.engine.info(), await real.engine.up_since()
    got, reached = b"", 0
    events = real.engine.events(since=None, installation=real.installation)
    hearing = asyncio.ensure_future(anext(events))
    restart = None
    for _ in range(600):
        try:
            frames = real.engine.output(container_id, after={OUT: reached}, follow=True)
            async with contextlib.aclosing(frames):
                async for frame in frames:
                    got, reached = got + frame.data, frame.index
                    if restart is None and reached == 10:
                        restart = asyncio.create_task(_restart(real, container_id))
            break
        except errors.Unavailable:
            await asyncio.sleep(0.1)
    await restart
    with pytest.raises(errors.Unavailable):
        await hearing
    assert got == b"".join(b"%d\n" % n for n in range(1, 101))
    assert (await real.ended(container_id)).exit_code == 0
    after = await real.engine.info()
    assert after.id == before.id
    assert await real.engine.up_since() > up


async def _restart(real, container_id):
    await asyncio.to_thread(
        subprocess.run, [CLUSTER, "restart", "dockerd-0"], check=True, capture_output=True
    )
    place = {"user": "65532", "working_dir": "/workspace", "stdin": False}
    async with real.engine.exec(container_id, ("touch", "go"), **place) as stream:
        async for _ in stream.output():
            continue
