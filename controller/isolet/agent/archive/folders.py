"""The folders of an archive alone, as a tar that gives folders their modes and times once more.

Some tars make links last of all and so change the times of folders that they had finished. Read
after the archive, this puts that right: folders only, each after those that lie in it.
"""

from typing import IO

from isolet.agent.archive import headers
from isolet.agent.archive.entries import Entry
from isolet.agent.archive.unpack import Nowhere


class Folders(Nowhere):
    """Checks an archive, and writes that tar while it does."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def leave(self, folder: Entry) -> None:
        """See `Target`."""
        self._out.write(headers.closing(folder))

    def close(self) -> None:
        """See `Target`."""
        self._out.write(headers.END)
        self._out.close()
