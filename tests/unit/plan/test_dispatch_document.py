"""A document is exactly one JSON object, or it is refused with a reason of its own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolet.base import errors
from isolet.plan.dispatch_document import Defect, envelope, parse
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES, Mode

FRAME = len(envelope(Mode.CALLBACK, b"{}")) - 2
SECRET = b"hunter2"


def sized(total: int) -> bytes:
    """A document of so many bytes."""
    return b'{"x":"' + b"a" * (total - 8) + b'"}'


REFUSED = {
    "nothing": (b"", Defect.EMPTY),
    "blanks": (b" \n\t ", Defect.EMPTY),
    "8 MiB + 1": (sized(MAX_DOCUMENT_BYTES + 1), Defect.TOO_LARGE),
    "bad UTF-8": (b'{"a":"\xff"}', Defect.NOT_UTF8),
    "UTF-16": ('{"a":1}'.encode("utf-16"), Defect.NOT_UTF8),
    "a surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', Defect.NOT_UTF8),
    "a byte order mark": (b"\xef\xbb\xbf{}", Defect.NOT_JSON),
    "cut off": (b'{"a":', Defect.NOT_JSON),
    "no JSON": (b"hello", Defect.NOT_JSON),
    "single quotes": (b"{'a':1}", Defect.NOT_JSON),
    "a newline inside a string": (b'{"a":"x\ny"}', Defect.NOT_JSON),
    "a trailing comma": (b'{"a":1,}', Defect.NOT_JSON),
    "two documents": (b"{}{}", Defect.NOT_ALONE),
    "two on two lines": (b"{}\n{}\n", Defect.NOT_ALONE),
    "a tail": (b'{"a":1} x', Defect.NOT_ALONE),
    "NUL behind it": (b"{}\x00", Defect.NOT_ALONE),
    "a list": (b"[]", Defect.NOT_OBJECT),
    "a string": (b'"x"', Defect.NOT_OBJECT),
    "null": (b"null", Defect.NOT_OBJECT),
    "NaN": (b'{"a":NaN}', Defect.NOT_FINITE),
    "Infinity": (b'{"a":-Infinity}', Defect.NOT_FINITE),
    "no double holds it": (b'{"a":1e999}', Defect.NOT_FINITE),
    "no double holds the integer": (b'{"a":1' + b"0" * 309 + b"}", Defect.NOT_FINITE),
    "an endless integer": (b'{"a":' + b"9" * 5000 + b"}", Defect.NOT_FINITE),
    "a key twice": (b'{"a":1,"a":2}', Defect.DUPLICATE_KEY),
    "a key twice, escaped": (b'{"a":1,"\\u0061":2}', Defect.DUPLICATE_KEY),
    "a key twice, deep inside": (b'{"l":[{"k":{"a":1,"a":1}}]}', Defect.DUPLICATE_KEY),
    "too deep": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", Defect.TOO_DEEP),
}


@pytest.mark.parametrize(("raw", "defect"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_one_json_object_is_refused_with_its_own_reason(
    raw: bytes, defect: Defect
) -> None:
    with pytest.raises(errors.Invalid) as refused:
        parse(raw)
    assert refused.value.reason == defect.value


def test_each_defect_has_a_case() -> None:
    assert {defect for _, defect in REFUSED.values()} == set(Defect)


def test_a_refusal_shows_nothing_of_the_document() -> None:
    for raw in (SECRET, b'{"a":' + SECRET, b'{"%s":1,"%s":2}' % (SECRET, SECRET), b"{}" + SECRET):
        with pytest.raises(errors.Invalid) as refused:
            parse(raw)
        assert SECRET.decode() not in refused.value.message


def test_a_document_of_8_mib_is_taken_and_its_envelope_counts_too() -> None:
    assert parse(sized(MAX_DOCUMENT_BYTES))
    assert len(envelope(Mode.STREAM, sized(MAX_DOCUMENT_BYTES - FRAME))) <= MAX_DOCUMENT_BYTES
    with pytest.raises(errors.Invalid) as refused:
        envelope(Mode.CALLBACK, sized(MAX_DOCUMENT_BYTES - FRAME + 1))
    assert refused.value.reason == Defect.TOO_LARGE.value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
documents = st.dictionaries(st.text(), json_values, max_size=6)


@given(documents, st.sampled_from(Mode), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_an_envelope_is_one_line_that_says_the_same(
    document: dict[str, object], mode: Mode, indent: int | str | None, ascii_only: bool
) -> None:
    raw = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    line = envelope(mode, b"\r\n" + raw + b"\n")
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line) == {"mode": mode.value, "payload": parse(raw)}


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(raw: bytes) -> None:
    reason = None
    try:
        parse(raw)
    except errors.Invalid as refused:
        reason = refused.reason
    assert reason is None or reason in set(Defect)


def test_numbers_keep_their_spelling() -> None:
    assert b'{"a":1.0,"b":1e3,"c":-0}' in envelope(Mode.STREAM, b'{"a":1.0,"b":1e3,"c":-0}')
