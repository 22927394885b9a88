"""The errors of the product, sorted at their source by what the caller can do about them.

    IsoletError
    ├── Invalid        the request is wrong; repeating it cannot help
    ├── Refused        well formed, but a policy says no
    ├── NotFound       no such thing
    ├── Conflict       the thing is not what the caller takes it for
    │   └── Fenced     the caller has been replaced by a newer leader
    ├── Unavailable    could not be done or read now; try again
    │   └── Unconfirmed    it was tried and nobody can say what came of it: look, never repeat
    └── Corrupt        stored state cannot be read; needs a person

Every error carries a `reason` (PascalCase, closed list in `isolet.api.reasons` and
`isolet.plan.reasons`) for machines and a message for people. They become HTTP in one place
(`isolet.wire.faults`) and are never told apart by their text.
"""


class IsoletError(Exception):
    """Base of all errors that Isolet raises on purpose."""

    default_reason = "InternalError"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason


class Invalid(IsoletError):
    """The request is wrong: which field, which rule."""

    default_reason = "InvalidRequest"


class Refused(IsoletError):
    """A policy forbids it; the message names the policy and the bound."""

    default_reason = "NotAllowed"


class NotFound(IsoletError):
    """There is no such thing. Never raised for a read that failed."""

    default_reason = "NotFound"


class Conflict(IsoletError):
    """The same name or revision stands for something else."""

    default_reason = "Conflict"


class Fenced(Conflict):
    """The caller's lease epoch is older than one this agent has already obeyed."""

    default_reason = "Fenced"


class Unavailable(IsoletError):
    """Not now. `retry_after` is in seconds."""

    default_reason = "Unavailable"

    def __init__(
        self, message: str, *, reason: str | None = None, retry_after: float = 1.0
    ) -> None:
        super().__init__(message, reason=reason)
        self.retry_after = retry_after


class Unconfirmed(Unavailable):
    """An effect was asked for and its outcome is unknown; decide by looking, never by repeating."""

    default_reason = "Unconfirmed"


class Corrupt(IsoletError):
    """Stored state is unreadable or of a newer schema; nothing was changed."""

    default_reason = "Corrupt"
