"""No name of a module is bound twice: the second would take the first one's place unseen."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.arch import tree


def bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module's own level bind."""
    for one in body:
        match one:
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield one.name


def twice(source: str) -> list[str]:
    return [name for name, count in Counter(bound(ast.parse(source).body)).items() if count > 1]


@pytest.mark.parametrize(
    "path", [path for path in tree.tracked() if path.suffix == ".py"], ids=tree.name
)
def test_no_name_is_bound_twice(path: Path) -> None:
    assert not twice(tree.text(path))


def test_one_that_is_would_be_found() -> None:
    assert twice("A = 1\nB = 2\nA: int = 3\n") == ["A"]
    assert twice("def f(): ...\nclass f: ...\n") == ["f"]
