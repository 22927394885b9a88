"""An engine that answers by a script: for each request, the first answer whose pattern fits."""

import asyncio
import json
import re


def answer(status=200, body=b"", headers=None):
    """A whole HTTP answer."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


PING = answer(200, b"OK", {"Api-Version": "1.41"})
HANG = object()


class Scripted:
    """`script` is a list of (pattern of "METHOD path", answers); the last answer repeats."""

    def __init__(self, path, script=()):
        self.path = str(path)
        self.requests = []
        self.bodies = []
        self._script = [(pattern, list(answers)) for pattern, *answers in script]
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.decode().split(" ", 2)
        size = re.search(r"Content-Length: (\d+)", head.decode())
        body = await reader.readexactly(int(size.group(1))) if size else b""
        request = f"{method} {target}"
        reply = self._reply(request)
        if not target.endswith("/_ping"):
            self.requests.append(request)
            self.bodies.append(body)
        if reply is HANG:
            await asyncio.Event().wait()
        writer.write(reply)
        await writer.drain()

    def _reply(self, request):
        for pattern, answers in self._script:
            if re.search(pattern, request):
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return PING if request.endswith("/_ping") else answer(404, {"message": request})
