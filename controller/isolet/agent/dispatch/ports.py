"""What dispatch needs of the pool: slots that are reserved, assigned once, and destroyed."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from isolet.plan.dispatch_outcome import Exit
from isolet.wire.dispatch import DispatchWanted, Reservation, ReserveRequest
from isolet.wire.execution import Outcome


class Slot(Protocol):
    """A sandbox that belongs to one run, durably. It outlives the agent."""

    @property
    def uid(self) -> str:
        """Whose it is."""
        ...

    async def deliver(self, data: bytes) -> None:
        """Write all of it to the runner's stdin and close that.

        Raises:
            Unconfirmed, OSError: nobody can say how much the runner was given.
        """
        ...

    async def close_input(self) -> None:
        """Close the runner's stdin as it is, so that half a document is seen to be one."""
        ...

    def output(self, offset: int) -> AsyncIterator[bytes]:
        """The runner's stdout after its ready line, from this byte to its end, live.

        Stderr is thrown away by whoever implements this.

        Raises:
            Unavailable: it cannot be read now; asked for again from where it broke off.
            Violation: it writes without end, past its stdout.
        """
        ...

    async def over(self) -> bool:
        """Whether it has ended already. Raises Unavailable."""
        ...

    async def exit(self) -> Exit:
        """How it ended, once it has. Raises Unavailable."""
        ...

    async def destroy(self) -> None:
        """End every process of it; returns once that is confirmed. May be repeated.

        Raises:
            Unavailable: it is not confirmed.
        """
        ...

    async def conclude(self, outcome: Outcome) -> None:
        """Record how the run ended, once; the same again changes nothing. Raises Unavailable."""
        ...


class Slots(Protocol):
    """The pools of a node."""

    async def reserve(self, request: ReserveRequest) -> Reservation:
        """Keep a fresh slot for a while; nothing of a tenant is known yet.

        Raises:
            Unavailable: no slot is ready (`NoCapacity`), or the node takes no more work; nothing
                was changed.
            NotFound: this node has no pool for the class.
        """
        ...

    async def release(self, reservation: Reservation) -> None:
        """Put an unassigned slot back. One that is unknown or assigned is left alone."""
        ...

    async def assign(self, reservation: Reservation, wanted: DispatchWanted) -> Slot:
        """Make the slot this run's, in one durable step; the slot of a refused run stays fresh.

        Raises:
            Conflict: the run was here before, or was cancelled; the slot went back.
            Unavailable: the reservation ran out (`NoCapacity`); nothing was changed.
            Unconfirmed: nobody can say; the run must not be tried again.
        """
        ...

    async def adopt(self) -> Sequence[Slot]:
        """Every slot that is assigned and whose run has not been concluded."""
        ...

    async def fence(self, uid: str) -> None:
        """See to it that this uid, which is not here, will never be assigned here.

        Raises:
            Conflict: it has just been assigned, and has not ended.
            NotFound: it stands for something else.
        """
        ...
