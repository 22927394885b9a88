import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolet.agent.engine import http, transport


def chunked(parts):
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return body + b"0\r\n\r\n"


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


PARTS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
PLACES = st.lists(st.integers(0, 5000), max_size=12)


@given(PARTS, PLACES)
def test_a_chunked_body_is_the_same_wherever_it_is_cut(parts, places):
    decoder = http.Chunked()
    got = b"".join(decoder.feed(piece) for piece in cut(chunked(parts), places))
    assert got == b"".join(parts)
    assert decoder.done
    decoder.end()


@given(PARTS, st.integers(0, 5000))
def test_a_chunked_body_that_is_cut_off_is_told(parts, place):
    whole = chunked(parts)
    decoder = http.Chunked()
    decoder.feed(whole[: place % len(whole)])
    with pytest.raises(transport.Lost):
        decoder.end()


@given(st.binary(max_size=300), PLACES)
def test_a_sized_body_ends_where_it_says(body, places):
    decoder = http.Sized(len(body))
    got = b"".join(decoder.feed(piece) for piece in cut(body + b"more", places))
    assert got == body
    assert decoder.done


def test_a_sized_body_that_is_cut_off_is_told():
    decoder = http.Sized(5)
    decoder.feed(b"four")
    with pytest.raises(transport.Lost):
        decoder.end()


@pytest.mark.parametrize("nonsense", [b"zz\r\n", b"-1\r\n", b"3\r\nabcde\r\n", b"\r\n\r\n"])
def test_chunks_that_are_none(nonsense):
    with pytest.raises(transport.Lost):
        http.Chunked().feed(nonsense)


def test_a_request():
    headers = {"Connection": "close"}
    assert http.request_bytes("GET", "/v1.41/info", headers, None) == (
        b"GET /v1.41/info HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n"
    )
    assert http.request_bytes("POST", "/x", {}, None).endswith(b"Content-Length: 0\r\n\r\n")
    assert http.request_bytes("POST", "/x", {}, b"{}").endswith(
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
