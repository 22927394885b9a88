"""Stands between an engine client and the engine's socket, and fails what it is told to fail."""

import asyncio
import contextlib
import re
from dataclasses import dataclass

_REFUSAL = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\n"
    b"Content-Length: 21\r\nConnection: close\r\n\r\n" + b'{"message":"not now"}'
)


@dataclass
class Rule:
    """What to do with the next `times` requests whose "METHOD path" matches."""

    pattern: str
    action: str
    """hang: never forward; refuse: answer that the engine failed, and never forward; drop: forward,
    then close without the answer; cut: close after `after` bytes of the answer."""
    times: int = 1
    after: int = 0
    struck: int = 0


class Proxy:
    """One listening socket in front of another."""

    def __init__(self, listen, upstream):
        self.listen = str(listen)
        self.upstream = upstream
        self.seen = []
        self._rules = []
        self._server = None
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_unix_server(self._accept, self.listen)

    async def stop(self):
        """Stop listening and cut every connection."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rule(self, pattern, action, **more):
        rule = Rule(pattern, action, **more)
        self._rules.append(rule)
        return rule

    def obey(self):
        """Forget all rules."""
        self._rules.clear()

    def count(self, pattern):
        return sum(1 for request in self.seen if re.search(pattern, request))

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            await _closed(writer, writer.close)
            self._tasks.discard(task)

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b" ", 2)
        request = f"{method.decode()} {target.decode()}"
        self.seen.append(request)
        rule = self._struck(request)
        if rule and rule.action == "hang":
            await asyncio.Event().wait()
        if rule and rule.action == "refuse":
            writer.write(_REFUSAL)
            await writer.drain()
            return
        size = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(size.group(1))) if size else b""
        up_reader, up_writer = await asyncio.open_unix_connection(self.upstream)
        try:
            up_writer.write(head + body)
            if rule and rule.action == "drop":
                await up_reader.read()
                return
            limit = rule.after if rule else None
            await self._pump_both(reader, writer, up_reader, up_writer, limit)
        finally:
            await _closed(up_writer, up_writer.transport.abort)

    async def _pump_both(self, reader, writer, up_reader, up_writer, limit):
        down = asyncio.create_task(_pump(up_reader, writer, limit))
        up = asyncio.create_task(_pump(reader, up_writer, None))
        try:
            await down
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    def _struck(self, request):
        for rule in self._rules:
            if rule.struck < rule.times and re.search(rule.pattern, request):
                rule.struck += 1
                return rule
        return None


async def _closed(writer, close):
    """Close it, and wait until the loop has let go of it: there may be no later turn."""
    close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _pump(reader, writer, limit):
    left = limit
    while data := await reader.read(65536):
        if left is not None:
            data, left = data[:left], left - len(data)
        writer.write(data)
        await writer.drain()
        if left is not None and left <= 0:
            return
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
