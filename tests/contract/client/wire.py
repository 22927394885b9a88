"""Raw HTTP: what a broken or hostile caller would send, and what it gets back."""

import asyncio
import json
import ssl
from dataclasses import dataclass

from isolet.base import tls
from isolet.wire import http
from tests.contract.client.harness import NODE, Served


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        return str(json.loads(self.body)["reason"])

    @property
    def message(self) -> str:
        return str(json.loads(self.body)["message"])


Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def dial(served: Served, who: str | None = None) -> Pipe:
    """A connection over the Unix socket, or over TLS with the certificate of `who`."""
    if who is None:
        return await asyncio.open_unix_connection(str(served.socket))
    context = tls.client_context(tls.TLSFiles.in_folder(served.certificates / who))
    return await asyncio.open_connection(
        "127.0.0.1", served.port, ssl=context, server_hostname=http.server_name(NODE)
    )


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(head[0].split()[1]), headers, body)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except (OSError, ssl.SSLError):
        return


async def send(served: Served, raw: bytes, who: str | None = None) -> Answer:
    """Send exactly these bytes and read one answer."""
    reader, writer = await dial(served, who)
    try:
        writer.write(raw)
        await writer.drain()
        return await asyncio.wait_for(read_answer(reader), 60)
    finally:
        await hang_up(writer)


def request(
    method: str, path: str, body: bytes | None = None, headers: tuple[str, ...] = ()
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    framed = any(h.lower().startswith(("transfer-encoding", "content-length")) for h in headers)
    if body is not None and not framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
