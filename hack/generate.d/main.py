"""Generates files from `isolet.api`; the same bytes each time."""

import argparse
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import reference
import yaml

from isolet.api import admission, crd, meta

ROOT = Path(__file__).resolve().parents[2]
HEADER = "# Made by hack/generate from controller/isolet/api; not to be edited.\n"


class Dumper(yaml.SafeDumper):
    """Plain YAML: no anchors, and lists indented below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, indentless=False)


def as_yaml(documents: Iterable[dict[str, Any]]) -> str:
    return HEADER + "".join(
        "---\n" + yaml.dump(document, Dumper=Dumper, width=110, allow_unicode=True)
        for document in documents
    )


def files() -> dict[Path, str]:
    """Every generated file with its content, by its path from the root."""
    made = {
        Path("crds") / f"{meta.GROUP}_{kind.plural}.yaml": as_yaml([crd.definition(kind)])
        for kind in crd.KINDS
    }
    for name, documents in admission.files().items():
        made[Path("deploy/admission") / name] = as_yaml(documents)
    made[Path("docs/api.md")] = reference.page()
    return made


def check(made: dict[Path, str]) -> int:
    """Prints what differs; 1 if anything does."""
    wrong = 0
    for path, content in made.items():
        full = ROOT / path
        found = full.read_text() if full.exists() else ""
        if found != content:
            wrong = 1
            sys.stdout.writelines(
                difflib.unified_diff(
                    found.splitlines(True), content.splitlines(True), str(path), "generated"
                )
            )
    strays = {
        path.relative_to(ROOT)
        for folder in ("crds", "deploy/admission")
        for path in (ROOT / folder).glob("*.yaml")
    } - made.keys()
    for stray in sorted(strays):
        print(f"{stray}: nothing generates it")
    if wrong or strays:
        print("generated files are not up to date: run hack/generate", file=sys.stderr)
    return int(bool(wrong or strays))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    made = files()
    if parser.parse_args().check:
        return check(made)
    for path, content in made.items():
        full = ROOT / path
        full.parent.mkdir(parents=True, exist_ok=True)
        if not full.exists() or full.read_text() != content:
            full.write_text(content)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
