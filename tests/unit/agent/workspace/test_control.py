"""Taking the launch script's lines out of stdout, in any chunking."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolet.agent.workspace.control import (
    ControlLines,
    ExecFailed,
    Started,
    StartFailed,
    Why,
)

NONCE = "n0123456789abcdef"
P = NONCE.encode() + b" "
STARTED = P + b"started\n"


def _take(chunks: list[bytes]) -> tuple[list[object], bytes]:
    lines = ControlLines(NONCE)
    events: list[object] = []
    data = b""
    for chunk in chunks:
        event, out = lines.feed(chunk)
        data += out
        events += [event] if event else []
    last, out = lines.finish()
    return events + ([last] if last else []), data + out


def _cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    return [raw[a:b] for a, b in itertools.pairwise(at)]


STREAMS: dict[str, tuple[bytes, list[object], bytes]] = {
    "nothing": (b"", [], b""),
    "started, silent": (STARTED, [Started()], b""),
    "started, output": (STARTED + b"out\n", [Started()], b"out\n"),
    "output that begins with newlines": (STARTED + b"\n\nx", [Started()], b"\n\nx"),
    "missing": (P + b"start-failed missing\n", [StartFailed(Why.MISSING)], b""),
    "not executable": (
        P + b"start-failed not-executable\n",
        [StartFailed(Why.NOT_EXECUTABLE)],
        b"",
    ),
    "bad cwd": (P + b"start-failed bad-cwd\n", [StartFailed(Why.BAD_CWD)], b""),
    "refused by the kernel": (
        STARTED + P + b"exec-failed 126\n",
        [Started(), ExecFailed(126)],
        b"",
    ),
    "a line like it, then more, is output": (
        STARTED + P + b"exec-failed 126\nx",
        [Started()],
        P + b"exec-failed 126\nx",
    ),
    "a line like it, twice": (
        STARTED + (P + b"exec-failed 126\n") * 2,
        [Started()],
        (P + b"exec-failed 126\n") * 2,
    ),
    "a line like it after output": (
        STARTED + b"x" + P + b"exec-failed 126\n",
        [Started()],
        b"x" + P + b"exec-failed 126\n",
    ),
    "a line like it without its end": (
        STARTED + P + b"exec-failed 126",
        [Started()],
        P + b"exec-failed 126",
    ),
    "a line like it without a number": (
        STARTED + P + b"exec-failed \n",
        [Started()],
        P + b"exec-failed \n",
    ),
    "no code that a shell gives": (
        STARTED + P + b"exec-failed 1260\n",
        [Started()],
        P + b"exec-failed 1260\n",
    ),
    "the first line again is output": (STARTED * 2, [Started()], STARTED),
    "foreign output": (b"sh: not found\n" + STARTED, [], b"sh: not found\n" + STARTED),
    "another nonce": (b"n0123456789abcdee started\n", [], b"n0123456789abcdee started\n"),
    "an unknown word": (P + b"stopped\n", [], P + b"stopped\n"),
    "an unknown cause": (P + b"start-failed bored\n", [], P + b"start-failed bored\n"),
    "cut in the first line": (P + b"star", [], P + b"star"),
    "a first line without end": (P + b"x" * 500, [], P + b"x" * 500),
    "CRLF is not ours": (P + b"started\r\n", [], P + b"started\r\n"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_whole_and_byte_by_byte(name: str) -> None:
    raw, events, data = STREAMS[name]
    assert _take([raw]) == (events, data)
    assert _take([raw[i : i + 1] for i in range(len(raw))]) == (events, data)


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 200)))
def test_streams_in_any_chunks(name: str, cuts: list[int]) -> None:
    raw, events, data = STREAMS[name]
    assert _take(_cut(raw, cuts)) == (events, data)


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([P, STARTED, P + b"exec-failed ", b"127\n", b"\n", NONCE.encode()]),
    ),
    max_size=8,
).map(b"".join)


@given(PIECES, st.lists(st.integers(0, 300)))
def test_no_byte_of_the_program_is_lost_or_added(program: bytes, cuts: list[int]) -> None:
    events, data = _take(_cut(STARTED + program, cuts))
    assert events[0] == Started()
    if events[1:]:
        assert (program, data) == (P + b"exec-failed %d\n" % events[1].code, b"")  # type: ignore[attr-defined]
    else:
        assert data == program


@given(PIECES, st.lists(st.integers(0, 300)))
def test_a_stream_of_another_origin_is_untouched(raw: bytes, cuts: list[int]) -> None:
    events, data = _take(_cut(raw, cuts))
    if not events:
        assert data == raw


def test_live_output_is_held_back_only_while_it_could_be_ours() -> None:
    lines = ControlLines(NONCE)
    assert lines.feed(STARTED) == (Started(), b"")
    assert lines.feed(b"n") == (None, b"")
    assert lines.feed(b"o") == (None, b"no")
    assert lines.feed(b"n") == (None, b"n")
    assert lines.seen == Started()
