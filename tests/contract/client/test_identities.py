"""Mutual TLS: who gets in, what each identity may do, and certificates that change."""

import asyncio
import datetime
import ssl
from contextlib import aclosing
from pathlib import Path

import pytest

from isolet.agent.server.server import AgentServer
from isolet.base import errors, tls
from isolet.cli import pki
from isolet.wire import http
from isolet.wire.execution import Amendment, ExecRequest
from tests.contract.client import wire
from tests.contract.client.harness import LIMITS, NODE, TIMEOUTS, Served, hasty, wanted
from tests.contract.client.memory import MemoryAgent

ONE = http.execution("uid-1")
CALLS = {
    "put": wire.request("PUT", ONE, wanted().to_json()),
    "amend": wire.request("PATCH", ONE, Amendment(active_deadline_seconds=9).to_json()),
    "remove": wire.request("DELETE", ONE),
    "strays": wire.request("POST", http.STRAYS_REMOVE, b'{"names":[]}'),
    "get": wire.request("GET", ONE),
    "snapshot": wire.request("GET", http.EXECUTIONS),
    "node": wire.request("GET", http.NODE),
    "output": wire.request("GET", http.output("uid-1", "stdout")),
    "exec": wire.request("POST", http.exec_("uid-1"), ExecRequest(command=("true",)).to_json()),
    "grant": wire.request(
        "POST", http.grant("uid-1"), http.GrantRequest(reader="node-2", seconds=1).to_json()
    ),
    "part": wire.request("GET", http.part("uid-1", "manifest")),
    "metrics": wire.request("GET", http.METRICS),
    "healthz": wire.request("GET", http.HEALTHZ),
}
PROBES = {"metrics", "healthz"}
MAY = {
    "operator": {"put", "amend", "remove", "strays", "get", "snapshot", "node", "grant"} | PROBES,
    "stream": {"output", "exec"} | PROBES,
    "dispatch": PROBES,
    "node-2": {"part"},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("who", MAY)
async def test_each_identity_may_do_its_own_work(served: Served, who: str, call: str) -> None:
    answer = await wire.send(served, CALLS[call], who)
    if call in MAY[who]:
        assert answer.status != 403
        return
    assert (answer.status, answer.reason) == (403, "IdentityNotAllowed")
    assert served.agent.calls == []


async def test_watch_is_for_the_operator(served: Served) -> None:
    client = served.over_tls("stream")
    with pytest.raises(errors.Refused):
        await anext(client.watch(0))
    await client.close()


@pytest.mark.parametrize("who", ["stranger", "distrustful", "server-only"])
async def test_others_get_no_hearing(served: Served, who: str) -> None:
    """A foreign authority on either side, and a certificate that is no client's."""
    client = served.over_tls(who)
    for call in (client.put(wanted(), None), client.get("uid-1")):
        with pytest.raises(errors.Unavailable) as caught:
            await call
        assert not isinstance(caught.value, errors.Unconfirmed)
    await client.close()
    assert served.agent.calls == []


async def test_the_wrong_node_is_told_by_its_name(served: Served) -> None:
    client = served.over_tls(node="node-2")
    with pytest.raises(errors.Unavailable) as caught:
        await client.put(wanted(), None)
    assert caught.value.reason == "TLSRefused"
    await client.close()
    assert served.agent.calls == []


async def _refused(served: Served, context: ssl.SSLContext) -> None:
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await _put(served, context)
    assert served.agent.calls == []


async def _put(served: Served, context: ssl.SSLContext) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", served.port, ssl=context, server_hostname=http.server_name(NODE)
    )
    try:
        writer.write(CALLS["put"])
        await wire.read_answer(reader)
    finally:
        await wire.hang_up(writer)


def _trusting(served: Served) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(served.certificates / "operator" / "ca.crt")
    return context


async def test_no_certificate_no_hearing(served: Served) -> None:
    await _refused(served, _trusting(served))


async def test_tls_of_2006_is_not_spoken(served: Served) -> None:
    context = tls.client_context(tls.TLSFiles.in_folder(served.certificates / "operator"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    await _refused(served, context)


async def test_an_expired_certificate_is_refused(served: Served, tmp_path: Path) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)
    ours = pki.authority(past)
    pki.write(tmp_path / "expired", pki.client(ours, http.IDENTITY_OPERATOR, past, days=1), ours)
    pki.write(tmp_path / NODE, pki.node(ours, NODE, ["127.0.0.1"], past), ours)
    agent = MemoryAgent()
    server = AgentServer(agent, limits=LIMITS)
    port = await server.listen_tls("127.0.0.1", 0, tls.TLSFiles.in_folder(tmp_path / NODE))
    old = Served(agent, server, Path(), port, 0, tmp_path)
    client = old.over_tls("expired")
    with pytest.raises(errors.Unavailable) as caught:
        await client.put(wanted(), None)
    assert not isinstance(caught.value, errors.Unconfirmed)
    await client.close()
    await server.close()
    assert agent.calls == []


async def test_plain_http_on_the_tls_port_gets_nothing(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(CALLS["put"])
    assert await asyncio.wait_for(reader.read(), 60) == b""
    await wire.hang_up(writer)
    assert served.agent.calls == []


@hasty
async def test_a_handshake_that_stalls_is_given_up(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"\x16\x03\x01")
    assert await asyncio.wait_for(reader.read(), 60) == b""
    await wire.hang_up(writer)


class Rotating:
    """An agent whose certificates, and whose operator's, are made anew when asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issue()

    def issue(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        ours = pki.authority(now)
        pki.write(self.folder / NODE, pki.node(ours, NODE, ["127.0.0.1"], now), ours)
        pki.write(self.folder / "operator", pki.client(ours, http.IDENTITY_OPERATOR, now), ours)


async def test_new_certificates_are_taken_up_without_a_restart(tmp_path: Path) -> None:
    files = Rotating(tmp_path)
    agent = MemoryAgent()
    server = AgentServer(agent, limits=LIMITS)
    port = await server.listen_tls("127.0.0.1", 0, tls.TLSFiles.in_folder(tmp_path / NODE))
    served = Served(agent, server, Path(), port, 0, tmp_path)
    client = served.over_tls()
    stale = await wire.dial(served, "operator")
    await client.put(wanted(), None)
    async with aclosing(client.watch(0)) as changes:
        await anext(changes)
        files.issue()
        await server.refresh()
        rest = [change async for change in changes]  # The stream of the old certificate ends.
    assert len(rest) < 20
    stale[1].write(CALLS["get"])
    answer = await wire.read_answer(stale[0])
    assert (answer.status, answer.reason) == (503, "CertificatesChanged")
    await wire.hang_up(stale[1])
    await asyncio.sleep(1.1)  # The client looks at its files once a second.
    assert (await client.get("uid-1")).uid == "uid-1"
    await client.close()
    await server.close()


async def test_half_of_new_certificates_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Rotating(tmp_path)
    agent = MemoryAgent()
    server = AgentServer(agent, limits=LIMITS)
    port = await server.listen_tls("127.0.0.1", 0, tls.TLSFiles.in_folder(tmp_path / NODE))
    served = Served(agent, server, Path(), port, 0, tmp_path)
    now = datetime.datetime.now(datetime.UTC)
    other = pki.node(pki.authority(now), NODE, [], now)
    for broken in (other.key_pem(), b"no key"):
        (tmp_path / NODE / "tls.key").write_bytes(broken)
        await server.refresh()
    (tmp_path / NODE / "tls.key").unlink()
    await server.refresh()
    client = served.over_tls(timeouts=TIMEOUTS)
    await client.put(wanted(), None)
    await client.close()
    await server.close()
    assert "the old ones stay" in caplog.text
