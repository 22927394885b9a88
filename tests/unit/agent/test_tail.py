"""The ring of a stream: whatever comes and however it is cut up, its end is kept exactly."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from isolet.agent.engine.base import Stream
from isolet.agent.service.tail import TailFiles

PIECES = st.lists(st.binary(max_size=40), max_size=30)


def ring(folder: Path, limit: int, exact: int = 1 << 30) -> TailFiles:
    return TailFiles(folder / "out", limit=limit, exact_up_to=exact)


@given(PIECES, st.integers(1, 30))
def test_the_last_bytes_are_kept_and_the_rest_is_counted(pieces: list[bytes], limit: int) -> None:
    with TemporaryDirectory() as name:
        files = ring(Path(name), limit)
        sink = files.sink(Stream.STDOUT)
        for piece in pieces:
            assert sink.take(piece, None)
        sink.close()
        whole = b"".join(pieces)
        assert files.size(Stream.STDOUT) == sink.stored == len(whole)
        start, data, total = files.read(Stream.STDOUT, 0, 1 << 20)
        assert (data, total) == (whole[-limit:], len(whole))
        assert start == max(0, len(whole) - limit)
        assert files.was_cut(Stream.STDOUT) is (len(whole) > limit)
        kept = sum(p.stat().st_size for p in Path(name).rglob("stdout.*"))
        assert kept <= 2 * limit


@given(PIECES, st.integers(0, 30), st.integers(1, 30))
def test_a_second_reader_of_the_same_log_goes_on(pieces: list[bytes], cut: int, limit: int) -> None:
    with TemporaryDirectory() as name:
        files = ring(Path(name), limit)
        first = files.sink(Stream.STDOUT)
        for piece in pieces[:cut]:
            first.take(piece, None)
        first.close()
        second = files.sink(Stream.STDOUT)
        for piece in pieces:
            second.take(piece, None)
        second.close()
        whole = b"".join(pieces)
        assert not second.fell_short
        assert files.read(Stream.STDOUT, -limit, limit)[1] == whole[-limit:]


def test_a_log_that_may_have_been_rotated_is_taken_whole(tmp_path: Path) -> None:
    files = ring(tmp_path, 4, exact=5)
    first = files.sink(Stream.STDOUT)
    first.take(b"0123456789", None)
    first.close()
    second = files.sink(Stream.STDOUT)
    second.take(b"56789ab", None)
    second.close()
    assert second.fell_short
    assert files.read(Stream.STDOUT, -4, 4)[1] == b"89ab"


def test_what_is_gone_is_not_given_as_something_else(tmp_path: Path) -> None:
    files = ring(tmp_path, 4)
    sink = files.sink(Stream.STDERR)
    sink.take(b"0123456789", None)
    sink.close()
    assert files.read(Stream.STDERR, 2, 2) == (6, b"67", 10)
    assert files.read(Stream.STDERR, 99, 2) == (10, b"", 10)
    files.delete()
    assert files.read(Stream.STDERR, 0, 9) == (0, b"", 0)
