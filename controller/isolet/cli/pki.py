"""Certificates of one installation: an authority, one certificate a node, one a client identity.

For those who have no authority of their own (cert-manager serves as well: docs/security.md says
what a certificate must hold). Keys are ECDSA P-256 and written with mode 0600; a file is replaced
by a rename, so that who reads it meanwhile sees the old or the new one and never a part.
"""

import datetime
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isolet.base import errors, wholefile
from isolet.wire import http

AUTHORITY_DAYS = 3650
LEAF_DAYS = 397
_BACKDATE = datetime.timedelta(minutes=5)
"""Other machines' clocks may be a little behind."""
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_MAX_DNS = 253


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """The key as PEM, not encrypted: a service must start without a person."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def authority(now: datetime.datetime, *, days: int = AUTHORITY_DAYS) -> Pair:
    """A new authority; it can sign certificates of nodes and clients, but no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Isolet authority")
    builder = _builder(name, name, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def node(
    issuer: Pair,
    name: str,
    addresses: Iterable[str],
    now: datetime.datetime,
    *,
    days: int = LEAF_DAYS,
) -> Pair:
    """A certificate for the agent of node `name`, which answers at these addresses.

    It is a client's as well: with it the agent reads Checkpoints from other nodes.

    Raises:
        Invalid: the name or an address cannot stand in a certificate.
    """
    server = http.server_name(name)
    if len(server) > _MAX_DNS or not all(_LABEL.match(part) for part in name.split(".")):
        raise errors.Invalid(f"{name!r} cannot be a node's name: lower-case DNS labels are needed")
    names: list[x509.GeneralName] = [x509.DNSName(server)]
    names += [_address(address) for address in addresses]
    purposes = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    return _leaf(issuer, name[:64], names, purposes, now, days)


def client(issuer: Pair, identity: str, now: datetime.datetime, *, days: int = LEAF_DAYS) -> Pair:
    """A certificate for a caller with this identity.

    Raises:
        Invalid: no agent knows the identity.
    """
    if identity not in http.IDENTITIES:
        raise errors.Invalid(f"identity must be one of {', '.join(http.IDENTITIES)}")
    names = [x509.UniformResourceIdentifier(identity)]
    return _leaf(issuer, identity, names, (ExtendedKeyUsageOID.CLIENT_AUTH,), now, days)


def init(folder: Path, now: datetime.datetime) -> None:
    """Make an authority in `folder`.

    Raises:
        Conflict: there is one; a second would not be trusted by those who know the first.
        OSError: it cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "ca.key").exists() or (folder / "ca.crt").exists():
        raise errors.Conflict(f"{folder} has an authority already")
    made = authority(now)
    wholefile.write(folder / "ca.key", made.key_pem(), mode=0o600)
    wholefile.write(folder / "ca.crt", made.certificate_pem(), mode=0o644)


def read_authority(folder: Path) -> Pair:
    """The authority that `init` made.

    Raises:
        NotFound: there is none.
        Corrupt: its files are not what they should be.
    """
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except FileNotFoundError as error:
        raise errors.NotFound(
            f"{error.filename} does not exist; make it with: isolet pki init {folder}"
        ) from None
    except (ValueError, TypeError) as error:
        raise errors.Corrupt(f"the authority in {folder} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise errors.Corrupt(f"{folder / 'ca.key'} is no elliptic-curve key")
    return Pair(certificate, key)


def write(folder: Path, made: Pair, issuer: Pair) -> None:
    """Write a certificate, its key and the authority as a Kubernetes TLS Secret names them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wholefile.write(folder / "tls.key", made.key_pem(), mode=0o600)
    wholefile.write(folder / "tls.crt", made.certificate_pem(), mode=0o644)
    wholefile.write(folder / "ca.crt", issuer.certificate_pem(), mode=0o644)


def _leaf(
    issuer: Pair,
    common_name: str,
    names: Iterable[x509.GeneralName],
    purposes: Iterable[x509.ObjectIdentifier],
    now: datetime.datetime,
    days: int,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(common_name), issuer.certificate.subject, key, now, days)
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage(purposes), False),
        (x509.SubjectAlternativeName(names), False),
        (authority_id, False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return Pair(builder.sign(issuer.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _address(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    if len(address) > _MAX_DNS or not all(_LABEL.match(p) for p in address.lower().split(".")):
        raise errors.Invalid(f"{address!r} is neither an IP address nor a DNS name")
    return x509.DNSName(address.lower())
