"""Errors on the wire: one table from error class to HTTP status and back."""

from isolet.base import errors
from isolet.wire.base import Wire

_STATUS: tuple[tuple[type[errors.IsoletError], int], ...] = (
    (errors.Invalid, 422),
    (errors.Refused, 403),
    (errors.NotFound, 404),
    (errors.Fenced, 412),
    (errors.Conflict, 409),
    (errors.Unconfirmed, 504),
    (errors.Unavailable, 503),
    (errors.Corrupt, 500),
)


class Fault(Wire):
    """An error as JSON."""

    reason: str
    message: str
    retry_after_seconds: float | None = None


def to_http(error: errors.IsoletError) -> tuple[int, Fault]:
    """Status and body for an error; subclasses stand before their bases in the table."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    retry = error.retry_after if isinstance(error, errors.Unavailable) else None
    return status, Fault(reason=error.reason, message=error.message, retry_after_seconds=retry)


def from_http(status: int, fault: Fault) -> errors.IsoletError:
    """The error that `to_http` turned into this answer; an unknown status is Unavailable."""
    for kind, code in _STATUS:
        if code == status:
            if issubclass(kind, errors.Unavailable):
                return kind(
                    fault.message, reason=fault.reason, retry_after=fault.retry_after_seconds or 1.0
                )
            return kind(fault.message, reason=fault.reason)
    return errors.Unavailable(fault.message, reason=fault.reason)
