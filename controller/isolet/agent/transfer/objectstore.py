"""A place outside of the nodes for whole copies."""

from pathlib import Path
from typing import Protocol

from isolet.agent.transfer.receive import Source
from isolet.wire.restore import StoreCopy


class ObjectStore(Protocol):
    """Keeps the three files of a Checkpoint below a key that follows from its uid."""

    @property
    def name(self) -> str:
        """As the node's settings call it."""
        ...

    async def save(self, uid: str, folder: Path) -> StoreCopy:
        """Write the files of a whole copy, the manifest last, and read all of them back.

        May be repeated; what is there of it is written over.

        Raises:
            Unavailable: the store does not answer, or gave something else back.
        """
        ...

    def source(self, copy: StoreCopy) -> Source:
        """The copy, to be read.

        Raises:
            NotFound: it is in another store, or could not be in this one.
        """
        ...

    async def remove(self, uid: str) -> None:
        """Have nothing left of it, halves of an upload included; gone is not an error.

        Raises:
            Unavailable: the store does not confirm that.
        """
        ...

    async def close(self) -> None:
        """Stop what is under way."""
        ...
