"""What stands before the start of a sandbox whose workspace begins with a Git revision."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from isolet.plan import reasons, sandbox, sandbox_git
from isolet.plan.git_model import (
    GitPart,
    ReadTree,
    RecordCommit,
    RecordTree,
    ResolveCommit,
    Tree,
    TreeFacts,
)
from isolet.plan.sandbox_model import (
    ContainerFacts,
    Control,
    Create,
    Dispatch,
    Life,
    Moment,
    RecordEnd,
    RecordRunning,
    RecordStop,
    SandboxFacts,
    Seen,
    Start,
    Stop,
)
from isolet.wire.execution import Outcome, State, Step
from tests.contract.store.records import a_record

NOW = Moment(wall=datetime(2026, 1, 1, tzinfo=UTC), boottime=100.0, boot_id="b")
COMMIT = "a" * 40
TREE = Tree(entries=3)
ASKED = GitPart(repository="project", revision="v1")
PINNED = replace(ASKED, commit=COMMIT)
WHOLE = replace(PINNED, tree=TREE)
FAILED = Outcome(succeeded=False, reason=reasons.REVISION_NOT_FOUND, message="no v1")
MAKE = (Create(), Dispatch(), Start())


@pytest.mark.parametrize(
    ("part", "seen", "actions"),
    [
        (ASKED, TreeFacts(), (ResolveCommit(),)),
        (ASKED, TreeFacts(busy=True), ()),
        (ASKED, TreeFacts(commit=COMMIT), (RecordCommit(COMMIT),)),
        (ASKED, TreeFacts(failed=FAILED), (RecordEnd(FAILED),)),
        (PINNED, TreeFacts(), (ReadTree(),)),
        (PINNED, TreeFacts(commit=COMMIT), (ReadTree(),)),
        (PINNED, TreeFacts(busy=True, commit=COMMIT), ()),
        (PINNED, TreeFacts(at_hand=True), (ReadTree(),)),
        (PINNED, TreeFacts(commit=COMMIT, tree=TREE, at_hand=True), (RecordTree(TREE),)),
        (PINNED, TreeFacts(failed=FAILED), (RecordEnd(FAILED),)),
        (WHOLE, TreeFacts(at_hand=False), (ReadTree(),)),
        (WHOLE, TreeFacts(at_hand=True), MAKE),
        (WHOLE, TreeFacts(commit=COMMIT, tree=TREE, at_hand=True), MAKE),
    ],
)
def test_one_step_after_the_other(part: GitPart, seen: TreeFacts, actions: tuple) -> None:
    record = replace(a_record(), step=Step.RECORDED, state=State.RUNNING, git=part)
    facts = SandboxFacts(container=Seen.ABSENT, image=Seen.PRESENT, inputs=True, tree=seen)
    decision = sandbox.decide(record, facts, NOW)
    assert decision.actions == actions
    if not actions:
        assert decision.waiting is not None
        assert decision.waiting.reason == reasons.PREPARING
        assert decision.look_again_in == sandbox_git.LOOK_SECONDS


def test_a_commit_that_is_recorded_is_never_another() -> None:
    record = replace(a_record(), step=Step.RECORDED, state=State.RUNNING, git=PINNED)
    seen = TreeFacts(commit="b" * 40)
    facts = SandboxFacts(container=Seen.ABSENT, image=Seen.PRESENT, inputs=True, tree=seen)
    assert sandbox.decide(record, facts, NOW).actions == (ReadTree(),)


def running(control: Control | None, **changes: object) -> tuple:
    record = replace(
        a_record(),
        step=Step.DISPATCHED,
        state=State.RUNNING,
        boot_id="b",
        dispatched_boottime=99.0,
        git=WHOLE,
        **changes,
    )
    life = Life.EXITED if control is Control.START_FAILED else Life.RUNNING
    began = datetime(2025, 12, 31, tzinfo=UTC)
    seen = ContainerFacts(id="c", ours=True, life=life, started_at=began)
    facts = SandboxFacts(container=Seen.PRESENT, seen=seen, control=control)
    return sandbox.decide(record, facts, NOW).actions


def test_it_runs_once_its_tree_is_unpacked_and_its_time_counts_from_then() -> None:
    assert running(None) == ()
    assert running(Control.STARTED) == (RecordRunning(NOW.wall),)
    assert running(Control.START_FAILED) == (RecordRunning(NOW.wall),)


def test_it_can_be_ended_while_it_unpacks() -> None:
    assert isinstance(running(None, removing=True)[0], RecordStop)
    stop = Stop(reason=reasons.CANCELLED, message="cancelled")
    assert running(None, stop=stop) == (RecordRunning(NOW.wall),)


def test_a_tree_that_could_not_be_unpacked_is_said_to_be_too_large() -> None:
    outcome = sandbox_git.did_not_fit(replace(a_record(), git=WHOLE))
    assert outcome.reason == reasons.WORKSPACE_FULL
    assert COMMIT in outcome.message
