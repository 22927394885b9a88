"""Asking the parts whether they are well. Every question is bounded in time."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _get(
    connection: http.client.HTTPConnection, path: str, headers: dict[str, str]
) -> bytes | None:
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if answer.status == 200 else None


def unix_get(path: Path, url: str, timeout: float = 3) -> bytes | None:
    return _get(UnixConnection(path, timeout), url, {})


def http_get(port: int, url: str, timeout: float = 3) -> bytes | None:
    return _get(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout), url, {})


def https_get(
    port: int, url: str, ca: Path | None, token: str = "", timeout: float = 3
) -> bytes | None:
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    if ca is None:  # a part's own health page on loopback, with a certificate it made itself
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)
    return _get(connection, url, {"Authorization": f"Bearer {token}"} if token else {})


def engine_info(socket_path: Path, timeout: float = 60) -> dict[str, Any] | None:
    """What it says of itself; it runs programs for that, which a busy machine is slow at."""
    body = unix_get(socket_path, "/info", timeout)
    return json.loads(body) if body else None


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(taken: Iterable[int]) -> int:
    """A port on loopback that nobody listens on, below the range the kernel hands out itself."""
    avoid = set(taken)
    for _ in range(200):
        port = random.randint(20000, 30000)
        if port not in avoid and port_is_free(port):
            return port
    raise OSError("no free port found between 20000 and 30000 in 200 tries")
