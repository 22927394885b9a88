"""What a plan can ask for is done, and what is done can be struck by a fault test."""

import ast
import typing
from collections.abc import Iterator

from isolet.agent.service.assign import Assigner
from isolet.agent.service.effects import Effects
from isolet.agent.steps import AgentStep
from isolet.operator.steps import Effect
from isolet.plan import actions, sandbox_model
from tests.arch import tree

CLUSTER_WRITES = frozenset({"create", "patch", "replace", "delete"})
AGENT_WRITES = frozenset({"put", "amend", "remove", "remove_strays", "put_pools"})
IMPLEMENTATIONS = frozenset({"isolet.operator.cluster", "isolet.operator.guard"})
"""They are the call itself: the step is taken by whoever calls them."""


def names_of(union: object) -> set[str]:
    return {member.__name__ for member in typing.get_args(union)}


def handled(package: str) -> set[str]:
    """Names of classes that a package tells apart: in `match`, as keys, or by isinstance."""
    found: set[str] = set()
    for module in tree.below(package):
        for node in ast.walk(module.tree):
            match node:
                case ast.MatchClass(cls=cls):
                    found.add(tree.dotted_name(cls).rpartition(".")[2])
                case ast.Dict(keys=keys):
                    found |= {tree.dotted_name(k).rpartition(".")[2] for k in keys if k}
    return found


def uses(package: str, enum: str) -> set[str]:
    """Members of an enum that a package names, such as `AgentStep.X`."""
    prefix = f"{enum}."
    return {
        tree.dotted_name(node).removeprefix(prefix)
        for module in tree.below(package)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and tree.dotted_name(node).startswith(prefix)
    }


def test_every_action_of_the_sandbox_plan_is_performed() -> None:
    nothing = typing.cast(typing.Any, None)
    assigner = Assigner(nothing, nothing, nothing, nothing, nothing)
    performed = Effects(nothing, nothing, nothing, nothing, nothing, nothing, assigner)._performers
    assert performed.keys() == set(typing.get_args(sandbox_model.Action))


def test_every_action_of_the_operators_plans_is_applied() -> None:
    assert names_of(actions.Action) - handled("isolet.operator") == set()


def test_every_step_of_the_agent_is_reached_somewhere() -> None:
    reached = uses("isolet.agent", "AgentStep")
    assert {step.name for step in AgentStep} - reached == set()


def test_every_effect_of_the_operator_is_made_somewhere() -> None:
    assert {effect.name for effect in Effect} - uses("isolet.operator", "Effect") == set()


def is_write(call: ast.Call) -> bool:
    """Whether it changes something outside: a write of a cluster or of an agent."""
    *receiver, method = tree.dotted_name(call.func).split(".")
    owner = receiver[-1].lstrip("_") if receiver else ""
    return (method in CLUSTER_WRITES and owner in ("cluster", "inner")) or (
        method in AGENT_WRITES and owner in ("agent", "api")
    )


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (found for found in ast.walk(node) if isinstance(found, ast.Call))


def callee(call: ast.Call) -> str:
    return tree.dotted_name(call.func).rpartition(".")[2]


def stepping(module: tree.Module) -> set[str]:
    """`at`, and the module's functions that hand one of their own parameters on to it."""
    found = {"at"}
    for function in module.functions():
        parameters = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        handed_on = {
            argument.id
            for call in calls(function)
            if callee(call) == "at"
            for argument in call.args
            if isinstance(argument, ast.Name)
        }
        if parameters & handed_on:
            found.add(function.name)
    return found


def stepped(module: tree.Module, function: tree.Function) -> set[ast.AST]:
    """Every node that is part of an argument of `at(…)`, or of a value that is handed to it."""
    steps = stepping(module)
    arguments = [a for call in calls(function) if callee(call) in steps for a in call.args]
    names = {a.id for a in arguments if isinstance(a, ast.Name)}
    values = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id in names for t in node.targets)
    ]
    return {part for value in (*arguments, *values) for part in ast.walk(value)}


def only_called_in_steps(module: tree.Module, function: tree.Function) -> bool:
    """Whether each call of this helper in its module stands inside `at(…)`."""
    callers = [
        (caller, call)
        for caller in module.functions()
        for call in calls(caller)
        if callee(call) == function.name
    ]
    return bool(callers) and all(call in stepped(module, caller) for caller, call in callers)


def unstepped(module: tree.Module) -> list[str]:
    return [
        f"{module.where(call)} {tree.dotted_name(call.func)}"
        for function in module.functions()
        for call in calls(function)
        if is_write(call)
        and call not in stepped(module, function)
        and not only_called_in_steps(module, function)
    ]


def test_the_operator_makes_no_effect_without_its_two_steps() -> None:
    found = [
        where
        for module in tree.below("isolet.operator")
        if module.dotted not in IMPLEMENTATIONS
        for where in unstepped(module)
    ]
    assert not found, "await isolet.operator.steps.at(Effect.X, call) instead"


def test_the_test_sees_an_effect_that_bypasses_its_steps() -> None:
    source = (
        "async def f(self):\n"
        "    await self._cluster.patch(1)\n"
        "    await at(E.X, self._cluster.patch(2))\n"
    )
    fake = tree.Module(tree.SOURCE / "operator" / "fake.py", ast.parse(source))
    assert [where.split()[0].rpartition(":")[2] for where in unstepped(fake)] == ["2"]
