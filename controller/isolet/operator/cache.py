"""What the operator last saw of each object: the newest wins, wherever it came from.

Watch events, pages of the own re-list, answers to our own patches and fresh reads all go in; the
resource version decides. So a pass never acts on an older state than the one it wrote itself. Used
from the main loop only.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from isolet.operator.kube import Key, Kind, Object, key_of, version_of


@dataclass(slots=True)
class _Entry:
    version: int
    obj: Object | None
    """None: seen deleted at `version`, kept so that an older answer cannot bring it back."""


@dataclass
class _Shelf:
    entries: dict[Key, _Entry] = field(default_factory=dict)
    newest: int = 0
    complete: bool = False


Changed = Callable[[Kind, Key, Object | None, bool], None]
"""Called with the new state of a key, or None when it is gone, and whether it is no more than the
answer to a status that the key's own pass wrote."""


def _nobody(kind: Kind, key: Key, obj: Object | None, own: bool) -> None:
    """Tells nobody."""


class ObjectCache:
    """Objects of several kinds."""

    def __init__(self, kinds: Iterable[Kind], changed: Changed = _nobody) -> None:
        self._shelves = {kind.kind: _Shelf() for kind in kinds}
        self._changed = changed

    def put(self, kind: Kind, obj: Object, *, own: bool = False) -> bool:
        """Take in a state; returns whether it was news."""
        shelf = self._shelves[kind.kind]
        key, version = key_of(kind, obj), version_of(obj)
        known = shelf.entries.get(key)
        if known is not None and version <= known.version:
            return False
        # Half of an object's bytes, of no use here.
        obj["metadata"].pop("managedFields", None)
        shelf.entries[key] = _Entry(version, obj)
        shelf.newest = max(shelf.newest, version)
        self._changed(kind, key, obj, own)
        return True

    def drop(self, kind: Kind, obj: Object) -> bool:
        """Take in a deletion: `obj` is the last state, with the deletion's own version."""
        shelf = self._shelves[kind.kind]
        key, version = key_of(kind, obj), version_of(obj)
        known = shelf.entries.get(key)
        if known is not None and (version < known.version or known.obj is None):
            return False
        shelf.entries[key] = _Entry(version, None)
        shelf.newest = max(shelf.newest, version)
        self._changed(kind, key, None, False)
        return True

    def forget(self, kind: Kind, key: Key, obj: Object) -> None:
        """A fresh read found nothing of that name, where `obj` had been."""
        entry = self._shelves[kind.kind].entries.get(key)
        if entry is not None and entry.obj is obj:
            entry.obj = None
            self._changed(kind, key, None, False)

    def get(self, key: Key) -> Object | None:
        """The newest state; None if there is no such object as far as is known."""
        entry = self._shelves[key.kind].entries.get(key)
        return None if entry is None else entry.obj

    def all(self, kind: Kind) -> Iterator[Object]:
        """Every object of a kind; do not await while iterating."""
        for entry in self._shelves[kind.kind].entries.values():
            if entry.obj is not None:
                yield entry.obj

    def keys(self, kind: Kind) -> list[Key]:
        """The keys of every object of a kind."""
        entries = self._shelves[kind.kind].entries
        return [key for key, entry in entries.items() if entry.obj is not None]

    def count(self, kind: Kind) -> int:
        """How many objects of a kind there are."""
        return sum(1 for _ in self.all(kind))

    def newest(self, kind: Kind) -> int:
        """The highest version ever taken in."""
        return self._shelves[kind.kind].newest

    def complete(self, kind: Kind) -> bool:
        """Whether what is not here does not exist: a full list was taken in since the start."""
        return self._shelves[kind.kind].complete

    def keep_only(self, kind: Kind, listed: set[Key], version: int) -> list[Key]:
        """After a full list of `version`: drop what it lacks; returns the keys that went.

        What is newer than the list may have been made since and stays.
        """
        shelf = self._shelves[kind.kind]
        entries, shelf.complete = shelf.entries, True
        gone = []
        for key, entry in list(entries.items()):
            if key in listed or entry.version > version:
                continue
            del entries[key]
            if entry.obj is not None:
                gone.append(key)
                self._changed(kind, key, None, False)
        return gone

    def reset(self, kind: Kind) -> list[Key]:
        """Forget a kind: the store went back in time and versions mean nothing any more.

        Until the next full list nothing counts as absent.
        """
        shelf = self._shelves[kind.kind]
        keys = [key for key, entry in shelf.entries.items() if entry.obj is not None]
        self._shelves[kind.kind] = _Shelf()
        for key in keys:
            self._changed(kind, key, None, False)
        return keys
