"""What the front door needs behind it: reserve, commit, follow, cancel."""

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from isolet.apiserver.admission import Dispatch
from isolet.apiserver.binding import BindingKey
from isolet.base import errors
from isolet.wire.dispatch import Budgets, DispatchLine

_T = TypeVar("_T")

NO_CAPACITY = "NoCapacity"
RUN_ID_USED = "RunIdUsed"


class Admitted(Protocol):
    """A run that has its sandbox and its document."""

    @property
    def run_id(self) -> str:
        """Its id."""
        ...

    def follow(self, after: int) -> AsyncIterator[DispatchLine]:
        """Events after a sequence number, then live ones, then the end.

        May break off without an end; it is asked for again. Raises Unavailable, NotFound.
        """
        ...


class Reserved(Protocol):
    """A run that has a sandbox and nothing in it yet."""

    async def commit(self) -> Admitted:
        """Hand the document over, once.

        Raises:
            Unavailable: certainly nothing was handed over, and the run may be tried again.
            Conflict: the run was cancelled meanwhile.
            Unconfirmed: nobody can say; the run must not be tried again.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled:
    """What came of a cancellation."""

    confirmed: bool
    """Nothing of it runs, and it can not be begun any more."""
    removed: int = 0
    """Containers that were removed for it."""


class Dispatcher(Protocol):
    """Where runs are served."""

    def ready(self) -> bool:
        """Whether it can serve at all; an empty pool does not count against it."""
        ...

    def budgets(self) -> Budgets:
        """How long a run may take."""
        ...

    def binding_key(self) -> BindingKey | None:
        """The key that documents must be bound with; None where the runner alone checks."""
        ...

    async def reserve(self, dispatch: Dispatch) -> Reserved:
        """A sandbox for this run, and the promise that the run is begun nowhere else.

        Raises:
            Unavailable: not now; certainly nothing happened. `NoCapacity`: no slot is ready.
            Conflict: the run was here before, or was cancelled (`RunIdUsed`).
            Unconfirmed: nobody can say whether it is promised.
        """
        ...

    async def find(self, run_id: str) -> Admitted:
        """A run that was admitted, here or by another front door. Raises NotFound, Unavailable."""
        ...

    async def cancel(self, run_id: str) -> Cancelled:
        """End a run, or see to it that it can never be begun.

        Raises:
            Unavailable: too many unknown runs are cancelled ahead (`TooManyCancellations`), or the
                cluster cannot be asked.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; runs go on."""
        ...


async def told(answer: Awaitable[_T]) -> _T:
    """What a part behind us says. That it refuses us is nothing about our caller, nor for him.

    Raises:
        NotFound, Conflict, Unavailable: as it says.
    """
    try:
        return await answer
    except (errors.NotFound, errors.Conflict, errors.Unavailable):
        raise
    except errors.IsoletError as error:
        raise errors.Unavailable(error.message, reason=error.reason) from error
