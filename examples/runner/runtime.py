#!/usr/bin/env python3
"""A runner: waits in a warm sandbox for one document, works on it once, and ends.

    /app/runtime --once warm [--binding-key FILE]

It says `ready`, reads one line `{"mode": …, "payload": {…}}` to the end of its input, and writes
one JSON object a line: events, and at the end `{"event_type": "completed", "payload": {…}}`.

With a key, a public one in PEM that the class gives as one of its files, it takes only documents
whose `executor_jwt` was signed with it for exactly this run and is valid now, whatever whoever
handed the document over has checked. That needs PyJWT and cryptography, all else nothing but
Python.

Make your own from it: `work` is the part to change.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_BYTES = 8 << 20
MODES = ("callback", "callback-queued", "stream")
BOUND = ("job_id", "run_id", "app_id", "board_id", "node_id", "callback_url")
"""Claims that must be the document's own fields; `sub` likewise is its `user_id`."""
REFUSED = 65
"""Exit code for an envelope that is none."""


class Refused(Exception):
    """The envelope is not one; the text says why and nothing of what is in it."""


def main() -> int:
    """Serve one document; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", choices=["warm"], required=True)
    parser.add_argument("--binding-key", type=Path)
    arguments = parser.parse_args()
    # What every run needs is prepared before anybody is waiting: keys, imports, caches.
    check = None if arguments.binding_key is None else binding(arguments.binding_key.read_bytes())
    print("ready", flush=True)
    try:
        mode, payload = verified(sys.stdin.buffer.read(MAX_BYTES + 1))
        if check is not None:
            check(payload)
    except Refused as refused:
        emit("error", {"message": str(refused)})
        return REFUSED
    result = None
    for event in work(mode, payload):
        emit("progress", event)
        result = event
    emit("completed", {"mode": mode, "result": result})
    return 0


def verified(raw: bytes) -> tuple[str, dict[str, object]]:
    """Mode and payload of an envelope.

    Exactly one JSON document on exactly one line that ends with a newline: input that was cut off
    must never look like a shorter document.

    Raises:
        Refused: as above.
    """
    if len(raw) > MAX_BYTES:
        raise Refused("more than 8 MiB")
    if not raw.endswith(b"\n"):
        raise Refused("no newline at the end")
    if raw.count(b"\n") != 1:
        raise Refused("more than one line")
    try:
        envelope = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise Refused("not one JSON document") from None
    if not isinstance(envelope, dict) or envelope.keys() != {"mode", "payload"}:
        raise Refused("not an object of mode and payload")
    if envelope["mode"] not in MODES:
        raise Refused("an unknown mode")
    if not isinstance(envelope["payload"], dict):
        raise Refused("the payload is no object")
    return envelope["mode"], envelope["payload"]


def binding(pem: bytes) -> Callable[[dict[str, object]], None]:
    """The check that a document was signed with this key, for this run and for now.

    Raises:
        ValueError: the key is no public key of a kind that is taken.
    """
    import jwt
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    key = serialization.load_pem_public_key(pem)
    # The key decides the algorithm, and never the token, which is the sender's.
    if isinstance(key, ed25519.Ed25519PublicKey):
        algorithm = "EdDSA"
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        algorithm = "ES256"
    elif isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048:
        algorithm = "RS256"
    else:
        raise ValueError("the binding key must be Ed25519, P-256 or RSA of at least 2048 bits")

    def check(document: dict[str, object]) -> None:
        token = document.get("executor_jwt")
        rules = {"require": ["exp", "run_id"], "verify_aud": False}
        try:
            claims = jwt.decode(str(token), key, algorithms=[algorithm], options=rules)
        except Exception as error:  # Whatever a forged token makes of its parsers, it is refused.
            raise Refused(f"executor_jwt is not valid: {type(error).__name__}") from None
        fields = {name: document.get(name) for name in BOUND} | {"sub": document.get("user_id")}
        for name, value in fields.items():
            if name in claims and claims[name] != value:
                raise Refused(f"executor_jwt is not for this {name}")

    return check


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys are all different; ValueError otherwise."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def emit(kind: str, payload: object) -> None:
    """Write one event, at once and in one piece."""
    line = json.dumps({"event_type": kind, "payload": payload}, separators=(",", ":")) + "\n"
    sys.stdout.write(line)
    sys.stdout.flush()


def work(mode: str, payload: dict[str, object]) -> Iterator[object]:
    """The work itself: here, the steps that the document's own `payload` lists."""
    del mode
    steps = payload.get("payload")
    for step in steps if isinstance(steps, list) else [{"echo": steps}]:
        yield STEPS[next(iter(step))](next(iter(step.values())))


def exit_now(code: object) -> object:
    """End without a result."""
    sys.stdout.flush()
    os._exit(int(str(code)))


def write(text: object) -> object:
    """Write what is no event."""
    sys.stdout.write(str(text))
    sys.stdout.flush()
    return None


def flood(megabytes: object) -> object:
    """Write many events."""
    for _ in range(int(str(megabytes))):
        emit("progress", "x" * 1_000_000)
    return None


def touch(path: object) -> object:
    """Add a line to a file."""
    with open(str(path), "a") as file:
        file.write("ran\n")
    return None


STEPS = {
    "echo": lambda value: value,
    "sleep": lambda seconds: time.sleep(float(str(seconds))),
    "exit": exit_now,
    "write": write,
    "flood": flood,
    "touch": touch,
}

if __name__ == "__main__":
    sys.exit(main())
