"""Ports that nobody but who asked for them gets."""

import itertools
import os
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _SPAN = 20_000, 10_000
_given = itertools.count(random.Random(os.getpid()).randrange(_SPAN))


def free_port() -> int:
    """A port of 127.0.0.1 at which nothing listens.

    It lies below those that the kernel gives to whoever names none. Of those, one may be anybody's
    by the time that it is listened at: another listener's, a client's, even that of a client that
    connects to itself.
    """
    most = min(_SPAN, int(RANGE.read_text().split()[0]) - _LOWEST)
    for _ in range(most):
        port = _LOWEST + next(_given) % most
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError(f"no port from {_LOWEST} to {_LOWEST + most} is free")
