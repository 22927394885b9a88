"""The engine is killed and comes back. It disturbs whoever else uses that daemon meanwhile."""

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from isolet.agent.engine import base
from isolet.base import errors
from tests.witness import Witness

OUT = base.Stream.STDOUT
SHIM = b"containerd-shim-runc-v2"
CLUSTER = Path(__file__).parents[3] / "hack" / "cluster"

pytestmark = pytest.mark.faults


async def test_a_killed_engine_loses_no_output_and_its_client_goes_on(real):
    # What one prints that ends while the engine is away is lost with the engine: it waits for it.
    count = "for i in $(seq 100); do echo $i; sleep 0.1; done"
    script = f"""trap 'on=yes' USR1; {count}; until [ "$on" ]; do sleep 0.1; done"""
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


async def test_what_a_killed_engine_had_started_ends_with_its_container(real):
    """It had not come to write the start down: the next one says that there never was any."""
    container_id = await real.started(("sleep", "600"))
    folder = Path((await real.engine.info()).data_root) / "containers" / container_id
    await _cluster("kill")
    _as_before_its_start(folder / "config.v2.json")
    await _cluster("restart")
    assert (await real.engine.inspect(container_id)).status is base.Status.CREATED
    assert _processes_of(container_id), "it runs all the same"
    await real.engine.remove(container_id)
    with pytest.raises(errors.NotFound):
        await real.engine.inspect(container_id)
    assert not _processes_of(container_id)


def _as_before_its_start(file):
    written = json.loads(file.read_text())
    written["State"] |= {"Running": False, "Pid": 0, "StartedAt": "0001-01-01T00:00:00Z"}
    file.write_text(json.dumps(written | {"HasBeenStartedBefore": False}))


def _processes_of(container_id):
    """Programs of the container; its shim is none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if container_id.encode() in words and not words.split(b"\0")[0].endswith(SHIM):
                found.append(folder.name)
    return found


async def _restart(real, container_id):
    await _cluster("restart")
    await asyncio.to_thread(Witness(real.socket).docker, "kill", "--signal", "USR1", container_id)


async def _cluster(what):
    await asyncio.to_thread(
        subprocess.run, [CLUSTER, what, "dockerd-0"], check=True, capture_output=True
    )
