"""The decoder against a model of what the log driver stores."""

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolet.agent.engine import base, streams, transport

OUT, ERR = base.Stream.STDOUT, base.Stream.STDERR
PIECE = 16


def stored(output):
    """What the driver keeps of one stream, with pieces of 16 bytes; True if its end is a guess."""
    frames = []
    *lines, rest = output.split(b"\n")
    for line in lines:
        if len(line) < PIECE:
            frames.append(line + b"\n")
        else:
            frames += pieces(line) + ([b""] if len(line) % PIECE == 0 else [])
    frames += pieces(rest)
    return frames, len(rest) > PIECE and len(rest) % PIECE != 0


def pieces(line):
    return [line[at : at + PIECE] for at in range(0, len(line), PIECE)]


def multiplexed(frames):
    return b"".join(
        struct.pack(">BxxxI", 1 if stream is OUT else 2, len(data)) + data
        for stream, data in frames
    )


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def merged(out, err, order):
    """Two rows of frames as one, each in its own order."""
    out, err, row = [(OUT, b" " + f) for f in out], [(ERR, b" " + f) for f in err], []
    for first in order:
        source = out if (first and out) or not err else err
        if source:
            row.append(source.pop(0))
    return row + out + err


TEXT = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.just(b"\n"),
        st.sampled_from([b"x" * n for n in (15, 16, 17, 32, 48)]),
    ),
    max_size=12,
).map(b"".join)
ORDER = st.lists(st.booleans(), max_size=40)
PLACES = st.lists(st.integers(0, 2000), max_size=10)


@given(TEXT, TEXT, ORDER, PLACES)
def test_what_was_written_comes_out(out, err, order, places):
    (out_frames, out_guess), (err_frames, err_guess) = stored(out), stored(err)
    decoder = streams.StoredOutput({})
    got, guesses = dict.fromkeys(base.Stream, b""), {}
    for piece in cut(multiplexed(merged(out_frames, err_frames, order)), places):
        for frame in decoder.feed(piece):
            got[frame.stream] += frame.data
            guesses[frame.stream] = decoder.is_guess(frame)
    decoder.end()
    assert got[OUT] == out + (b"\n" if out_guess else b"")
    assert got[ERR] == err + (b"\n" if err_guess else b"")
    assert not out_guess or guesses[OUT]
    assert not err_guess or guesses[ERR]


@settings(max_examples=50)
@given(TEXT, TEXT, ORDER, st.integers(0, 30), st.integers(0, 30))
def test_a_reader_that_resumes_gets_the_rest(out, err, order, out_after, err_after):
    raw = multiplexed(merged(stored(out)[0], stored(err)[0], order))
    whole = streams.StoredOutput({}).feed(raw)
    decoder = streams.StoredOutput({OUT: out_after, ERR: err_after})
    rest = decoder.feed(raw)
    after = {OUT: out_after, ERR: err_after}
    assert rest == [frame for frame in whole if frame.index > after[frame.stream]]
    count = {stream: sum(f.stream is stream for f in whole) for stream in base.Stream}
    assert decoder.missing() == [s for s in base.Stream if count[s] < after[s]]


def test_an_engine_that_keeps_the_newline_gets_no_second_one():
    raw = multiplexed([(OUT, b" " + b"x" * PIECE), (OUT, b" rest\n"), (OUT, b" next\n")])
    got = b"".join(frame.data for frame in streams.StoredOutput({}).feed(raw))
    assert got == b"x" * PIECE + b"rest\nnext\n"


def test_attributes_of_a_frame_are_not_output():
    raw = multiplexed([(OUT, b"tag=a,key=b+c one two\n")])
    assert streams.StoredOutput({}).feed(raw)[0].data == b"one two\n"


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 200", b"\x03" + b"\0" * 7, b"\x01\0\0\0\xff\xff\xff\xff"]
)
def test_what_is_not_multiplexed_is_told(raw):
    with pytest.raises(transport.Lost):
        list(streams.Frames().feed(raw))


def test_a_stream_that_ends_within_a_frame_is_told():
    frames = streams.Frames()
    assert list(frames.feed(multiplexed([(OUT, b"a")]) + b"\x01\0")) == [(OUT, b"a")]
    with pytest.raises(transport.Lost):
        frames.end()


def test_events_come_one_a_line_wherever_they_are_cut():
    raw = b'{"a":1}\n\n{"b":"\\n"}\n{"c'
    for size in (1, 3, 100):
        lines = streams.JSONLines()
        parts = [raw[at : at + size] for at in range(0, len(raw), size)]
        assert [x for part in parts for x in lines.feed(part)] == [{"a": 1}, {"b": "\n"}]


def test_an_event_that_is_no_json_is_told():
    with pytest.raises(transport.Lost):
        list(streams.JSONLines().feed(b"{]\n"))
    with pytest.raises(transport.Lost):
        list(streams.JSONLines().feed(b"x" * 2_000_000))
