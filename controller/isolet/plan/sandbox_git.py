"""A workspace that begins with a Git revision: what stands before the start of its sandbox. PURE.

Called by `sandbox`. The revision is resolved, the commit recorded, its tree read into a file on the
node, that recorded; then the sandbox is made, and unpacks the file before its program begins. What
fails is an end and not a wait: asking a repository again gives the same.
"""

from isolet.plan import reasons
from isolet.plan.git_model import (
    GitPart,
    ReadTree,
    RecordCommit,
    RecordTree,
    ResolveCommit,
    TreeFacts,
)
from isolet.plan.sandbox_model import (
    ContainerFacts,
    Control,
    Decision,
    Life,
    RecordEnd,
    SandboxFacts,
    SandboxRecord,
)
from isolet.wire.execution import Outcome, Waiting

LOOK_SECONDS = 30.0
"""The end of a reading rings the bell; this is for a bell that was not heard."""

UNPACK_LOOK_SECONDS = 1.0

NO_TREE = "no-tree"
"""What the launch script says where the tree could not be unpacked."""

UNPACKING = Decision(
    waiting=Waiting(reason=reasons.PREPARING, message="the Git tree is being unpacked"),
    look_again_in=UNPACK_LOOK_SECONDS,
)


def before_create(part: GitPart, seen: TreeFacts) -> Decision | None:
    """The next step towards the tree; None once it is at hand and recorded."""
    if seen.failed is not None:
        return Decision(actions=(RecordEnd(seen.failed),))
    if part.commit is None and seen.commit is not None:
        return Decision(actions=(RecordCommit(seen.commit),))
    if part.commit is not None and seen.tree is not None and part.tree != seen.tree:
        return Decision(actions=(RecordTree(seen.tree),))
    if seen.busy:
        return _reading(part)
    if part.commit is None:
        return Decision(actions=(ResolveCommit(),))
    if part.tree is None or not seen.at_hand:
        return Decision(actions=(ReadTree(),))
    return None


def _reading(part: GitPart) -> Decision:
    what = f"revision {part.revision} of" if part.commit is None else f"commit {part.commit} of"
    message = f"{what} repository {part.repository} is being read"
    return Decision(
        waiting=Waiting(reason=reasons.PREPARING, message=message), look_again_in=LOOK_SECONDS
    )


def is_unpacking(record: SandboxRecord, facts: SandboxFacts) -> bool:
    """Whether a sandbox that runs has not come to its program yet, which alone is its running."""
    seen: ContainerFacts | None = facts.seen
    runs = seen is not None and seen.life in (Life.RUNNING, Life.PAUSED)
    waits = record.git is not None and facts.control is not Control.STARTED
    return runs and waits and record.stop is None


def did_not_fit(record: SandboxRecord) -> Outcome:
    """The end of a sandbox that could not unpack its tree."""
    part = record.git
    what = f"commit {part.commit} of repository {part.repository}" if part else "the tree"
    return Outcome(
        succeeded=False,
        reason=reasons.WORKSPACE_FULL,
        message=f"{what} could not be unpacked into the workspace of"
        f" {record.spec.resources.workspace_bytes} bytes: ask for a larger one",
    )
