"""Names of entries: any bytes a file system allows, strictly below the workspace."""

import re

from isolet.agent.archive.refusal import MAX_NAME_BYTES, MAX_PATH_BYTES, Reason, Refused

ROOT = b"."
"""The workspace itself, always the first entry."""

_NOT_PLAIN = re.compile(rb"[^ !#$&-\[\]-~]")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")


def escape(name: bytes) -> bytes:
    """In printable ASCII without quotes: what is neither becomes `%` and two hex digits."""
    return _NOT_PLAIN.sub(lambda found: b"%%%02X" % found[0][0], name)


def unescape(text: bytes) -> bytes:
    """The name that `escape` wrote so.

    Raises:
        Refused: it would have written it differently.
    """
    if b"%" not in text:
        return text
    name = _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text)
    if escape(name) != text:
        raise Refused(Reason.BAD_NAME, "the name is not written as it should be", text)
    return name


def check(name: bytes, depth: int) -> bytes:
    """A path of at most so many names, relative and normalised; returns it.

    `..` is refused where backslashes separate too: no reader may take it for a way out.
    """
    if not name or len(name) > MAX_PATH_BYTES or b"\0" in name:
        raise Refused(Reason.BAD_NAME, "the name is empty, too long or holds a NUL", name)
    parts = name.split(b"/")
    if len(parts) > depth:
        raise Refused(Reason.TOO_DEEP, f"lies more than {depth} folders deep", name)
    for part in parts:
        if part in (b"", b".", b"..") or len(part) > MAX_NAME_BYTES:
            raise Refused(Reason.BAD_NAME, "the name is not relative and normalised", name)
    if b"\\" in name and b".." in name.replace(b"/", b"\\").split(b"\\"):
        raise Refused(Reason.BAD_NAME, "the name leads upwards where \\ separates", name)
    return name


def key(name: bytes) -> bytes:
    """What names are sorted by: a folder comes first and then all that is in it."""
    return b"" if name == ROOT else name.replace(b"/", b"\0")


def parent(name: bytes) -> bytes:
    """The folder that it lies in."""
    return name.rpartition(b"/")[0] or ROOT
