"""What is refused, and the bounds that refuse it."""

from enum import StrEnum
from typing import NamedTuple

MAX_PATH_BYTES = 4095
"""PATH_MAX without its NUL."""
MAX_NAME_BYTES = 255
_SHOWN_BYTES = 256


class Reason(StrEnum):
    """Why there is no archive, or no workspace from one."""

    BAD_NAME = "BadName"
    DUPLICATE = "Duplicate"
    BAD_PARENT = "BadParent"
    BAD_LINK = "BadLink"
    SPECIAL_FILE = "SpecialFile"
    BAD_HEADER = "BadHeader"
    BAD_ENTRIES = "BadEntries"
    MISMATCH = "Mismatch"
    TRUNCATED = "Truncated"
    TRAILING_DATA = "TrailingData"
    NO_ROOT = "NoRoot"
    TOO_MANY_ENTRIES = "TooManyEntries"
    TOO_LARGE = "TooLarge"
    TOO_DEEP = "TooDeep"
    CHANGED = "Changed"
    UNREADABLE = "Unreadable"
    NO_SPACE = "NoSpace"
    NOT_EMPTY = "NotEmpty"
    FAILED = "Failed"


class Refused(Exception):
    """It cannot be done; `member` is the name it is about, where there is one."""

    def __init__(self, reason: Reason, message: str, member: bytes = b"") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.member = member[:_SHOWN_BYTES]


class Limits(NamedTuple):
    """Bounds of one archive; those of a name (`MAX_PATH_BYTES`) never change."""

    entries: int = 262_144
    size_bytes: int = 64 << 30
    """Of all files together."""
    written_bytes: int = 1 << 62
    """Of all that is written, together: what the node has room for."""
    depth: int = 128
    """Names in one path. Each open folder is a descriptor."""
