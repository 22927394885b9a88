"""Executions and Processes whose workspace begins with a Git revision, as the operator plans."""

from typing import Any

import pytest

from isolet.api import conditions as cond
from isolet.api import reasons
from isolet.plan import execution
from isolet.plan.actions import Bind, Put
from isolet.plan.model import Known, Observed
from isolet.plan.objects import read_execution, read_process
from isolet.wire.execution import GitObserved, GitSource
from tests.unit.plan.operator.worlds import (
    a_binding,
    a_bound_execution,
    a_class,
    a_node,
    a_pinned,
    a_record,
    after,
    execution_object,
    observed,
    process_object,
)

GIT = {"repository": "project", "revision": "v1"}
SOURCE = GitSource(repository="project", revision="v1")
COMMIT = "a" * 40


def seen(kind: str = "Execution", **changes: Any) -> Observed:
    if kind == "Execution":
        object_: Any = read_execution(execution_object(spec={"workspace": {"git": GIT}}))
    else:
        object_ = read_process(process_object(spec={"template": {"workspace": {"git": GIT}}}))
    allowed = a_class(workspace={"gitRepositories": ["project"]})
    base = {"classes": Known((allowed,)), "nodes": (a_node(report={"repositories": ["project"]}),)}
    return observed(object_, **{**base, **changes})


@pytest.mark.parametrize("kind", ["Execution", "Process"])
def test_it_is_bound_to_a_node_that_serves_it_and_sent_there(kind: str) -> None:
    plan = execution.plan(seen(kind, nodes=(a_node("n0"), *seen().nodes)))
    bind = next(action for action in plan.actions if isinstance(action, Bind))
    put = next(action for action in plan.actions if isinstance(action, Put))
    assert put.node == "n1"
    assert bind.node == "n1"
    spec: Any = put.wanted.spec
    assert (spec.sandbox if kind == "Process" else spec).workspace.git == SOURCE


def test_a_class_that_does_not_grant_it_ends_it() -> None:
    plan = execution.plan(seen(classes=Known((a_class(),))))
    assert plan.status is not None
    outcome = cond.get(plan.status.conditions, cond.SUCCEEDED)
    assert outcome is not None
    assert outcome.reason == reasons.REPOSITORY_NOT_ALLOWED


def test_a_repository_of_no_node_is_an_end_in_seconds() -> None:
    early = execution.plan(seen(nodes=(a_node(),)))
    assert early.status is None or not cond.is_decided(early.status.conditions, cond.SUCCEEDED)
    late = execution.plan(seen(nodes=(a_node(),), now=after(10)))
    assert late.status is not None
    outcome = cond.get(late.status.conditions, cond.SUCCEEDED)
    assert outcome is not None
    assert outcome.reason == reasons.REPOSITORY_UNAVAILABLE
    assert outcome.message.startswith("Git repository project is in no node's policy")


def following(git: GitObserved | None, commit: str | None = None) -> Any:
    bound = a_binding(pinned=a_pinned().model_copy(update={"git": SOURCE}))
    status = {"status": {"resolved": {"commit": commit}}} if commit else {}
    plan = execution.plan(
        observed(
            a_bound_execution(bound, **status),
            nodes=(a_node(record=a_record(git=git)),),
            now=after(10),
        )
    )
    assert plan.status is not None
    return plan.status


def test_the_commit_is_in_the_status_and_never_becomes_another() -> None:
    assert following(None).resolved.commit is None
    assert following(GitObserved(commit=COMMIT)).resolved.commit == COMMIT
    assert following(GitObserved(commit="b" * 40), COMMIT).resolved.commit == COMMIT
    assert following(None, COMMIT).resolved.commit == COMMIT


def test_content_that_is_elsewhere_is_a_warning_that_names_it() -> None:
    plain = following(GitObserved(commit=COMMIT, entries=3))
    assert cond.get(plain.conditions, cond.WORKSPACE_COMPLETE) is None
    git = GitObserved(commit=COMMIT, submodules=("lib/a", "b"), more_submodules=2, lfs=1)
    found = cond.get(following(git).conditions, cond.WORKSPACE_COMPLETE)
    assert found is not None
    assert (found.status.value, found.reason) == ("False", reasons.CONTENT_ELSEWHERE)
    assert found.message == (
        "submodules are empty folders: lib/a, b and 2 more;"
        " 1 files are pointers of Git LFS and not their content"
    )
