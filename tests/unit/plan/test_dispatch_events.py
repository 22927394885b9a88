"""What a runner writes: events come out whole wherever the bytes are cut, or the run ends."""

import itertools
import json
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isolet.apiserver.encoding import ndjson
from isolet.plan import reasons
from isolet.plan.dispatch_events import MAX_DEPTH, Decoder, Violation
from isolet.wire.dispatch import MAX_EVENT_BYTES, MAX_EVENTS_BYTES, DispatchEvent, DispatchLine


def line(kind: str = "progress", **more: object) -> bytes:
    return json.dumps({"event_type": kind, **more}).encode() + b"\n"


DONE = line("completed", payload={"ok": True})


def decoded(*chunks: bytes) -> list[DispatchEvent]:
    decoder = Decoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    decoder.finish()
    return events


def violation(*chunks: bytes) -> Violation:
    with pytest.raises(Violation) as broken:
        decoded(*chunks)
    return broken.value


def of_size(size: int) -> bytes:
    """An event of so many bytes, its newline apart."""
    empty = len(line(x="")) - 1
    return line(x="a" * (size - empty))


BROKEN = {
    "no JSON": (b"hello\n", reasons.PROTOCOL_VIOLATED),
    "an empty line": (b"\n", reasons.PROTOCOL_VIOLATED),
    "a list": (b"[]\n", reasons.PROTOCOL_VIOLATED),
    "two in a line": (b'{"event_type":"a"}{"event_type":"b"}\n', reasons.PROTOCOL_VIOLATED),
    "NaN": (b'{"event_type":"a","x":NaN}\n', reasons.PROTOCOL_VIOLATED),
    "bad UTF-8": (b'{"event_type":"\xff"}\n', reasons.PROTOCOL_VIOLATED),
    "no type": (b"{}\n", reasons.PROTOCOL_VIOLATED),
    "a type that is no word": (line("completed\n\nevent: injected"), reasons.PROTOCOL_VIOLATED),
    "a type of ours": (line("heartbeat"), reasons.PROTOCOL_VIOLATED),
    "a sequence of its own": (line(sequence=7), reasons.PROTOCOL_VIOLATED),
    "a number that no double holds": (
        line(x=[10**4])[:-3] + b"e999]}\n",
        reasons.PROTOCOL_VIOLATED,
    ),
    "half of a surrogate pair": (line(x="\ud83d"), reasons.PROTOCOL_VIOLATED),
    "half of one in a name": (line(x={"\udc00": 1}), reasons.PROTOCOL_VIOLATED),
    "nested too deep for one on its way": (
        line(x=json.loads("[" * 250 + "]" * 250)),
        reasons.PROTOCOL_VIOLATED,
    ),
    "a number of 310 digits": (
        b'{"event_type":"a","x":1' + b"0" * 309 + b"}\n",
        reasons.PROTOCOL_VIOLATED,
    ),
    "a number of 5000 digits": (
        b'{"event_type":"a","x":' + b"9" * 5000 + b"}\n",
        reasons.PROTOCOL_VIOLATED,
    ),
    "deeply nested": (b"[" * 100_000 + b"\n", reasons.PROTOCOL_VIOLATED),
    "a terminal event without a payload": (line("completed"), reasons.PROTOCOL_VIOLATED),
    "a payload that is a list": (line("completed", payload=[]), reasons.PROTOCOL_VIOLATED),
    "something after the end": (DONE + line(), reasons.PROTOCOL_VIOLATED),
    "a second end": (DONE + DONE, reasons.PROTOCOL_VIOLATED),
    "no newline at the end": (DONE[:-1], reasons.PROTOCOL_VIOLATED),
    "a line over 1 MiB": (of_size(MAX_EVENT_BYTES + 1), reasons.EVENT_TOO_LARGE),
    "a line that does not end": (b"a" * (MAX_EVENT_BYTES + 1), reasons.EVENT_TOO_LARGE),
}


@pytest.mark.parametrize(("raw", "reason"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_event_ends_the_run(raw: bytes, reason: str) -> None:
    assert violation(raw).reason == reason
    assert violation(line(), raw).reason == reason


def test_events_before_the_broken_line_are_kept() -> None:
    decoder = Decoder()
    with pytest.raises(Violation):
        list(decoder.feed(line() + line() + b"no\n"))
    assert decoder.sequence == 2
    assert decoder.whole == 2 * len(line())


def test_an_event_of_1_mib_is_taken() -> None:
    (event,) = decoded(of_size(MAX_EVENT_BYTES))
    assert event.sequence == 1


def test_64_mib_are_taken_and_one_byte_more_is_not() -> None:
    decoder = Decoder()
    big = of_size(MAX_EVENT_BYTES - 1)
    assert len(big) == MAX_EVENT_BYTES
    for _ in range(MAX_EVENTS_BYTES // MAX_EVENT_BYTES):
        list(decoder.feed(big))
    assert decoder.sequence == 64
    with pytest.raises(Violation) as broken:
        list(decoder.feed(b"{"))
    assert broken.value.reason == reasons.OUTPUT_LIMIT_EXCEEDED


def test_nothing_of_an_event_is_kept() -> None:
    """1 MiB of lists would be many times that, for as long as a runner takes to end."""
    decoder = Decoder()
    list(decoder.feed(line("completed", payload={"x": [[]] * 100_000})))
    assert decoder.completed
    assert len(pickle.dumps(decoder)) < 1000


def test_a_violation_shows_nothing_of_the_output() -> None:
    for raw in (b"hunter2\n", b'{"event_type":"hunter2!"}\n', b'{"hunter2":1}\n', b"hunter2"):
        assert "hunter2" not in violation(raw).message


_payloads = st.dictionaries(st.text(max_size=8), st.integers() | st.text(), max_size=3)
_lines = st.lists(_payloads.map(lambda p: line("progress", payload=p)), max_size=8)


@given(_lines, st.booleans(), st.lists(st.integers(0, 2000), max_size=8))
def test_it_does_not_matter_where_the_bytes_are_cut(
    lines: list[bytes], ends: bool, cuts: list[int]
) -> None:
    raw = b"".join([*lines, DONE] if ends else lines)
    at = sorted({0, *(min(cut, len(raw)) for cut in cuts), len(raw)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(at)]
    events = decoded(*pieces)
    assert [e.event for e in events] == [json.loads(found) for found in raw.splitlines()]
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_give_events_or_a_violation(chunks: list[bytes]) -> None:
    decoder, found = Decoder(), ""
    try:
        for chunk in chunks:
            list(decoder.feed(chunk))
        decoder.finish()
    except Violation as broken:
        found = broken.reason
    assert found in ("", reasons.PROTOCOL_VIOLATED)
    assert decoder.whole <= decoder.total


@given(st.recursive(st.floats() | st.text() | st.integers() | st.none(), st.lists), st.booleans())
@example([["\ud83d"]], True)
@example(json.loads("[" * (MAX_DEPTH - 1) + "1e308" + "]" * (MAX_DEPTH - 1)), False)
def test_what_is_taken_gets_to_its_reader_and_is_the_same_there(value: object, raw: bool) -> None:
    """Otherwise its reader would ask for it again and again, and never see what follows."""
    written = json.dumps({"event_type": "a", "x": value}, ensure_ascii=raw)
    try:
        (event,) = decoded(written.encode("utf-8", "surrogatepass") + b"\n")
    except Violation:
        return
    sent = DispatchLine(event=event).to_json()
    read = DispatchLine.model_validate_json(sent)
    assert read.event == event
    assert event.event == json.loads(written)
    assert json.loads(ndjson(1, event.event)) == event.event
