"""The tree as the architecture tests read it: tracked files, Python sources and their syntax."""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "controller" / "isolet"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Every file that is committed or about to be, and is there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def text(path: Path) -> str:
    """The file as text; what is not UTF-8 is replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def name(path: Path) -> str:
    """Its path below the root."""
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Module:
    """One Python source of the product."""

    path: Path
    tree: ast.Module

    @property
    def dotted(self) -> str:
        """Its name as imported, such as `isolet.plan.sandbox`."""
        parts = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def where(self, node: ast.AST) -> str:
        """File and line, for messages."""
        return f"{name(self.path)}:{getattr(node, 'lineno', 0)}"

    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


@functools.cache
def modules() -> tuple[Module, ...]:
    """Every module of the product that is tracked."""
    paths = [p for p in tracked() if p.suffix == ".py" and p.is_relative_to(SOURCE)]
    return tuple(Module(path, ast.parse(text(path))) for path in sorted(paths))


def module(dotted: str) -> Module:
    """The module of this name; KeyError if there is none."""
    return {found.dotted: found for found in modules()}[dotted]


def below(package: str) -> tuple[Module, ...]:
    """The package itself and everything in it."""
    return tuple(m for m in modules() if m.dotted == package or m.dotted.startswith(f"{package}."))


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` for such an expression, else an empty string."""
    match node:
        case ast.Name(id=found):
            return found
        case ast.Attribute(value=value, attr=attr):
            base = dotted_name(value)
            return f"{base}.{attr}" if base else ""
    return ""


def documents() -> tuple[Path, ...]:
    """Every tracked Markdown file."""
    return tuple(path for path in tracked() if path.suffix == ".md")


def prose(path: Path) -> str:
    """A Markdown file without its fenced code."""
    return re.sub(r"(?ms)^```.*?^```[^\n]*$", "", text(path))


def fenced(path: Path, *languages: str) -> Iterator[str]:
    """The fenced code of a Markdown file in these languages."""
    for language, body in re.findall(r"(?ms)^```([a-z]*)\n(.*?)^```", text(path)):
        if language in languages:
            yield body
