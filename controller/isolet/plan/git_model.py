"""The values of a workspace that begins with a Git revision, as `sandbox_model` has the others."""

from dataclasses import dataclass

from isolet.wire.execution import GitObserved, Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """What is to be said of a Git tree that was read."""

    entries: int
    submodules: tuple[str, ...] = ()
    more_submodules: int = 0
    lfs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class GitPart:
    """What the record of a sandbox with a Git workspace has beside that."""

    repository: str
    revision: str
    commit: str | None = None
    """What the revision named when it was resolved, once: no other is ever imported."""
    tree: Tree | None = None
    """Set once the tree was read, whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeFacts:
    """How the reading of a Git tree stands; in memory, but for `at_hand`."""

    busy: bool = False
    commit: str | None = None
    """Resolved, maybe not recorded yet."""
    tree: Tree | None = None
    """Read, maybe not recorded yet."""
    failed: Outcome | None = None
    at_hand: bool = False
    """The whole tree lies where the sandbox will find it."""


def git_observed(part: GitPart | None) -> GitObserved | None:
    """What is told of a Git workspace; nothing until its commit is known."""
    if part is None or part.commit is None:
        return None
    tree = part.tree or Tree(entries=0)
    return GitObserved(
        commit=part.commit,
        entries=tree.entries,
        submodules=tree.submodules,
        more_submodules=tree.more_submodules,
        lfs=tree.lfs,
    )


@dataclass(frozen=True, slots=True)
class ResolveCommit:
    """Begin to find out which commit the revision names; nothing waits for it."""


@dataclass(frozen=True, slots=True)
class RecordCommit:
    """Record which commit it is, before anything of it is read."""

    commit: str


@dataclass(frozen=True, slots=True)
class ReadTree:
    """Begin to read the recorded commit's tree; nothing waits for it."""


@dataclass(frozen=True, slots=True)
class RecordTree:
    """Record that the tree was read, and what is to be said of it."""

    tree: Tree


GitAction = ResolveCommit | RecordCommit | ReadTree | RecordTree
