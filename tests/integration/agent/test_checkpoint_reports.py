"""Checkpoints where others went wrong: torn copies, lying tools, odd files, full disks."""

import asyncio
import contextlib
import itertools
import struct
import subprocess
import uuid
from pathlib import Path

import pytest

from isolet.agent.host import ExecutionHost
from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.execution import ExecRequest, ExecutionSpec, Medium
from tests.integration.agent import checkpoints
from tests.witness import Witness

MIB = 1 << 20


def sh(script: str, **changes: object) -> ExecRequest:
    return ExecRequest(command=("sh", "-c", script), **changes)


async def a_session(host: ExecutionHost, spec, script: str, **changes: object) -> str:
    uid = (await host.provision(spec(**changes))).uid
    done = await host.exec(uid, sh(script))
    assert (done.exit_code, done.stderr) == (0, b"")
    return uid


# Every page gets the number of the round, one after the other, so at any moment the numbers fall by
# one at most, and once. The log of the second file follows that of the first by one line at most.
WRITER = """\
import mmap, os, struct
PAGES = 512
with open("pages", "w+b") as file:
    file.truncate(PAGES * 4096)
    pages = mmap.mmap(file.fileno(), 0)
first = os.open("first", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
second = os.open("second", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
n = 0
while True:
    n += 1
    for page in range(PAGES):
        pages[page * 4096 : page * 4096 + 8] = struct.pack("<Q", n)
        if page % 16 == 0:
            os.write(first, b"x")
            os.write(second, b"x")
"""


def is_torn(pages: bytes, first: bytes, second: bytes) -> bool:
    numbers = [struct.unpack_from("<Q", pages, at)[0] for at in range(0, len(pages), 4096)]
    steps = [a - b for a, b in itertools.pairwise(numbers) if a != b]
    return steps not in ([], [1]) or len(first) - len(second) not in (0, 1)


async def goes_on(host: ExecutionHost, uid: str, file: str) -> None:
    """Wait until whoever writes to this file has written more."""
    look = ExecRequest(command=("wc", "-c", file))
    before = (await host.exec(uid, look)).stdout
    async with asyncio.timeout(60):
        while (await host.exec(uid, look)).stdout == before:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("medium", list(Medium))
async def test_a_background_writer_of_dirty_pages_cannot_tear_it(node, host, spec, python, medium):
    start = f"cat >w.py <<'E'\n{WRITER}E\npython3 w.py >/dev/null 2>&1 &"
    large = {"output_bytes": 32 * MIB, "memory_bytes": 128 * MIB, "workspace_bytes": 64 * MIB}
    uid = await a_session(host, spec, start, medium=medium, image=python, resources=large)
    await host.exec(uid, sh("until [ -s second ]; do sleep 0.05; done"))
    # The control: without standing still the same files are torn.
    torn = False
    for _ in range(20):
        first, pages, second = [
            (await host.exec(uid, ExecRequest(command=("cat", each)))).stdout
            for each in ("first", "pages", "second")
        ]
        torn = torn or is_torn(pages, first, second)
        if torn:
            break
    assert torn, "the writer tears nothing, so this test could not fail"
    for number in range(3):
        name = f"c{number}"
        seen = await host.checkpoint(uid, uid=name)
        folder = node.root / "state" / "checkpoints" / "whole" / name
        parts = [checkpoints.by_tar(folder, each) for each in ("pages", "first", "second")]
        assert not is_torn(*parts), seen.manifest
        assert len(parts[0]) == 512 * 4096
    await goes_on(host, uid, "first")


async def test_a_command_and_a_checkpoint_wait_for_each_other(node, host, spec, socket):
    uid = await a_session(host, spec, "true", medium=Medium.DISK)
    script = "echo 1 >>log; until [ -e /tmp/go ]; do sleep 0.1; done; echo 2 >>log"
    running = asyncio.create_task(host.exec(uid, sh(script)))
    async with asyncio.timeout(60):
        while not await node.service.list_files(uid, ""):
            await asyncio.sleep(0.1)
    await node.service.put_checkpoint(checkpoints.wanted("c", uid), None)
    async with asyncio.timeout(60):
        while (seen := await node.service.get_checkpoint("c")).waiting is None:
            await asyncio.sleep(0.02)
    assert (seen.outcome, seen.waiting.reason) == (None, reasons.AWAITING_TURN)
    with pytest.raises(errors.Conflict) as caught:
        await host.exec(uid, sh("true", timeout_seconds=0.05))
    assert caught.value.reason == reasons.CHECKPOINTING
    after = asyncio.create_task(host.exec(uid, sh("echo after >>log")))
    await asyncio.sleep(0)  # It asks, and waits for its turn.
    (container,) = Witness(socket).containers(node.installation)
    Witness(socket).docker("exec", container, "touch", "/tmp/go")
    assert (await running).exit_code == 0
    assert (await after).exit_code == 0
    await checkpoints.ended(node.service, "c")
    folder = node.root / "state" / "checkpoints" / "whole" / "c"
    assert checkpoints.by_tar(folder, "log") == b"1\n2\n"
    assert (await host.exec(uid, ExecRequest(command=("tail", "-n1", "log")))).stdout == b"after\n"


@pytest.mark.parametrize("medium", list(Medium))
async def test_ids_above_what_old_headers_hold(node, host, spec, medium):
    user = "2097152:1718009175"
    uid = await a_session(host, spec, "echo mine >f; mkdir d", medium=medium, user=user)
    await host.checkpoint(uid, uid="c")
    folder = node.root / "state" / "checkpoints" / "whole" / "c"
    assert {(e["uid"], e["gid"]) for e in checkpoints.lines(folder)} == {(2097152, 1718009175)}
    again = await host.restore("c")
    found = await host.exec(again.uid, sh("cat f; echo more >>f; touch d/x; stat -c %u:%g f"))
    assert found.stdout == b"mine\n2097152:1718009175\n"


ODD = """\
umask 022; mkdir -p deep; cd deep; for i in $(seq 60); do mkdir d; cd d; done; echo bottom >f
cd /workspace
printf nul >"$(printf 'b\\377\\n ')"; : >empty; ln -s /etc/shadow out; ln -s nowhere gone
truncate -s 3000000 holes; echo data >>holes; mkdir closed; echo in >closed/f; chmod 500 closed
echo old >old; touch -d '1969-12-31 23:59:58' old; echo run >run; chmod 4711 run
for i in $(seq 200); do ln old cache-$i; done
"""


async def test_odd_names_times_modes_links_and_depths_come_back(node, host, spec, shell):
    uid = await a_session(host, spec, ODD, medium=Medium.DISK)
    look = "cd /workspace; find . -print0 | sort -z | xargs -0 stat -c '%n %F %a %h %y'"
    sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum; readlink out gone"
    before = (await host.exec(uid, sh(look + "\n" + sums))).stdout
    assert b"1969-12-31" in before
    await host.checkpoint(uid, uid="c")
    again = await host.restore("c")
    after = (await host.exec(again.uid, sh(look + "\n" + sums))).stdout
    assert after == before


async def test_a_fifo_in_memory_is_refused_and_one_on_a_disk_is_the_sandboxs_own(host, spec):
    uid = await a_session(host, spec, "mkfifo p")
    with pytest.raises(errors.Unavailable) as caught:
        await host.checkpoint(uid)
    assert caught.value.reason == reasons.CHECKPOINT_FAILED
    assert "has the type" in str(caught.value)
    assert (await host.exec(uid, ExecRequest(command=("true",)))).exit_code == 0
    # gVisor keeps one to itself: it never reaches the disk.
    uid = await a_session(host, spec, "mkfifo p; echo x >f", medium=Medium.DISK)
    assert (await host.checkpoint(uid)).manifest.entries == 2


async def test_what_its_owner_may_not_read_fails_it_and_harms_nothing(host, spec):
    for medium in Medium:
        uid = await a_session(host, spec, "echo x >f; chmod 0 f", medium=medium)
        with pytest.raises(errors.Unavailable) as caught:
            await host.checkpoint(uid)
        assert caught.value.reason == reasons.CHECKPOINT_FAILED
        assert (await host.exec(uid, sh("chmod 600 f"))).exit_code == 0
        assert (await host.checkpoint(uid)).manifest.entries == 2


async def test_a_folder_that_flips_with_a_link_shows_nothing_of_the_node(node, host, spec):
    flip = "(while :; do rm -rf out; mkdir out; rm -rf out; ln -s /etc out; done) >/dev/null 2>&1 &"
    uid = await a_session(host, spec, flip, medium=Medium.DISK)
    for number in range(3):
        await host.checkpoint(uid, uid=f"c{number}")
        folder = node.root / "state" / "checkpoints" / "whole" / f"c{number}"
        found = {e["name"]: e["type"] for e in checkpoints.lines(folder)}
        assert set(found) <= {".", "out"}
        assert found.get("out", "folder") in ("folder", "symlink")


async def test_an_ended_disk_is_taken_while_it_is_kept(node, host, spec):
    seen = await host.provision(
        spec("sh", "-c", "echo left >f", medium=Medium.DISK, retain_seconds=60)
    )
    await host.wait(seen.uid)
    await host.checkpoint(seen.uid, uid="c")
    folder = node.root / "state" / "checkpoints" / "whole" / "c"
    assert checkpoints.by_tar(folder, "f") == b"left\n"
    await host.terminate(seen.uid)
    assert (await host.restore("c")).started_at is not None


async def test_nothing_can_be_taken_of_what_is_gone(host, spec):
    seen = await host.provision(spec("true", medium=Medium.MEMORY, retain_seconds=60))
    await host.wait(seen.uid)
    with pytest.raises(errors.Unavailable) as caught:
        await host.checkpoint(seen.uid)
    assert caught.value.reason == reasons.CHECKPOINT_FAILED
    with pytest.raises(errors.NotFound):
        await host.checkpoint("never")


LIES = {
    "a member that leads out": "printf x >/tmp/x; cd /tmp; /bin/tar.real -cPf - ../etc/hostname",
    "zeroes without end": "exec cat /dev/zero",
    "words without end": "exec yes",
    "nothing at all": "exit 0",
    "a failure": "/bin/tar.real -cf - . ; exit 2",
    "half of it": "/bin/tar.real -cf - . | head -c 700",
}


@pytest.fixture
def lying(socket: str, python: str, tmp_path: Path):
    """An image whose tar is a script."""
    witness = Witness(socket)
    made = []

    def make(script: str) -> str:
        file = tmp_path / "tar"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        container = witness.docker("create", python, "true")
        try:
            real = tmp_path / "real"
            witness.docker("cp", "-L", f"{container}:/bin/tar", str(real))
            witness.docker("cp", str(real), f"{container}:/usr/bin/tar.real")
            witness.docker("cp", str(file), f"{container}:/usr/bin/tar")
            made.append(witness.docker("commit", container, f"isolet/lie:{uuid.uuid4().hex}"))
        finally:
            witness.docker("rm", "-f", container)
        return made[-1]

    yield make
    for image in made:
        witness.docker("rmi", "-f", image, check=False)


@pytest.mark.parametrize("name", LIES)
async def test_an_image_whose_tar_lies_gives_no_checkpoint(node, host, spec, lying, name):
    uid = await a_session(host, spec, "echo true >f", image=lying(LIES[name]))
    ticks = "(while :; do echo x >>/tmp/ticks; sleep 0.05; done) >/dev/null 2>&1 &"
    await host.exec(uid, sh(ticks))
    with pytest.raises(errors.Unavailable) as caught:
        await host.checkpoint(uid, uid="c", timeout_seconds=100)
    assert caught.value.reason == reasons.CHECKPOINT_FAILED
    assert list((node.root / "state" / "checkpoints").glob("*/*")) == []
    await goes_on(host, uid, "/tmp/ticks")


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


async def test_a_full_disk_leaves_nothing_and_a_healthy_agent(node, host, spec, tmp_path):
    image, place = tmp_path / "small.img", node.root / "state" / "checkpoints"
    uid = await a_session(
        host,
        spec,
        "head -c 40000000 /dev/urandom >f",
        medium=Medium.DISK,
        resources={"workspace_bytes": 50 * MIB},
    )
    run("truncate", "-s", "300M", str(image))
    run("mkfs.ext4", "-q", "-m0", str(image))
    run("mount", "-o", "loop", str(image), str(place))
    try:
        node.service._context.checkpoints.prepare()
        (place / "ballast").write_bytes(bytes(20 * MIB))
        with pytest.raises(errors.Unavailable) as caught:
            await host.checkpoint(uid, uid="c")
        assert "no room" in str(caught.value)
        assert list(place.glob("*/c*")) == []
    finally:
        run("umount", str(place))
    assert (await host.exec(uid, ExecRequest(command=("wc", "-c", "f")))).stdout == b"40000000 f\n"
    with contextlib.suppress(errors.IsoletError):
        await host.delete_checkpoint("c")
    assert (await host.checkpoint(uid, uid="c2")).on_node


async def spoilt(node, host, spec, spoil, what: ExecutionSpec) -> str:
    """The reason for which a copy that was changed is not restored; nothing may be left."""
    uid = await a_session(host, spec, "echo secret >f; mkdir d", medium=Medium.DISK)
    await host.checkpoint(uid, uid="c")
    spoil(node.root / "state" / "checkpoints" / "whole" / "c")
    with pytest.raises(errors.Unavailable) as caught:
        await host.restore("c", uid="again", spec=what)
    seen = await host.terminate("again")
    assert seen.nothing_left
    assert caught.value.reason == seen.outcome.reason
    return seen.outcome.reason


def cut(name: str):
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(data[:-10])

    return spoil


def flip(name: str, old: bytes, new: bytes):
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        assert old in data
        (folder / name).unlink()
        (folder / name).write_bytes(data.replace(old, new, 1))
        (folder / name).chmod(0o444)

    return spoil


SPOILT = {
    "a manifest of other words": flip("manifest", b'"entries":', b'"entries": '),
    "entries of another mode": flip("entries", b'"mode":"0644"', b'"mode":"4777"'),
    "entries cut short": cut("entries"),
    "content cut short": cut("content"),
    "another byte in a file": flip("content", b"secret", b"public"),
}


@pytest.mark.parametrize("medium", list(Medium))
@pytest.mark.parametrize("name", SPOILT)
async def test_a_copy_that_was_changed_is_not_restored(node, host, spec, name, medium):
    what = spec(medium=medium)
    assert await spoilt(node, host, spec, SPOILT[name], what) == reasons.CHECKPOINT_INVALID


async def test_a_copy_that_does_not_fit_is_not_restored(node, host, spec):
    script = "head -c 12000000 /dev/zero >f; for i in $(seq 900); do echo >n$i; done"
    uid = await a_session(host, spec, script, medium=Medium.DISK)
    await host.checkpoint(uid, uid="c")
    for number, (medium, size) in enumerate(
        [(Medium.DISK, 8 * MIB), (Medium.DISK, 12_100_000), (Medium.MEMORY, 12_100_000)]
    ):
        small = spec(medium=medium, resources={"workspace_bytes": size})
        with pytest.raises(errors.Unavailable) as caught:
            await host.restore("c", spec=small, uid=f"r{number}")
        assert caught.value.reason == reasons.CHECKPOINT_TOO_LARGE, (medium, size)
        assert (await host.terminate(f"r{number}")).nothing_left


async def test_the_node_keeps_no_more_than_its_policy_says(node, host, spec):
    kept = node.service._context.policy.checkpoints
    policy = node.service._context.policy.model_copy(
        update={"checkpoints": kept.model_copy(update={"count": 1})}
    )
    node.service._context.policy = policy
    uid = await a_session(host, spec, "echo x >f", medium=Medium.DISK)
    await host.checkpoint(uid, uid="c")
    with pytest.raises(errors.Refused) as caught:
        await host.checkpoint(uid, uid="d")
    assert caught.value.reason == reasons.CHECKPOINT_QUOTA
    await host.delete_checkpoint("c")
    assert (await host.checkpoint(uid, uid="d")).on_node


async def test_it_is_not_removed_while_it_is_read(node, host, spec):
    uid = await a_session(host, spec, "echo x >f", medium=Medium.DISK)
    await host.checkpoint(uid, uid="c")
    folders = node.service._context.checkpoints
    with folders.reading("c"):
        await node.service.remove_checkpoint("c", None)
        async with asyncio.timeout(60):
            while (seen := await node.service.get_checkpoint("c")).waiting is None:
                await asyncio.sleep(0.02)
        assert (seen.waiting.reason, seen.readers) == (reasons.CHECKPOINT_IN_USE, 1)
        assert folders.is_whole("c")
    await host.delete_checkpoint("c")
    assert not folders.is_whole("c")
