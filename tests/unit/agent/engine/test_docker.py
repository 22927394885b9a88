"""What the client asks of the engine, in which order, and what it makes of odd answers."""

import dataclasses
import json

import pytest

from isolet.agent.engine import api, base, config, docker
from isolet.base import errors, names

from .samples import CONFIG, shown
from .scripted import HANG, Scripted, answer

QUICK = api.Timeouts(connect=0.2, read=0.2, scan=0.2, change=0.2, start=0.2, remove=0.5)
ID = "c" * 64


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(docker, "_POLL", (0.001,) * 6)


GONE = answer(404, {"message": "No such container"})
INSPECT, DELETE = f"GET .*/containers/{ID}/json", f"DELETE .*/containers/{ID}"


def inspect(status, **state):
    raw = shown()
    started = {} if status == "created" else {"StartedAt": "2026-01-02T03:04:06Z"}
    raw["State"] |= {"Status": status, **started, **state}
    return answer(200, raw)


def engine_on(scripted):
    return docker.DockerEngine(scripted.path, installation="i", timeouts=QUICK)


def asked(scripted):
    """Method and last part of each request."""
    return [
        f"{request.split()[0]} {request.split('?')[0].rpartition('/')[2]}"
        for request in scripted.requests
    ]


async def test_create_sends_the_body_and_nothing_else(tmp_path):
    script = [
        ("GET .*/volumes/v", answer(200, {})),
        ("POST .*/containers/create", answer(201, {"Id": ID})),
    ]
    async with Scripted(tmp_path / "s", script) as scripted:
        assert await engine_on(scripted).create(CONFIG) == ID
        assert scripted.requests[1] == f"POST /v1.41/containers/create?name={CONFIG.name}"
        assert json.loads(scripted.bodies[1]) == config.create_body(CONFIG)


async def test_an_answer_without_an_id_is_unconfirmed(tmp_path):
    script = [("POST .*/containers/create", answer(201, b"{}"), answer(201, b"nonsense"))]
    async with Scripted(tmp_path / "s", script) as scripted:
        for _ in range(2):
            with pytest.raises(errors.Unconfirmed):
                await engine_on(scripted).create(dataclasses.replace(CONFIG, volumes=()))


@pytest.mark.parametrize("call", ["kill", "stop"])
@pytest.mark.parametrize(
    ("status", "want"),
    [
        ("running", ["GET json", "POST {}"]),
        ("paused", ["GET json", "POST unpause", "POST {}"]),
        ("exited", ["GET json"]),
        ("created", ["GET json"]),
    ],
)
async def test_what_is_paused_is_thawed_before_it_is_ended(tmp_path, call, status, want):
    script = [(INSPECT, inspect(status)), ("POST", answer(204))]
    async with Scripted(tmp_path / "s", script) as scripted:
        engine = engine_on(scripted)
        await (engine.kill(ID) if call == "kill" else engine.stop(ID, grace_seconds=3))
        assert asked(scripted) == [step.format(call) for step in want]


@pytest.mark.parametrize(
    "reply", [answer(404), answer(409), answer(204)], ids=["gone", "ended", "ok"]
)
async def test_a_kill_that_came_too_late_is_no_error(tmp_path, reply):
    script = [(INSPECT, inspect("running")), ("POST .*/kill", reply)]
    async with Scripted(tmp_path / "s", script) as scripted:
        await engine_on(scripted).kill(ID)


async def test_a_thaw_that_fails_ends_nothing(tmp_path):
    script = [(INSPECT, inspect("paused")), ("POST .*/unpause", answer(500))]
    async with Scripted(tmp_path / "s", script) as scripted:
        with pytest.raises(errors.Unconfirmed):
            await engine_on(scripted).kill(ID)
        with pytest.raises(errors.Unconfirmed):
            await engine_on(scripted).remove(ID)
        assert "POST kill" not in asked(scripted)
        assert not any(request.startswith("DELETE") for request in scripted.requests)


async def test_an_unpause_of_what_runs_may_be_answered_with_500(tmp_path):
    script = [(INSPECT, inspect("running")), ("POST .*/unpause", answer(500))]
    async with Scripted(tmp_path / "s", script) as scripted:
        await engine_on(scripted).unpause(ID)


@pytest.mark.parametrize("status", [400, 500])
async def test_a_failed_start_that_never_ran_is_refused(tmp_path, status):
    reply = answer(status, {"message": "exec format error"})
    script = [(INSPECT, inspect("created")), ("POST .*/start", reply)]
    async with Scripted(tmp_path / "s", script) as scripted:
        with pytest.raises(errors.Refused, match="exec format error"):
            await engine_on(scripted).start(ID)


@pytest.mark.parametrize(
    "look",
    [inspect("running"), answer(500), HANG, GONE],
    ids=["runs", "no look", "silence", "gone"],
)
async def test_a_failed_start_that_may_have_run_is_unconfirmed(tmp_path, look):
    script = [(INSPECT, look), ("POST .*/start", answer(500))]
    async with Scripted(tmp_path / "s", script) as scripted:
        with pytest.raises(errors.Unconfirmed):
            await engine_on(scripted).start(ID)
        assert asked(scripted).count("POST start") == 1


REMOVALS = {
    "at once": ([answer(204)], [GONE], 1),
    "after a while": ([answer(204)], [inspect("removing"), inspect("removing"), GONE], 1),
    "gone meanwhile": ([GONE], [GONE], 1),
    "by another": ([answer(409)], [inspect("removing"), GONE], 1),
    "asked again when another gave up": (
        [answer(409), answer(204)],
        [*[inspect("dead")] * 6, GONE],
        2,
    ),
    "answer lost": ([b""], [inspect("removing"), GONE], 1),
    "failed yet gone": ([answer(500)], [GONE], 1),
    "engine silent while looking": ([answer(204)], [HANG, GONE], 1),
}


@pytest.mark.parametrize(("deletes", "looks", "count"), REMOVALS.values(), ids=REMOVALS.keys())
async def test_a_removal_ends_when_it_is_gone(tmp_path, deletes, looks, count):
    script = [(INSPECT, inspect("exited"), *looks), (DELETE, *deletes)]
    async with Scripted(tmp_path / "s", script) as scripted:
        engine = docker.DockerEngine(
            scripted.path, installation="i", timeouts=dataclasses.replace(QUICK, remove=5.0)
        )
        await engine.remove(ID)
        deletes = [request for request in scripted.requests if request.startswith("DELETE")]
        assert deletes == [f"DELETE /v1.41/containers/{ID}?force=1&v=1"] * count


NOT_CONFIRMED = {
    "done, it says": answer(204),
    "failed": answer(500),
    "answer lost": b"",
    "silence": HANG,
    "for ever in progress": answer(409),
}


@pytest.mark.parametrize("delete", NOT_CONFIRMED.values(), ids=NOT_CONFIRMED.keys())
async def test_a_removal_that_is_not_confirmed(tmp_path, delete):
    script = [(INSPECT, inspect("dead")), (DELETE, delete)]
    async with Scripted(tmp_path / "s", script) as scripted:
        with pytest.raises(errors.Unconfirmed):
            await engine_on(scripted).remove(ID)


async def test_a_removal_by_name_goes_on_by_id(tmp_path):
    script = [(f"GET .*/{CONFIG.name}/json", inspect("exited")), (DELETE, answer(204))]
    async with Scripted(tmp_path / "s", script) as scripted:
        await engine_on(scripted).remove(CONFIG.name)
        assert asked(scripted) == ["GET json", f"DELETE {ID}", "GET json"]


async def test_a_log_that_ends_while_the_sandbox_runs_is_not_the_end(tmp_path):
    script = [(INSPECT, inspect("running")), ("GET .*/logs", answer(200))]
    async with Scripted(tmp_path / "s", script) as scripted:
        with pytest.raises(errors.Unavailable):
            async for _ in engine_on(scripted).output(ID, after={}, follow=True):
                pass


def logs(*frames):
    return answer(200, b"".join(b"\x01\0\0\0" + len(f).to_bytes(4, "big") + f for f in frames))


async def test_what_a_live_log_left_out_is_read_from_the_stored_one(tmp_path):
    live, whole = logs(b" one\n"), logs(b" one\n", b" two")
    script = [
        (INSPECT, inspect("exited")),
        ("/logs.*follow=1", live),
        ("/logs.*follow=0", whole),
    ]
    async with Scripted(tmp_path / "s", script) as scripted:
        output = engine_on(scripted).output(ID, after={}, follow=True)
        assert [frame async for frame in output] == [
            base.OutputFrame(stream=base.Stream.STDOUT, index=1, data=b"one\n"),
            base.OutputFrame(stream=base.Stream.STDOUT, index=2, data=b"two"),
        ]


async def test_a_probe_is_labelled_and_removed_by_its_name(tmp_path):
    script = [
        ("POST .*/containers/create", answer(201, {"Id": ID})),
        ("HEAD", answer(500)),
        ("GET .*/json", inspect("created"), GONE),
        ("DELETE", answer(204)),
    ]
    async with Scripted(tmp_path / "s", script) as scripted:
        with pytest.raises(errors.Unavailable):
            await engine_on(scripted).image_has("sha256:1", ["/bin/sh"])
        [create, *_] = scripted.bodies
        assert json.loads(create)["Labels"] == {
            names.LABEL_INSTALLATION: "i",
            names.LABEL_KIND: "probe",
        }
        assert asked(scripted)[-2:] == [f"DELETE {ID}", "GET json"]
        assert not any("start" in request for request in scripted.requests)
