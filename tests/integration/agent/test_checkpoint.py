"""Checkpoints on a real engine: what is taken, of what, and what is refused."""

import asyncio
import hashlib

import pytest

from isolet.agent.host import ExecutionHost
from isolet.plan import reasons
from isolet.wire.checkpoint import Manifest
from isolet.wire.execution import EnvVar, ExecRequest, Medium
from tests.integration.agent import checkpoints

FILL = """\
umask 022; mkdir -p d/e; printf abc >d/e/f; chmod 640 d/e/f; ln -s ../x d/l; ln d/e/f d/hard
touch -d '2001-02-03 04:05:06' d/e/f; head -c 3000000 /dev/zero | tr '\\0' a >big; chmod 700 d
"""


async def filled(host: ExecutionHost, spec, script: str = FILL, **changes: object) -> str:
    seen = await host.provision(spec(**changes))
    result = await host.exec(seen.uid, ExecRequest(command=("sh", "-c", script)))
    assert (result.exit_code, result.stderr) == (0, b"")
    return seen.uid


@pytest.mark.parametrize("medium", list(Medium))
async def test_a_session_is_taken_and_goes_on(node, host, spec, medium) -> None:
    uid = await filled(host, spec, medium=medium)
    seen = await checkpoints.take(node.service, "c", uid)
    assert (seen.outcome.reason, seen.on_node) == (reasons.CHECKPOINT_READY, True), seen.outcome
    folder = node.root / "state" / "checkpoints" / "whole" / "c"
    raw = (folder / "manifest").read_bytes()
    assert seen.manifest_digest == "sha256:" + hashlib.sha256(raw).hexdigest()
    manifest = Manifest.model_validate_json(raw)
    assert seen.manifest == manifest
    entries = (folder / "entries").read_bytes()
    assert manifest.content_digest == "sha256:" + hashlib.sha256(entries).hexdigest()
    assert manifest.entries == len(entries.splitlines()) == 7
    assert manifest.size_bytes == 3_000_003
    # The witness: GNU tar, which reads the content without our code.
    assert checkpoints.by_tar(folder, "big") == b"a" * 3_000_000
    assert checkpoints.by_tar(folder, "d/e/f") == b"abc"
    result = await host.exec(uid, ExecRequest(command=("cat", "d/e/f")))
    assert result.stdout == b"abc"
    gone = await checkpoints.gone(node.service, "c")
    assert (gone.nothing_left, folder.exists()) == (True, False)


LOOK = """\
cd /workspace; find . -print0 | sort -z | xargs -0 stat -c '%n %F %a %u:%g %s %Y' | grep -v ' \\. '
find . -type f -print0 | sort -z | xargs -0 sha256sum; readlink d/l || true; stat -c %h d/hard
"""


async def looked_at(host: ExecutionHost, uid: str) -> bytes:
    """The workspace as the image's own tools see it."""
    result = await host.exec(uid, ExecRequest(command=("sh", "-c", LOOK)))
    assert result.exit_code == 0, result.stderr
    return result.stdout


BUSYBOX_CAN = FILL.replace("ln -s ../x d/l", "mkdir d/l")
"""Its tar gives symbolic links no times."""


@pytest.mark.parametrize(
    ("medium", "image", "fill"),
    [
        (Medium.DISK, "shell", FILL),
        (Medium.MEMORY, "shell", BUSYBOX_CAN),
        (Medium.MEMORY, "python", FILL),
    ],
)
async def test_it_is_restored_as_it_was_again_and_again(
    node, host, spec, request, medium, image, fill
) -> None:
    image = request.getfixturevalue(image)
    uid = await filled(host, spec, fill, medium=medium, image=image)
    before = await looked_at(host, uid)
    assert b"./d/e/f regular file 640 65532:65532 3 981173106" in before
    first = await host.checkpoint(uid, uid="c1")
    await host.exec(uid, ExecRequest(command=("sh", "-c", "rm -rf d; echo later >big")))
    await host.reclaim(uid)
    digests = [first.manifest.content_digest]
    for number in (1, 2):
        again = await host.restore(f"c{number}")
        assert await looked_at(host, again.uid) == before
        taken = await host.checkpoint(again.uid, uid=f"c{number + 1}")
        digests.append(taken.manifest.content_digest)
        await host.reclaim(again.uid)
    assert len(set(digests)) == 1
    assert {c.uid for c in await host.checkpoints()} == {"c1", "c2", "c3"}
    for number in (1, 2, 3):
        await host.delete_checkpoint(f"c{number}")
    assert await host.checkpoints() == ()
    assert list((node.root / "state" / "checkpoints").glob("*/*")) == []


async def test_a_manifest_holds_no_value_and_no_name_of_a_file(node, host, spec) -> None:
    planted = b"planted-4711"
    env = (EnvVar(name="GREETING", value=planted),)
    what = spec("sh", "-c", "echo x >named-4712; sleep 60", medium=Medium.DISK, env=env)
    seen = await host.provision(what)
    async with asyncio.timeout(60):
        while not (taken := await host.checkpoint(seen.uid)).manifest.size_bytes:
            await host.delete_checkpoint(taken.uid)
    folder = node.root / "state" / "checkpoints" / "whole" / taken.uid
    assert b"named-4712" in (folder / "entries").read_bytes()
    assert b"named-4712" not in (folder / "manifest").read_bytes()
    for file in (*folder.iterdir(), *(node.root / "state").glob("state.db*")):
        assert planted not in file.read_bytes(), file
        assert file.parent == folder or b"named-4712" not in file.read_bytes(), file
