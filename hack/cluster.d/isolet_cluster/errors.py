"""How this tool speaks: progress and errors on stderr, results on stdout."""

from __future__ import annotations

import sys
from pathlib import Path


class ClusterError(Exception):
    """Something a person has to know; the message says what, where and what to look at."""


def say(text: str) -> None:
    print(f"\033[1m==>\033[0m {text}" if sys.stderr.isatty() else f"==> {text}", file=sys.stderr)


def log_tail(log: Path, lines: int = 8) -> str:
    """The end of a log, indented, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"  ({log}: {error.strerror})"
    tail = [line[:400] for line in text.splitlines()[-lines:]]
    return "\n".join(f"  | {line}" for line in tail) or "  (it is empty)"
