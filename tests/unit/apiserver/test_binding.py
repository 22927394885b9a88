"""A document's token is for exactly this run, and not past its time."""

import base64
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Public

from isolet.apiserver.binding import BindingKey
from isolet.base import errors

KEYS = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "RS256": rsa.generate_private_key(65537, 2048),
}
FIELDS = {"run_id": "run", "job_id": "job", "user_id": "user"}
LATER = datetime.now(UTC) + timedelta(hours=1)


def public(algorithm: str) -> bytes:
    return KEYS[algorithm].public_key().public_bytes(Encoding.PEM, Public.SubjectPublicKeyInfo)


def signed(algorithm: str = "EdDSA", key: object = None, **claims: object) -> str:
    base = {"run_id": "run", "exp": LATER}
    given = {k: v for k, v in {**base, **claims}.items() if v is not None}
    return jwt.encode(given, key or KEYS[algorithm], algorithm=algorithm)


def verify(token: str, algorithm: str = "EdDSA", **fields: object) -> None:
    BindingKey(public(algorithm)).verify({**FIELDS, "executor_jwt": token, **fields})


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_for_this_run_passes(algorithm: str) -> None:
    verify(signed(algorithm), algorithm)
    verify(signed(algorithm, job_id="job", sub="user", aud="runner"), algorithm)


OTHER = ed25519.Ed25519PrivateKey.generate()
REFUSED = {
    "of another run": signed(run_id="other"),
    "of another job": signed(job_id="other"),
    "of another app, which the document does not name": signed(app_id="app"),
    "of another user": signed(sub="other"),
    "for no run": signed(run_id=None),
    "that never expires": signed(exp=None),
    "past its expiry": signed(exp=datetime.now(UTC) - timedelta(seconds=1)),
    "not valid yet": signed(nbf=LATER),
    "signed by another key": signed(key=OTHER),
    "not signed": jwt.encode({"run_id": "run", "exp": LATER}, "", algorithm="none"),
    "signed with the public key as a secret": jwt.encode(
        {"run_id": "run", "exp": LATER}, "s" * 32, algorithm="HS256"
    ),
    "of another algorithm": signed("ES256"),
    "no token": "hello",
    "half a surrogate pair": signed() + "\ud800",
    "a head that is nested too deep": base64.urlsafe_b64encode(b"[" * 20_000).decode() + ".e30.e30",
    "a head that is not in base64": "\x80.e30.e30",
    "empty": "",
}


@pytest.mark.parametrize("token", [None, ""])
def test_a_token_that_is_not_there_is_said_to_be_missing(token: str | None) -> None:
    with pytest.raises(errors.Invalid, match=r"^dispatch: executor_jwt is missing$"):
        BindingKey(public("EdDSA")).verify({**FIELDS, "executor_jwt": token})


@pytest.mark.parametrize("token", REFUSED.values(), ids=REFUSED)
def test_any_other_is_refused(token: str) -> None:
    with pytest.raises(errors.Invalid) as found:
        verify(token)
    assert found.value.reason == "BindingRefused"
    assert "other" not in found.value.message


def test_a_key_that_is_weak_private_or_none_is_refused() -> None:
    private = KEYS["EdDSA"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    curve = ec.generate_private_key(ec.SECP384R1()).public_key()
    other = curve.public_bytes(Encoding.PEM, Public.SubjectPublicKeyInfo)
    for pem in (b"", b"secret", private, other):
        with pytest.raises(errors.Invalid):
            BindingKey(pem)
