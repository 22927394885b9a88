"""The runner that others start from: it refuses what is not exactly one envelope."""

import json
import subprocess
import sys

import pytest

from isolet.plan.dispatch_document import envelope
from isolet.plan.dispatch_events import Decoder
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES, DispatchEvent, Mode
from tests.arch import tree

RUNTIME = tree.ROOT / "examples" / "runner" / "runtime.py"
READY = b"ready\n"


def served(stdin: bytes) -> tuple[int, list[DispatchEvent]]:
    done = subprocess.run(
        [sys.executable, RUNTIME, "--once", "warm"], input=stdin, capture_output=True, timeout=60
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
