"""The runner that others start from: it refuses what is not exactly one envelope."""

import json
import runpy
import subprocess
import sys
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from isolet.apiserver import binding
from isolet.plan.dispatch_document import envelope
from isolet.plan.dispatch_events import Decoder
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES, DispatchEvent, Mode
from tests.arch import tree

RUNTIME = tree.ROOT / "examples" / "runner" / "runtime.py"
READY = b"ready\n"


def served(stdin: bytes, *more: str | Path) -> tuple[int, list[DispatchEvent]]:
    done = subprocess.run(
        [sys.executable, RUNTIME, "--once", "warm", *more],
        input=stdin,
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.startswith(READY)
    decoder = Decoder()
    events = list(decoder.feed(done.stdout[len(READY) :]))
    decoder.finish()
    return done.returncode, events


def test_a_document_gives_events_and_a_result() -> None:
    document = {"run_id": "r", "payload": [{"echo": 1}, {"echo": "a\nb"}]}
    code, events = served(envelope(Mode.STREAM, json.dumps(document, indent=1).encode()))
    assert code == 0
    assert [event.type for event in events] == ["progress", "progress", "completed"]
    assert events[-1].event["payload"] == {"mode": "stream", "result": "a\nb"}


ONE = envelope(Mode.CALLBACK, b"{}")
REFUSED = {
    "a second document": (ONE + ONE, "more than one line"),
    "a second document on the line": (ONE[:-1] + ONE, "not one JSON document"),
    "a missing newline": (ONE[:-1], "no newline at the end"),
    "nothing": (b"", "no newline at the end"),
    "8 MiB + 1": (
        b'{"mode":"stream","payload":{"a":"' + b"a" * MAX_DOCUMENT_BYTES + b'"}}\n',
        "more than 8 MiB",
    ),
    "a document that was cut off": (ONE[:20] + b"\n", "not one JSON document"),
    "bad UTF-8": (b'{"mode":"\xff"}\n', "not one JSON document"),
    "a key twice": (b'{"mode":"stream","payload":{},"payload":{}}\n', "not one JSON document"),
    "an unknown mode": (b'{"mode":"root","payload":{}}\n', "an unknown mode"),
    "a payload that is a list": (b'{"mode":"stream","payload":[]}\n', "the payload is no object"),
    "more than an envelope": (
        b'{"mode":"stream","payload":{},"image":"x"}\n',
        "not an object of mode and payload",
    ),
}


@pytest.mark.parametrize(("stdin", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_exactly_one_envelope_is_refused(stdin: bytes, why: str) -> None:
    code, events = served(stdin)
    assert code == 65
    assert [(e.type, e.event["payload"]["message"]) for e in events] == [("error", why)]


def test_an_envelope_of_8_mib_is_taken() -> None:
    frame = len(ONE)
    document = b'{"a":"' + b"a" * (MAX_DOCUMENT_BYTES - frame - 6) + b'"}'
    code, events = served(envelope(Mode.CALLBACK, document))
    assert (code, events[-1].type) == (0, "completed")


KEYS = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
}
OTHER = ed25519.Ed25519PrivateKey.generate()
DOCUMENT = {"run_id": "r-1", "user_id": "u-1", "payload": [{"echo": 1}]}


def pem(private: object) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def signed(private: object, algorithm: str, **claims: object) -> str:
    base = {"exp": int(time.time()) + 300, "run_id": "r-1", "sub": "u-1"}
    return jwt.encode(base | claims, private, algorithm=algorithm)


def bound(tmp_path: Path, key: bytes, token: object) -> tuple[int, str, object]:
    """Exit code, type and payload of the last event of a runner that has this key."""
    file = tmp_path / "binding.pem"
    file.write_bytes(key)
    document = json.dumps({**DOCUMENT, "executor_jwt": token}).encode()
    code, events = served(envelope(Mode.STREAM, document), "--binding-key", file)
    return code, events[-1].type, events[-1].event["payload"]


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_document_that_was_signed_for_this_run_is_taken(tmp_path: Path, algorithm: str) -> None:
    key = KEYS[algorithm]
    found = bound(tmp_path, pem(key), signed(key, algorithm, aud="somebody"))
    assert found == (0, "completed", {"mode": "stream", "result": 1})


ED = KEYS["EdDSA"]
FORGED = {
    "no token": (None, "executor_jwt is not valid: DecodeError"),
    "no string": ({"a": 1}, "executor_jwt is not valid: DecodeError"),
    "of another key": (
        signed(OTHER, "EdDSA"),
        "executor_jwt is not valid: InvalidSignatureError",
    ),
    "unsigned": (signed(None, "none"), "executor_jwt is not valid: InvalidAlgorithmError"),
    "of an algorithm of its own choice": (
        signed("0" * 64, "HS256"),
        "executor_jwt is not valid: InvalidAlgorithmError",
    ),
    "expired": (signed(ED, "EdDSA", exp=1), "executor_jwt is not valid: ExpiredSignatureError"),
    "without an end": (
        signed(ED, "EdDSA", exp=None),
        "executor_jwt is not valid: MissingRequiredClaimError",
    ),
    "for another run": (signed(ED, "EdDSA", run_id="r-2"), "executor_jwt is not for this run_id"),
    "for another user": (signed(ED, "EdDSA", sub="u-2"), "executor_jwt is not for this sub"),
    "for an app that the document does not name": (
        signed(ED, "EdDSA", app_id="a"),
        "executor_jwt is not for this app_id",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_document_that_was_not_signed_for_this_run_is_refused(tmp_path: Path, name: str) -> None:
    token, why = FORGED[name]
    assert bound(tmp_path, pem(ED), token) == (65, "error", {"message": why})


@pytest.mark.parametrize(
    "key",
    [b"", b"no key", pem(ec.generate_private_key(ec.SECP384R1()))],
    ids=["empty", "no PEM", "another curve"],
)
def test_a_runner_whose_key_is_none_is_never_ready(tmp_path: Path, key: bytes) -> None:
    file = tmp_path / "binding.pem"
    file.write_bytes(key)
    done = subprocess.run(
        [sys.executable, RUNTIME, "--once", "warm", "--binding-key", file],
        input=ONE,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_it_binds_the_same_claims_as_the_front_door() -> None:
    assert runpy.run_path(str(RUNTIME))["BOUND"] == binding.BOUND
