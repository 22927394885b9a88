"""Certificates: what they hold, who may read them, what is refused."""

import datetime
import ipaddress
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from isolet.base import errors
from isolet.cli import pki

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def issuer() -> pki.Pair:
    return pki.authority(NOW)


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> object:
    return certificate.extensions.get_extension_for_class(kind).value


def test_an_authority_signs_and_is_no_leaf(issuer: pki.Pair) -> None:
    basics = extension(issuer.certificate, x509.BasicConstraints)
    assert basics == x509.BasicConstraints(ca=True, path_length=0)
    issuer.certificate.verify_directly_issued_by(issuer.certificate)


def test_a_nodes_certificate_names_the_node_and_serves(issuer: pki.Pair) -> None:
    made = pki.node(issuer, "node-1", ["10.0.0.11", "::1", "host.example"], NOW)
    names = extension(made.certificate, x509.SubjectAlternativeName)
    assert isinstance(names, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["node-1.node.isolet.dev", "host.example"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.0.0.11"),
        ipaddress.ip_address("::1"),
    ]
    usage = extension(made.certificate, x509.ExtendedKeyUsage)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert usage == x509.ExtendedKeyUsage(purposes)
    assert isinstance(made.key.curve, ec.SECP256R1)
    made.certificate.verify_directly_issued_by(issuer.certificate)


def test_a_clients_certificate_names_its_identity_and_cannot_serve(issuer: pki.Pair) -> None:
    made = pki.client(issuer, "isolet:operator", NOW)
    names = extension(made.certificate, x509.SubjectAlternativeName)
    assert isinstance(names, x509.SubjectAlternativeName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["isolet:operator"]
    usage = extension(made.certificate, x509.ExtendedKeyUsage)
    assert usage == x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])


def test_how_long_they_are_valid(issuer: pki.Pair) -> None:
    made = pki.node(issuer, "node-1", [], NOW, days=30).certificate
    assert made.not_valid_before_utc == NOW - datetime.timedelta(minutes=5)
    assert made.not_valid_after_utc == NOW + datetime.timedelta(days=30)
    life = issuer.certificate.not_valid_after_utc - NOW
    assert life == datetime.timedelta(days=3650)


@pytest.mark.parametrize(
    "name", ["", "Node", "a_b", "-a", "a..b", "a" * 64, "../x", "a.b." + "c" * 250, "*", "a\n"]
)
def test_a_name_that_is_none_is_refused(issuer: pki.Pair, name: str) -> None:
    with pytest.raises(errors.Invalid):
        pki.node(issuer, name, [], NOW)


@pytest.mark.parametrize("address", ["", "*.example", "10.0.0.1:7443", "a b", "999.1.1.1/8"])
def test_an_address_that_is_none_is_refused(issuer: pki.Pair, address: str) -> None:
    with pytest.raises(errors.Invalid):
        pki.node(issuer, "node-1", [address], NOW)


@pytest.mark.parametrize("identity", ["operator", "isolet:root", "", "isolet:operator\n"])
def test_an_identity_that_nobody_knows_is_refused(issuer: pki.Pair, identity: str) -> None:
    with pytest.raises(errors.Invalid):
        pki.client(issuer, identity, NOW)


def test_files_are_whole_and_keys_are_private(issuer: pki.Pair, tmp_path: Path) -> None:
    for _ in range(2):  # Renewing replaces.
        pki.write(tmp_path / "node-1", pki.node(issuer, "node-1", [], NOW), issuer)
    folder = tmp_path / "node-1"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")


def test_a_link_in_the_drafts_place_is_not_followed(issuer: pki.Pair, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "node-1"
    folder.mkdir()
    (folder / ".tls.key.new").symlink_to(victim)
    pki.write(folder, pki.node(issuer, "node-1", [], NOW), issuer)
    assert victim.read_text() == "precious"


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    pki.init(tmp_path / "pki", NOW)
    assert stat.S_IMODE((tmp_path / "pki" / "ca.key").stat().st_mode) == 0o600
    read = pki.read_authority(tmp_path / "pki")
    with pytest.raises(errors.Conflict):
        pki.init(tmp_path / "pki", NOW)
    assert pki.read_authority(tmp_path / "pki").key_pem() == read.key_pem()


def test_an_authority_that_is_not_there_or_broken_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound) as caught:
        pki.read_authority(tmp_path)
    assert f"isolet pki init {tmp_path}" in caught.value.message
    pki.init(tmp_path / "pki", NOW)
    (tmp_path / "pki" / "ca.key").write_text("no key")
    with pytest.raises(errors.Corrupt):
        pki.read_authority(tmp_path / "pki")
