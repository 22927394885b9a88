import asyncio
import socket

import pytest

from isolet.agent.engine import api
from isolet.base import errors

from .scripted import HANG, PING, Scripted, answer

QUICK = api.Timeouts(connect=0.2, read=0.2, scan=0.2, change=0.2, start=0.2, remove=0.2)

WHAT_A_STATUS_MEANS = [
    (400, errors.Refused, errors.Refused),
    (403, errors.Refused, errors.Refused),
    (404, errors.NotFound, errors.NotFound),
    (409, errors.Conflict, errors.Conflict),
    (500, errors.Unavailable, errors.Unconfirmed),
    (501, errors.Refused, errors.Refused),
    (502, errors.Unavailable, errors.Unconfirmed),
    (503, errors.Unavailable, errors.Unavailable),
    (301, errors.Refused, errors.Refused),
]


@pytest.mark.parametrize(("status", "read", "change"), WHAT_A_STATUS_MEANS)
async def test_an_error_status(tmp_path, status, read, change):
    reply = answer(status, {"message": "because"})
    async with Scripted(tmp_path / "s", [("/x", reply)]) as engine:
        client = api.API(engine.path, QUICK)
        for call, want in ((client.get("/x"), read), (client.change("POST", "/x"), change)):
            with pytest.raises(errors.IsoletError) as raised:
                await call
            assert type(raised.value) is want
            assert raised.value.message == "because"
        assert engine.requests == ["GET /v1.41/x", "POST /v1.41/x"]


@pytest.mark.parametrize("status", [200, 201, 204, 304])
async def test_a_good_status(tmp_path, status):
    async with Scripted(tmp_path / "s", [("/x", answer(status))]) as engine:
        assert (await api.API(engine.path, QUICK).change("POST", "/x")).status == status


CUT = answer(200, b"0123456789")[:-3]
CUT_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"
NO_ANSWERS = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "no HTTP": b"SSH-2.0\r\n\r\n",
    "a body that is cut off": CUT,
    "chunks without an end": CUT_CHUNK,
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    "silence": HANG,
}


@pytest.mark.parametrize("reply", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_an_answer_that_is_none_is_unconfirmed_for_a_change_alone(tmp_path, reply):
    async with Scripted(tmp_path / "s", [("/x", reply)]) as engine:
        client = api.API(engine.path, QUICK)
        with pytest.raises(errors.Unavailable) as raised:
            await client.get("/x")
        assert not isinstance(raised.value, errors.Unconfirmed)
        for method in ("POST", "DELETE"):
            with pytest.raises(errors.Unconfirmed):
                await client.change(method, "/x")
        assert engine.requests == [f"{method} /v1.41/x" for method in ("GET", "POST", "DELETE")]


async def test_an_engine_that_is_not_there_is_never_unconfirmed(tmp_path):
    client = api.API(str(tmp_path / "none"), QUICK)
    for call in (client.get("/x"), client.change("POST", "/x"), client.version()):
        with pytest.raises(errors.Unavailable) as raised:
            await call
        assert not isinstance(raised.value, errors.Unconfirmed)


async def test_a_socket_that_nobody_accepts_on_is_given_up_on(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(path)
            with pytest.raises(errors.Unavailable, match="accepts no connection"):
                await api.API(path, QUICK).change("POST", "/x")


@pytest.mark.parametrize(
    ("offered", "spoken"), [("1.41", "1.41"), ("1.47", "1.47"), ("1.51", "1.51"), ("1.99", "1.51")]
)
async def test_the_version_is_agreed_once(tmp_path, offered, spoken):
    ping = answer(200, b"OK", {"Api-Version": offered})
    script = [("/_ping", ping, answer(500)), ("/x", answer(200))]
    async with Scripted(tmp_path / "s", script) as engine:
        client = api.API(engine.path, api.Timeouts())
        await client.get("/x")
        await client.get("/x")
        assert engine.requests == [f"GET /v{spoken}/x"] * 2


async def test_the_version_is_agreed_anew_after_the_engine_was_away(tmp_path):
    newer = answer(200, b"OK", {"Api-Version": "1.47"})
    script = [("/_ping", PING, newer), ("/x", answer(200))]
    async with Scripted(tmp_path / "s", script) as engine:
        client = api.API(engine.path, api.Timeouts())
        await client.get("/x")
        await engine.__aexit__()
        with pytest.raises(errors.Unavailable):
            await client.get("/x")
        await engine.__aenter__()
        await client.get("/x")
        assert engine.requests == ["GET /v1.41/x", "GET /v1.47/x"]


async def test_an_engine_that_is_too_old_is_refused(tmp_path):
    ping = answer(200, b"OK", {"Api-Version": "1.40"})
    async with Scripted(tmp_path / "s", [("/_ping", ping)]) as engine:
        with pytest.raises(errors.Refused) as raised:
            await api.API(engine.path, api.Timeouts()).get("/x")
        assert raised.value.reason == "EngineTooOld"


@pytest.mark.parametrize("offered", ["", "one", "1", "1.x"])
async def test_a_version_that_is_none(tmp_path, offered):
    ping = answer(200, b"OK", {"Api-Version": offered})
    async with Scripted(tmp_path / "s", [("/_ping", ping)]) as engine:
        with pytest.raises(errors.Unavailable):
            await api.API(engine.path, QUICK).get("/x")


async def test_calls_do_not_wait_for_each_other(tmp_path):
    script = [("/hung", HANG), ("/x", answer(200))]
    async with Scripted(tmp_path / "s", script) as engine:
        client = api.API(engine.path, api.Timeouts(read=240))
        await client.version()
        hung = [asyncio.create_task(client.get("/hung")) for _ in range(50)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(client.get("/x") for _ in range(50)))
        for task in hung:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)


@pytest.mark.parametrize("name", ["a", "isolet-0a", "a.b_c-d", "0" * 64])
def test_a_name(name):
    assert api.quoted(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a?b", "a b", "a\r\nb", "ä", "%2e"])
def test_a_name_that_is_none(name):
    with pytest.raises(errors.Invalid):
        api.quoted(name)
