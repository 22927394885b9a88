"""No value of a Process is anywhere but in its sandbox: not with the engine, nor with the agent."""

import os
import subprocess
import time
from pathlib import Path

from isolet.wire.execution import EnvVar
from isolet.wire.process import StagedFile
from tests.integration.processes.test_seed_cases import until

PLANTS = {"env": "plant-env-81c2", "stdin": "plant-stdin-77ab", "file": "plant-file-3e9d"}


def found_in(folder: Path) -> list[str]:
    """Files below `folder` that hold a plant; the layers of images are the images' own."""
    words = [word for plant in PLANTS.values() for word in ("-e", plant)]
    command = ["grep", "-rlaF", "--exclude-dir=overlay2", "--exclude-dir=proc", *words, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.split()


async def test_what_was_planted_is_found_nowhere(
    runner, request_of, session, node, witness, caplog
):
    began = time.time()
    values = {
        "env": (EnvVar(name="PLANTED", value=PLANTS["env"].encode()),),
        "stdin": PLANTS["stdin"].encode(),
        "files": (StagedFile(path="f", content=PLANTS["file"].encode()),),
    }
    check = 'test "$PLANTED" && grep -q plant f && grep -q plant && sleep 4'
    own = request_of("sh", "-c", check, **values)
    inside = request_of("sh", "-c", check, execution_uid=session, operation_id="two", **values)
    for request in (own, inside):
        await runner.start(request)
    places = [node.root, Path(os.environ["ISOLET_DATA"]), Path(os.environ["ISOLET_RUN"])]
    await until(lambda: not found_in(node.run))  # read by the launch: gone
    for place in places:
        assert found_in(place) == []
    for operation in ("one", "two"):
        assert (await runner.wait("acme", operation)).exit_code == 0
    for place in (*places, node.run):
        assert found_in(place) == []
    told = [
        witness.docker("events", "--since", f"{began - 1:.0f}", "--until", f"{time.time():.0f}")
    ]
    told += [str(witness.inspect(name)) for name in witness.containers(node.installation)]
    told += [str((await node.service.snapshot()).to_json()), caplog.text]
    assert [plant for plant in PLANTS.values() for text in told if plant in text] == []
