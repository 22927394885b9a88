import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from fakes.containers import prints
from isolet.agent.engine import base
from isolet.base import errors, names


async def test_a_container_is_created_started_and_ends(bench):
    config = bench.config(bench.shell("exit 0", prints()))
    container_id = await bench.engine.create(config)
    created = await bench.engine.inspect(container_id)
    assert created.name == config.name
    assert created.status is base.Status.CREATED
    assert created.labels == config.labels
    assert (created.exit_code, created.started_at, created.finished_at) == (None, None, None)
    assert created.pid == 0

    await bench.engine.start(container_id)
    ended = await bench.ended(container_id)
    assert ended.status is base.Status.EXITED
    assert ended.created_at <= ended.started_at <= ended.finished_at
    assert (ended.exit_code, ended.oom_killed, ended.error, ended.pid) == (0, False, "", 0)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 125", 125), ("kill -9 $$", 137), ("kill -SEGV $$", 139)],
)
async def test_exit_codes_are_the_programs_own(bench, script, code):
    container_id = await bench.started(bench.shell(script, prints(code=code)))
    ended = await bench.ended(container_id)
    assert (ended.exit_code, ended.oom_killed) == (code, False)


@pytest.mark.parametrize(("path", "code"), [("/no/such", 127), ("/etc", 126)])
async def test_a_missing_program_is_the_inits_error(bench, path, code):
    said = f"exec {path} failed".encode()
    container_id = await bench.started(bench.command(path, program=prints(b"", said, code)))
    assert (await bench.ended(container_id)).exit_code == code
    assert said in (await bench.output(container_id))[base.Stream.STDERR]


async def test_what_cannot_be_started_is_refused_and_never_ran(bench):
    command, changes = bench.unstartable()
    container_id = await bench.engine.create(bench.config(command, **changes))
    with pytest.raises(errors.Refused) as refusal:
        await bench.engine.start(container_id)
    found = await bench.engine.inspect(container_id)
    assert found.error == refusal.value.message
    assert (found.started_at, found.exit_code) == (None, None)


async def test_the_image_entrypoint_does_not_wrap_the_command(real):
    container_id = await real.started(("echo", "ok"), image=os.environ["ISOLET_IMAGE_ENTRYPOINT"])
    assert (await real.output(container_id))[base.Stream.STDOUT] == b"ok\n"


async def test_a_taken_name_is_a_conflict_and_its_owner_is_found_by_name(bench):
    config = bench.config(bench.shell("sleep 60"))
    first = await bench.engine.create(config)
    with pytest.raises(errors.Conflict):
        await bench.engine.create(config)
    found = await bench.engine.inspect(config.name)
    assert found.id == first
    uid = config.labels[names.LABEL_UID]
    assert names.labels_match(found.labels, bench.installation, uid)


async def test_an_unknown_image_is_not_found_and_nothing_is_made(bench):
    config = bench.config(bench.shell("true"), image="sha256:" + "0" * 64)
    with pytest.raises(errors.NotFound):
        await bench.engine.create(config)
    assert await bench.engine.containers(bench.labels()) == []


async def test_an_unknown_runtime_is_refused_and_nothing_is_made(bench):
    with pytest.raises(errors.Refused):
        await bench.engine.create(bench.config(bench.shell("true"), runtime="no-such-runtime"))
    assert await bench.engine.containers(bench.labels()) == []


async def test_a_missing_volume_is_not_made_up(bench):
    mount = base.VolumeMount(name=f"{bench.installation}-gone", target="/data")
    with pytest.raises(errors.NotFound):
        await bench.engine.create(bench.config(bench.shell("true"), volumes=(mount,)))
    assert await bench.engine.containers(bench.labels()) == []
    with pytest.raises(errors.NotFound):
        await bench.engine.create(bench.config(bench.shell("true"), volumes=(mount,)))


async def test_the_list_shows_those_with_the_labels_and_no_others(bench):
    config = bench.config(bench.shell("true"))
    mine = await bench.engine.create(config)
    await bench.engine.create(
        bench.config(bench.shell("true"), labels=bench.labels(**{names.LABEL_KIND: "other"}))
    )
    [found] = await bench.engine.containers(config.labels)
    assert (found.id, found.name, found.status) == (mine, config.name, base.Status.CREATED)
    assert found.labels == config.labels
    assert await bench.engine.containers({names.LABEL_INSTALLATION: "nobody"}) == []


async def test_kill_ends_it_and_can_be_repeated(bench):
    container_id = await bench.started(bench.shell("sleep 60"))
    await bench.engine.kill(container_id)
    assert (await bench.ended(container_id)).exit_code == 137
    await bench.engine.kill(container_id)
    await bench.engine.remove(container_id)
    await bench.engine.kill(container_id)
    await bench.engine.stop(container_id, grace_seconds=1)


async def test_stop_sends_term_first(bench):
    container_id = await bench.started(bench.shell("echo on; exec sleep 600"))
    await says_something(bench, container_id)
    await bench.engine.stop(container_id, grace_seconds=20)
    assert (await bench.ended(container_id)).exit_code == 143
    await bench.engine.stop(container_id, grace_seconds=20)


async def says_something(bench, container_id):
    """Until then a real one may have no program that a signal would reach."""
    if not bench.is_fake:
        output = bench.engine.output(container_id, after={}, follow=True)
        async with contextlib.aclosing(output):
            await anext(output)


async def test_stop_kills_what_ignores_term(bench):
    command = bench.shell("trap '' TERM; echo on; while :; do sleep 1; done")
    if bench.is_fake:
        bench.engine.ignores_term.add(command)
    container_id = await bench.started(command)
    await says_something(bench, container_id)
    await bench.engine.stop(container_id, grace_seconds=1)
    assert (await bench.ended(container_id)).exit_code == 137


@pytest.mark.parametrize("end", ["kill", "stop", "remove"])
async def test_a_paused_container_is_thawed_before_it_is_ended(bench, end):
    container_id = await bench.started(bench.shell("exec sleep 60"))
    await bench.engine.pause(container_id)
    await bench.engine.pause(container_id)
    assert (await bench.engine.inspect(container_id)).status is base.Status.PAUSED
    async with asyncio.timeout(60):
        if end == "kill":
            await bench.engine.kill(container_id)
        if end == "stop":
            await bench.engine.stop(container_id, grace_seconds=5)
        if end != "remove":
            assert (await bench.ended(container_id)).exit_code in (137, 143)
        await bench.engine.remove(container_id)
    if not bench.is_fake:
        await _nothing_left_of(container_id)


async def _nothing_left_of(container_id):
    """No shim and no sandbox process names it any more."""
    wanted = container_id.encode()
    for _ in range(1200):
        lines = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(entry.read_bytes())
            except OSError:
                continue
        if not any(wanted in line for line in lines):
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"a process of {container_id} is left")


async def test_unpause_of_what_is_not_paused_is_no_error(bench):
    container_id = await bench.started(bench.shell("sleep 60"))
    await bench.engine.unpause(container_id)
    assert (await bench.engine.inspect(container_id)).status is base.Status.RUNNING


async def test_pause_of_what_does_not_run_is_a_conflict(bench):
    container_id = await bench.engine.create(bench.config(bench.shell("true")))
    with pytest.raises(errors.Conflict):
        await bench.engine.pause(container_id)


async def test_a_removed_container_is_gone_and_removal_can_be_repeated(bench):
    config = bench.config(bench.shell("sleep 60"))
    container_id = await bench.engine.create(config)
    await bench.engine.start(container_id)
    await bench.engine.remove(config.name)
    for name in (container_id, config.name):
        with pytest.raises(errors.NotFound):
            await bench.engine.inspect(name)
        await bench.engine.remove(name)
    again = await bench.engine.create(config)
    assert again != container_id


async def test_removals_at_once_all_end_well(bench):
    container_id = await bench.started(bench.shell("sleep 60"))
    await asyncio.gather(*(bench.engine.remove(container_id) for _ in range(4)))
    assert await bench.engine.containers(bench.labels()) == []


async def test_starting_what_runs_is_no_second_start(bench):
    container_id = await bench.started(bench.shell("sleep 60"))
    first = await bench.engine.inspect(container_id)
    await bench.engine.start(container_id)
    assert (await bench.engine.inspect(container_id)).started_at == first.started_at


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x?force=1", "é"])
async def test_a_name_that_is_none_never_becomes_another_path(real, name):
    with pytest.raises(errors.Invalid):
        await real.engine.inspect(name)


async def test_out_of_memory_is_told_from_a_kill(bench):
    async def grow(process):
        process.oom_killed = True
        return 137

    command = bench.shell("x=a; while :; do x=$x$x; done", grow)
    container_id = await bench.started(command, memory_bytes=64 << 20)
    ended = await bench.ended(container_id)
    assert (ended.exit_code, ended.oom_killed) == (137, True)
