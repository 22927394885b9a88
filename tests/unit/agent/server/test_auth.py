"""Identities in certificates, as a table."""

import ssl

import pytest

from isolet.agent.server import auth
from isolet.agent.server.auth import Right
from isolet.base import errors

ALL = frozenset(Right)
OPERATOR = frozenset({Right.WANT, Right.READ, Right.PROBE})
DISPATCH = frozenset({Right.DISPATCH, Right.PROBE})
STREAM = frozenset({Right.OUTPUT, Right.EXEC, Right.PROBE})


def certificate(*names: tuple[str, str], common: str = "anything") -> dict[str, object]:
    return {"subject": ((("commonName", common),),), "subjectAltName": names}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (certificate(("URI", "isolet:operator")), OPERATOR),
        (certificate(("URI", "isolet:stream")), STREAM),
        (certificate(("URI", "isolet:dispatch")), DISPATCH),
        (certificate(("URI", "isolet:operator"), ("URI", "isolet:stream")), OPERATOR | STREAM),
        (certificate(common="isolet:operator"), OPERATOR),
        (certificate(("DNS", "x.example"), common="isolet:stream"), STREAM),
        # A name that says what it is wins over the common name.
        (certificate(("URI", "isolet:dispatch"), common="isolet:operator"), DISPATCH),
        (certificate(("URI", "spiffe://x/operator"), common="isolet:stream"), STREAM),
    ],
)
def test_who_has_which_rights(given: dict[str, object], want: frozenset[Right]) -> None:
    assert auth.peer_of(given).rights == want


@pytest.mark.parametrize(
    "given",
    [
        {},
        certificate(),
        certificate(common="operator"),
        certificate(common="Isolet:operator"),
        certificate(common="isolet:operator "),
        certificate(("URI", "isolet:root"), common="isolet:operator"),
        certificate(("URI", "isolet:")),
        certificate(("DNS", "isolet:operator")),
        certificate(("email", "isolet:operator")),
        certificate(("URI", "https://isolet:operator")),
        {"subject": ((("organizationName", "isolet:operator"),),)},
    ],
)
def test_others_are_nobody(given: dict[str, object]) -> None:
    with pytest.raises(errors.Refused):
        auth.peer_of(given)


def test_a_right_that_is_missing_is_named() -> None:
    peer = auth.Peer("isolet:stream", STREAM)
    peer.demand(Right.EXEC)
    with pytest.raises(errors.Refused, match="isolet:stream may not want here"):
        peer.demand(Right.WANT)


def test_every_right_is_somebodys() -> None:
    assert frozenset().union(*auth.RIGHTS.values(), auth.NODE_RIGHTS) == ALL


def node(*names: str) -> auth.Peer:
    return auth.peer_of(certificate(*(("DNS", name) for name in names), ("IP Address", "10.0.0.1")))


def test_a_node_is_who_its_certificate_says_and_may_do_one_thing() -> None:
    peer = node("node-1.node.isolet.dev", "localhost")
    assert (peer.node, peer.rights) == ("node-1", {Right.COPY})
    assert node("a.b.node.isolet.dev").node == "a.b"


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("localhost",),
        ("node.isolet.dev",),
        ("*.node.isolet.dev",),
        ("node-1.node.isolet.dev.example",),
        ("node-1.node.isolet.dev", "node-2.node.isolet.dev"),
    ],
)
def test_who_is_no_one_node_is_nobody(names: tuple[str, ...]) -> None:
    with pytest.raises(errors.Refused):
        node(*names)


def test_a_clients_certificate_makes_nobody_a_node() -> None:
    names = (("URI", "isolet:operator"), ("DNS", "node-1.node.isolet.dev"))
    peer = auth.peer_of(certificate(*names))
    assert (peer.node, peer.rights) == (None, OPERATOR)


class _Connection:
    """What `tls_peer` asks of a request."""

    def __init__(self, peercert: object) -> None:
        self._peercert = peercert
        self.transport = self

    def get_extra_info(self, name: str) -> object:
        return {"peercert": self._peercert}[name]


def test_a_certificate_that_has_run_out_meanwhile_counts_no_more() -> None:
    end = "Mar  1 00:00:00 2026 GMT"
    seconds = ssl.cert_time_to_seconds(end)
    held = {**certificate(("URI", "isolet:operator")), "notAfter": end}
    request = _Connection(held)
    assert auth.tls_peer(request, now=seconds).rights == OPERATOR  # type: ignore[arg-type]
    with pytest.raises(errors.Refused, match="expired"):
        auth.tls_peer(request, now=seconds + 1)  # type: ignore[arg-type]
    for nothing in (None, {}):
        with pytest.raises(errors.Refused):
            auth.tls_peer(_Connection(nothing), now=0)  # type: ignore[arg-type]
