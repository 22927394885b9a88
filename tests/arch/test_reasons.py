"""One closed list of reasons: what an agent says, the API documents; what needs a person, the
operations guide explains."""

import ast
import re
from collections.abc import Iterator

from isolet.api import conditions
from isolet.api import reasons as api
from isolet.plan import reasons as plan
from tests.arch import tree

OPERATIONS = tree.ROOT / "docs" / "operations.md"
SELF_EVIDENT = frozenset({api.Family.PROGRESS, api.Family.SUCCESS})
"""Families that ask nothing of anybody."""


def constants(module: object) -> dict[str, str]:
    return {k: v for k, v in vars(module).items() if k.isupper() and isinstance(v, str)}


def rows() -> set[str]:
    """Words in the first column of the guide's tables."""
    return set(re.findall(r"(?m)^\| `([A-Z][A-Za-z]+)` ", tree.text(OPERATIONS)))


def used_by_plans() -> set[str]:
    """Values of the reasons that the product names outside the list itself."""
    named = {
        tree.dotted_name(node).removeprefix("reasons.")
        for module in tree.modules()
        if module.dotted not in ("isolet.api.reasons", "isolet.plan.reasons")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and tree.dotted_name(node).startswith("reasons.")
    }
    known = {**constants(plan), **constants(api)}
    return {known[name] for name in named if name in known}


def test_what_an_agent_says_the_api_documents() -> None:
    assert set(constants(plan).values()) - api.REASONS.keys() == set()


def test_a_name_means_the_same_in_both_lists() -> None:
    ours, theirs = constants(plan), constants(api)
    assert {k: v for k, v in ours.items() if theirs.get(k, v) != v} == {}


def test_the_guide_explains_what_an_agent_says() -> None:
    needed = {v for v in constants(plan).values() if api.family(v) not in SELF_EVIDENT}
    assert needed - rows() == set()


def test_the_guide_explains_what_this_version_can_say() -> None:
    needed = {v for v in used_by_plans() if api.family(v) not in SELF_EVIDENT}
    assert needed - rows() == set()


def test_the_guide_speaks_of_nothing_else() -> None:
    known = api.REASONS.keys() | conditions.MEANINGS.keys()
    assert rows() - known == set()


def test_the_guide_explains_each_condition() -> None:
    assert conditions.MEANINGS.keys() - rows() == set()


def said_of_the_node() -> Iterator[tuple[str, str, str]]:
    """(where, condition type, reason) of each node condition that an agent makes."""
    for module in tree.below("isolet.agent"):
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            match tree.dotted_name(node.func).rpartition(".")[2]:
                case "verdict":
                    first, third = node.args[0], node.args[2]
                case "NodeCondition":
                    named = {k.arg: k.value for k in node.keywords}
                    first, third = named["type"], named["reason"]
                case _:
                    continue
            if isinstance(first, ast.Constant) and isinstance(third, ast.Constant):
                yield module.where(node), first.value, third.value


def test_the_test_sees_what_is_said_of_the_node() -> None:
    assert {kind for _, kind, _ in said_of_the_node()} >= {"EngineReady", "DiskWorkspaces"}


def test_an_agents_condition_is_one_of_the_nodes() -> None:
    unknown = {f"{w} {kind}" for w, kind, _ in said_of_the_node()} - {
        f"{w} {kind}" for w, kind, _ in said_of_the_node() if kind in conditions.NODE_TYPES
    }
    assert unknown == set()


def test_an_agents_reason_for_a_condition_is_in_the_list() -> None:
    """The operator replaces a word that it does not know, and with it the cause is lost."""
    unknown = {f"{w} {r}" for w, _, r in said_of_the_node() if r and r not in api.REASONS}
    assert unknown == set()
