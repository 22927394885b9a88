"""Structured logs: one JSON object a line on stderr, with the key of the thing they are about.

Tenant data never enters a log: callers pass names, sizes and digests (docs/security.md).
"""

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JSONFormatter(logging.Formatter):
    """Formats a record as one JSON object: ts, level, logger, msg, and whatever `extra` holds."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        entry: dict[str, Any] = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry.update({k: v for k, v in record.__dict__.items() if k not in _PLAIN})
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class KeyedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds fixed fields to every line; a call's own `extra` wins."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the bound fields under the call's own."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


def get(name: str, **fields: object) -> KeyedLogger:
    """A logger below `isolet.` with `fields` bound to each line."""
    return KeyedLogger(logging.getLogger(f"isolet.{name}"), fields)


def setup(level: str = "info") -> None:
    """Send all logs to stderr as JSON. Call once, from an entry point."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("isolet").setLevel(level.upper())
