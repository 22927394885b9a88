"""Who calls, and what they may ask for.

Over TLS the caller is who its certificate says: a URI name `isolet:<role>`, or that as common name
where the certificate has no such URI; one without either but with the DNS name of a node is that
node's agent. On the Unix socket the kernel says which user it is; root and the agent's own user
have every right, for they could reach the engine without us.
"""

import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from aiohttp import web

from isolet.base import errors
from isolet.wire import http

PREFIX = "isolet:"


class Right(Enum):
    """What a call needs."""

    WANT = auto()
    """Say what is wanted: put, amend, remove, strays."""
    READ = auto()
    """Read what is: Executions, the node, the watch stream."""
    OUTPUT = auto()
    """Read tenants' output."""
    EXEC = auto()
    """Run a command in a session."""
    COPY = auto()
    """Read a Checkpoint's files; another node needs a grant for each Checkpoint beside it."""
    DISPATCH = auto()
    """Reserve slots, begin, read and cancel runs."""
    PROBE = auto()
    """Liveness, readiness, metrics."""


RIGHTS: Mapping[str, frozenset[Right]] = {
    http.IDENTITY_OPERATOR: frozenset({Right.WANT, Right.READ, Right.PROBE}),
    http.IDENTITY_STREAM: frozenset({Right.OUTPUT, Right.EXEC, Right.PROBE}),
    http.IDENTITY_DISPATCH: frozenset({Right.DISPATCH, Right.PROBE}),
}


NODE_RIGHTS = frozenset({Right.COPY})
"""What another node may do: nothing of what an operator may."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A caller."""

    name: str
    rights: frozenset[Right]
    node: str | None = None
    """The node whose certificate it has; None for all who are no node."""

    def demand(self, right: Right) -> None:
        """Raises Refused unless the caller has `right`."""
        if right not in self.rights:
            raise errors.Refused(
                f"identity {self.name} may not {right.name.lower()} here",
                reason="IdentityNotAllowed",
            )


CALLER = web.RequestKey("caller", Peer)
"""Who sent a request, once that is known."""

Identify = Callable[[web.Request], Peer]
"""Tells who sent a request; raises Refused when nobody we know did."""


def local_peer(request: web.Request) -> Peer:
    """The user at the other end of a Unix socket."""
    uid = _peer_uid(request)
    if uid not in (0, os.geteuid()):
        raise errors.Refused("only root may use this socket", reason="IdentityNotAllowed")
    return Peer(f"local:{uid}", frozenset(Right))


def probe_peer(_request: web.Request) -> Peer:
    """Anyone, for the plain listener that serves nothing but probes."""
    return Peer("probe", frozenset({Right.PROBE}))


def tls_peer(request: web.Request, *, now: float) -> Peer:
    """The holder of the certificate that this connection was opened with.

    OpenSSL has verified it; that it has not run out since is checked here, because a connection may
    live longer than a certificate.
    """
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    if not certificate:
        raise errors.Refused("a client certificate is needed", reason="IdentityNotAllowed")
    if ssl.cert_time_to_seconds(certificate["notAfter"]) < now:
        raise errors.Refused("the client certificate has expired", reason="IdentityNotAllowed")
    return peer_of(certificate)


def stale() -> errors.Unavailable:
    """The answer on a connection whose certificates were checked against what no longer counts."""
    return errors.Unavailable(
        "the agent's certificates have changed; connect again",
        reason="CertificatesChanged",
        retry_after=0.1,
    )


def peer_of(certificate: Mapping[str, Any]) -> Peer:
    """Identity and rights of a verified certificate, as `SSLSocket.getpeercert` shows it."""
    names = sorted(_identities(certificate))
    if not names and (node := _node(certificate)) is not None:
        return Peer(f"node:{node}", NODE_RIGHTS, node)
    rights: frozenset[Right] = frozenset().union(*(RIGHTS.get(n, frozenset()) for n in names))
    if not rights:
        raise errors.Refused(
            "the client certificate names no node and none of " + ", ".join(RIGHTS),
            reason="IdentityNotAllowed",
        )
    return Peer("+".join(names), rights)


def _node(certificate: Mapping[str, Any]) -> str | None:
    """The one node that it is of."""
    found = [
        value.removesuffix(f".{http.NODE_DOMAIN}")
        for kind, value in certificate.get("subjectAltName", ())
        if kind == "DNS" and value.endswith(f".{http.NODE_DOMAIN}") and "*" not in value
    ]
    return found[0] if len(found) == 1 else None


def _identities(certificate: Mapping[str, Any]) -> set[str]:
    uris = {
        value
        for kind, value in certificate.get("subjectAltName", ())
        if kind == "URI" and value.startswith(PREFIX)
    }
    return uris or set(_common_names(certificate.get("subject", ())))


def _common_names(subject: Iterable[Iterable[tuple[str, str]]]) -> Iterable[str]:
    for part in subject:
        for kind, value in part:
            if kind == "commonName" and value.startswith(PREFIX):
                yield value


def _peer_uid(request: web.Request) -> int:
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return -1
    size = struct.calcsize("3i")
    _pid, uid, _gid = struct.unpack(
        "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(uid)
