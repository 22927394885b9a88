"""Who waits for a warm slot, in the order in which they came.

In memory: after a restart whoever waits joins again, in its old place.
"""

from datetime import datetime

from isolet.plan.sandbox_model import SandboxRecord

_Place = tuple[datetime, str]


class Line:
    """One line for each pool."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, _Place]] = {}

    def join(self, record: SandboxRecord, digest: str) -> bool:
        """Wait for a slot of this pool; False if it does already."""
        if record.uid in self._lines.get(digest, ()):
            return False
        self.leave(record.uid)
        self._lines.setdefault(digest, {})[record.uid] = _place(record)
        return True

    def leave(self, uid: str) -> str | None:
        """Wait no more; for which pool it did."""
        for digest, line in self._lines.items():
            if line.pop(uid, None) is not None:
                if not line:
                    del self._lines[digest]
                return digest
        return None

    def length(self, digest: str) -> int:
        """How many wait."""
        return len(self._lines.get(digest, ()))

    def ahead(self, record: SandboxRecord, digest: str) -> int:
        """How many of those who wait came before it."""
        mine = _place(record)
        return sum(place < mine for place in self._lines.get(digest, {}).values())

    def first(self, digest: str, count: int) -> list[str]:
        """Those whose turn it is when there are so many slots."""
        line = self._lines.get(digest, {})
        return sorted(line, key=lambda uid: line[uid])[:count]


def _place(record: SandboxRecord) -> _Place:
    return record.created_at, record.uid
