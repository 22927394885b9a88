"""Whether a document's token was signed for exactly this run: the only module that knows `jwt`.

The runner checks the same before it loads anything. Here it is checked so that a forged or expired
document never costs a sandbox.
"""

from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from isolet.base import errors

BOUND = ("job_id", "run_id", "app_id", "board_id", "node_id", "callback_url")
"""Claims that must be the document's own fields; `sub` likewise is its `user_id`."""
REFUSED = "BindingRefused"

_MIN_RSA_BITS = 2048


class BindingKey:
    """A public key and the one algorithm that goes with it."""

    def __init__(self, pem: bytes) -> None:
        """Reads it.

        Raises:
            Invalid: it is no public key that is strong enough.
        """
        try:
            self._key = serialization.load_pem_public_key(pem)
        except (ValueError, TypeError) as error:
            raise errors.Invalid("the binding key is no public key in PEM") from error
        self._algorithm = _algorithm(self._key)

    def verify(self, fields: Mapping[str, Any]) -> None:
        """Refuse a document whose `executor_jwt` is not for it, or not valid now.

        Raises:
            Invalid: as above (`BindingRefused`); the message tells no value.
        """
        token = fields.get("executor_jwt")
        if not token:
            raise _refused("executor_jwt is missing")
        try:
            claims = jwt.decode(
                token,
                self._key,  # type: ignore[arg-type]
                algorithms=[self._algorithm],
                options={"require": ["exp", "run_id"], "verify_aud": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            # The library lets some of what its parsers think of a token through as it is.
            raise _refused(f"executor_jwt is not valid: {type(error).__name__}") from None
        for name in BOUND:
            if name in claims and claims[name] != fields.get(name):
                raise _refused(f"executor_jwt is not for this {name}")
        if "sub" in claims and "user_id" in fields and claims["sub"] != fields["user_id"]:
            raise _refused("executor_jwt is not for this user_id")


def _algorithm(key: object) -> str:
    if isinstance(key, ed25519.Ed25519PublicKey):
        return "EdDSA"
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_RSA_BITS:
        return "RS256"
    raise errors.Invalid("the binding key must be Ed25519, P-256, or RSA of at least 2048 bits")


def _refused(text: str) -> errors.Invalid:
    return errors.Invalid(f"dispatch: {text}", reason=REFUSED)
