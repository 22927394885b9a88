"""Reads the lines that the launch script writes to stdout, and hands on the program's bytes. Pure.

The lines are `<nonce> started`, `<nonce> start-failed <why>`, and after `started`, as the very last
thing on stdout, `<nonce> exec-failed <code>`. All else is the program's and comes out exact, in any
chunking. A program can read its nonce and so pretend that its own start failed: that harms only its
own record. It cannot pretend to have started, since `started` comes before its first byte.
"""

from dataclasses import dataclass
from enum import StrEnum

_LONGEST_LINE = 160


class Why(StrEnum):
    """Why a program could not be run."""

    MISSING = "missing"
    NOT_EXECUTABLE = "not-executable"
    BAD_CWD = "bad-cwd"
    NO_TREE = "no-tree"
    NO_FILES = "no-files"
    BAD_STDIN = "bad-stdin"


@dataclass(frozen=True, slots=True)
class Started:
    """The program was about to be exec'd: from here on its effects are possible."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The program was never exec'd."""

    why: Why


@dataclass(frozen=True, slots=True)
class ExecFailed:
    """The kernel refused to exec the program; `code` is the shell's 126 or 127."""

    code: int


Control = Started | StartFailed | ExecFailed


class ControlLines:
    """Takes the stream apart. Feed it from the first byte of stdout, then call `finish`."""

    def __init__(self, nonce: str, slot_nonce: str | None = None) -> None:
        """`slot_nonce`: of the warm slot in which it runs, whose own line stands before all."""
        self._prefix = nonce.encode() + b" "
        self._before = b"" if slot_nonce is None else slot_nonce.encode() + b" started\n"
        self._held = b""
        self._at_start = True
        self._after_started = False
        self._seen: Started | StartFailed | None = None

    @property
    def seen(self) -> Started | StartFailed | None:
        """The first control line, if it has come."""
        return self._seen

    def feed(self, data: bytes) -> tuple[Started | StartFailed | None, bytes]:
        """The control line that these bytes complete, if any, and the program's bytes."""
        if self._before:
            data = self._without_slots(data)
        if self._at_start:
            return self._feed_start(data)
        return None, self._feed_program(data)

    def _without_slots(self, data: bytes) -> bytes:
        """The bytes after the slot's own line, as far as it has not come yet."""
        known = min(len(data), len(self._before))
        if data[:known] != self._before[:known]:
            self._before = b""
            return data
        self._before = self._before[known:]
        return data[known:]

    def finish(self) -> tuple[ExecFailed | None, bytes]:
        """What the end of the stream decides: a failed exec, or bytes that were held back."""
        held, self._held = self._held, b""
        self._at_start = False
        if self._after_started:
            self._after_started = False
            code = self._exec_failed(held)
            if code is not None:
                return ExecFailed(code), b""
        return None, held

    def _feed_start(self, data: bytes) -> tuple[Started | StartFailed | None, bytes]:
        """Before the first line is known to be ours or not."""
        self._held += data
        line, newline, rest = self._held.partition(b"\n")
        if not newline and len(line) <= _LONGEST_LINE and self._may_be_ours(line):
            return None, b""
        self._at_start = False
        event = self._parse(line) if newline else None
        if event is None:
            held, self._held = self._held, b""
            return None, held
        self._seen = event
        self._held = b""
        self._after_started = isinstance(event, Started)
        return event, self._feed_program(rest)

    def _feed_program(self, data: bytes) -> bytes:
        """After the first line: holds back only what may still be the exec-failed line."""
        if not self._after_started:
            return data
        self._held += data
        if self._may_be_exec_failed(self._held):
            return b""
        self._after_started = False
        held, self._held = self._held, b""
        return held

    def _may_be_ours(self, line: bytes) -> bool:
        """Whether the line begins with the nonce, as far as it goes."""
        return line.startswith(self._prefix) or self._prefix.startswith(line)

    def _parse(self, line: bytes) -> Started | StartFailed | None:
        """The event of a whole line."""
        if line == self._prefix + b"started":
            return Started()
        head = self._prefix + b"start-failed "
        if line.startswith(head):
            why = line[len(head) :].decode(errors="replace")
            return StartFailed(Why(why)) if why in set(Why) else None
        return None

    def _may_be_exec_failed(self, held: bytes) -> bool:
        """Whether the bytes are the beginning, or all, of an exec-failed line."""
        head = self._prefix + b"exec-failed "
        if len(held) <= len(head):
            return head.startswith(held)
        digits, newline, rest = held[len(head) :].partition(b"\n")
        is_number = digits.isdigit() or (not digits and not newline)
        return held.startswith(head) and is_number and len(digits) <= 3 and not rest

    def _exec_failed(self, held: bytes) -> int | None:
        """The code of a whole exec-failed line."""
        head = self._prefix + b"exec-failed "
        whole = held.startswith(head) and held.endswith(b"\n") and self._may_be_exec_failed(held)
        return int(held[len(head) :]) if whole and held[len(head) :].strip() else None
