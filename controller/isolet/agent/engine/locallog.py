"""One bit of the `local` log driver's files that the Engine API does not give.

The API shows the last piece of a line longer than 16 KiB without its newline, whether the program
wrote one or not. The driver's file knows. This reads the end of that file, in the only case where
the answer is not clear, and gives no answer when the file cannot be read or does not look as
expected: the format is the engine's own (it is unchanged since Docker 18.09).

An entry is its length in four bytes, a protobuf message, and the length again.
"""

from collections.abc import Iterator
from pathlib import Path

_TAIL = 1024 * 1024
_SOURCE, _LINE, _PARTIAL = 1, 3, 5
_LAST = 1
_VARINT, _BYTES = 0, 2


def is_unended(data_root: str, container_id: str, stream: str, piece: bytes) -> bool:
    """Whether the newest entry that holds `piece` is the rest of a line without a newline."""
    path = Path(data_root) / "containers" / container_id / "local-logs" / "container.log"
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            tail = file.read(_TAIL)
        return _is_unended(tail, stream.encode(), piece)
    except (OSError, ValueError, IndexError):
        return False


def _is_unended(tail: bytes, stream: bytes, piece: bytes) -> bool:
    for entry in _backwards(tail):
        fields = dict(_fields(entry))
        if fields.get(_SOURCE) == stream and fields.get(_LINE, b"") == piece:
            partial = fields.get(_PARTIAL)
            return isinstance(partial, bytes) and not dict(_fields(partial)).get(_LAST)
    return False


def _backwards(tail: bytes) -> Iterator[bytes]:
    stop = len(tail)
    while stop >= 8:
        size = int.from_bytes(tail[stop - 4 : stop], "big")
        start = stop - 4 - size
        if start < 4:
            return
        yield tail[start : stop - 4]
        stop = start - 4


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message. Raises ValueError, IndexError on another."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == _BYTES:
            if at + value > len(message):
                raise ValueError("cut off")
            yield key >> 3, message[at : at + value]
            at += value
        elif key & 7 == _VARINT:
            yield key >> 3, value
        else:
            raise ValueError("not a log entry")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
