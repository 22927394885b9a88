"""Checks an archive that a helper sends, as it comes, before any of it is used. Pure.

Only what our own helpers write passes: plain files, folders and symbolic links, by relative paths
without `.`, `..` or `.git`, each path once and below folders that came before; GNU's records for
long names; numbers in octal or, for sizes over 8 GiB, base 256; and two blocks of zeros at the end.
"""

from isolet.base import errors

BLOCK = 512
_FILE, _LINK, _FOLDER, _LONG_NAME, _LONG_LINK = b"0", b"2", b"5", b"L", b"K"
_MOST_PATH = 4096
MOST_NAMES = 64 << 20
"""Bytes of all paths and targets together: they are held in memory here, not in the helper."""


class PlainTar:
    """Takes an archive in pieces.

    Raises (all methods):
        Unavailable: it is not such an archive, or over its bounds.
    """

    def __init__(self, *, most_bytes: int, most_entries: int) -> None:
        self._most_bytes = most_bytes
        self._most_entries = most_entries
        self._held = bytearray()
        self._skip = 0
        self._long: dict[bytes, bytes] = {}
        self._record: tuple[bytes, int] | None = None
        self._kinds: dict[bytes, bool] = {}
        self._zeros = 0
        self._names = 0
        self.content_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take more of it."""
        view = memoryview(data)
        while view:
            if self._skip:
                passed = min(self._skip, len(view))
                self._skip -= passed
                view = view[passed:]
                continue
            wanted = BLOCK if self._record is None else -(-self._record[1] // BLOCK) * BLOCK
            taken = view[: wanted - len(self._held)]
            self._held += taken
            view = view[len(taken) :]
            if len(self._held) == wanted:
                block, self._held = bytes(self._held), bytearray()
                self._take(block)

    def finish(self) -> int:
        """That was all: the number of its entries."""
        if self._zeros != 2 or self._held or self._skip or self._long or self._record:
            raise _bad("it is cut short")
        return len(self._kinds)

    def _take(self, block: bytes) -> None:
        if self._record is not None:
            kind, size = self._record
            self._long[kind], self._record = block[: size - 1], None
            if block[size - 1 :].strip(b"\0") or b"\0" in self._long[kind]:
                raise _bad("a long name is not one")
        elif not block.strip(b"\0"):
            self._zeros += 1
            if self._zeros > 2 or self._long:
                raise _bad("something is wrong with its end")
        elif self._zeros:
            raise _bad("it goes on behind its end")
        else:
            self._header(block)

    def _header(self, block: bytes) -> None:
        blank = block[:148] + b" " * 8 + block[156:]
        if _number(block[148:156]) != sum(blank):
            raise _bad("the checksum of a header is wrong")
        kind, size = block[156:157], _number(block[124:136])
        if kind in (_LONG_NAME, _LONG_LINK):
            if not 1 < size <= _MOST_PATH + 1 or kind in self._long:
                raise _bad("a long name is too long, or there twice")
            self._record = (kind, size)
            return
        if block[257:265] != b"ustar  \0" or kind not in (_FILE, _LINK, _FOLDER):
            raise _bad("an entry is no file, folder or link")
        name = self._long.pop(_LONG_NAME, None) or block[:100].rstrip(b"\0")
        target = self._long.pop(_LONG_LINK, None) or block[157:257].rstrip(b"\0")
        if self._long or bool(target) is not (kind == _LINK) or (size and kind != _FILE):
            raise _bad("an entry has what its kind has not")
        self._names += len(name) + len(target)
        if self._names > MOST_NAMES:
            raise _bad(f"its names have more than {MOST_NAMES} bytes")
        self._entry(name, kind, size)

    def _entry(self, name: bytes, kind: bytes, size: int) -> None:
        path = name[:-1] if kind == _FOLDER and name.endswith(b"/") else name
        parts = path.split(b"/")
        if len(path) > _MOST_PATH or any(_is_bad(part) for part in parts):
            raise _bad("a path leads away, or is too long")
        parent = path.rpartition(b"/")[0]
        if path in self._kinds or (parent and not self._kinds.get(parent)):
            raise _bad("a path is there twice, or below what is no folder")
        self._kinds[path] = kind == _FOLDER
        self.content_bytes += size
        if self.content_bytes > self._most_bytes or len(self._kinds) > self._most_entries:
            raise _bad("it is over its bounds")
        self._skip = -(-size // BLOCK) * BLOCK


def _is_bad(part: bytes) -> bool:
    return part in (b"", b".", b"..") or part.lower() == b".git" or b"\0" in part


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.rstrip(b"\0 ")
    if not text or text.strip(b"01234567"):
        raise _bad("a number in a header is none")
    return int(text, 8)


def _bad(why: str) -> errors.Unavailable:
    return errors.Unavailable(f"the helper's archive was refused: {why}")
