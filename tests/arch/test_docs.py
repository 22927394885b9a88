"""The documents are true where a program can tell: links, paths, commands, settings, metrics."""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import click
import pytest
import yaml
from prometheus_client import CollectorRegistry

from isolet.agent.policy.model import NodePolicy
from isolet.agent.server.metrics import ServerMetrics
from isolet.agent.service.qualify import REQUIRED_ARGUMENTS
from isolet.agent.settings import AgentSettings
from isolet.api import checkpoint, execution, executionclass, executionnode, meta, process, reasons
from isolet.apiserver.metrics import DoorMetrics
from isolet.operator.metrics import PassTimes, StateCollector
from tests.arch import tree

DOCS = tree.ROOT / "docs"
README = tree.ROOT / "README.md"
OPERATIONS = DOCS / "operations.md"
DISPATCH = DOCS / "dispatch.md"
MAPPING = DOCS / "seed-mapping.md"
DECISIONS = DOCS / "decisions"
GENERATED = frozenset({DOCS / "api.md"})
KINDS = (execution, executionclass, executionnode, process, checkpoint)
TOP = ("controller", "crds", "deploy", "docs", "examples", "hack", "tests", ".ci")
PACKAGES = ("base", "api", "wire", "plan", "client", "operator", "agent", "apiserver", "cli")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    found: dict[str, int] = {}
    result = set(re.findall(r'<a (?:id|name)="([^"]+)"', tree.text(path)))
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *$", tree.prose(path)):
        anchor = slug(heading)
        count = found[anchor] = found.get(anchor, -1) + 1
        result.add(f"{anchor}-{count}" if count else anchor)
    return result


def resolves(target: Path, anchor: str) -> bool:
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("path", tree.documents(), ids=tree.name)
def test_links_within_the_tree_lead_somewhere(path: Path) -> None:
    broken = []
    for link in LINK.findall(tree.prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        if not resolves((path.parent / place) if place else path, anchor):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", [p for p in tree.documents() if p not in GENERATED], ids=tree.name)
def test_paths_in_the_text_exist(path: Path) -> None:
    missing = [
        code
        for code in CODE.findall(tree.prose(path))
        if "/" in code and not re.search(r"[*{}<>…]", code) and not is_there(code)
    ]
    assert not missing


def is_there(code: str) -> bool:
    """Whether a path below the root, or a module below the package, exists. Others are passed."""
    place = code.split()[0].split("#")[0]
    top = place.split("/")[0]
    if top in TOP:
        return (tree.ROOT / place).exists()
    return top not in PACKAGES or (tree.SOURCE / place).exists()


def named_in_code() -> Iterator[tuple[str, str, str]]:
    """(where, document, section or anchor) for each document that a source refers to."""
    pattern = re.compile(r"\b(docs/[\w./-]+\.md)(?:#([\w-]+)| §(\d+))?")
    for path in tree.tracked():
        if path.suffix in (".md", ".lock", ".sum") or path.is_relative_to(Path(__file__).parent):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for document, anchor, section in pattern.findall(line):
                yield f"{tree.name(path)}:{number}", document, anchor or section


def test_documents_that_the_code_names_exist() -> None:
    broken = []
    for where, document, place in named_in_code():
        target = tree.ROOT / document
        known = (
            {str(n) for n in re.findall(r"(?m)^## (\d+)\.", tree.text(target))}
            if (target.exists())
            else set()
        )
        if not target.exists() or (place and place not in known | anchors(target)):
            broken.append(f"{where} {document} {place}".strip())
    assert not broken


def commands(path: Path) -> Iterator[list[str]]:
    """Command lines in a document's shell blocks."""
    for block in tree.fenced(path, "sh", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words:
                yield words


@pytest.mark.parametrize(
    "path", [README, tree.ROOT / "CONTRIBUTING.md", OPERATIONS, DISPATCH], ids=tree.name
)
def test_the_commands_shown_exist(path: Path) -> None:
    wrong = [" ".join(words) for words in commands(path) if problem(words)]
    assert not wrong


def problem(words: list[str]) -> bool:
    program, *rest = words
    if program.startswith(("hack/", ".ci/")):
        script = tree.ROOT / program
        return not (script.is_file() and script.stat().st_mode & 0o100)
    if program == "isolet":
        return not is_subcommand(rest)
    files = [rest[i + 1] for i, word in enumerate(rest[:-1]) if word in ("-f", "--filename")]
    inside = [file for file in files if file.split("/")[0] in TOP]
    if program in ("python", "python3") and rest and rest[0].split("/")[0] in TOP:
        inside.append(rest[0])
    return not all((tree.ROOT / file).exists() for file in inside)


def is_subcommand(words: list[str]) -> bool:
    """Whether these words lead to a command of the CLI, and its options are real."""
    from isolet.cli.main import main

    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return False
        command, words = command.commands[words[0]], words[1:]
    options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    asked = {word.split("=")[0] for word in words if word.startswith("--")}
    return asked <= options


def resources_shown() -> Iterator[tuple[str, dict[str, object]]]:
    for path in tree.documents():
        for block in tree.fenced(path, "yaml"):
            for found in yaml.safe_load_all(block):
                if str(found.get("apiVersion", "")).startswith(meta.GROUP):
                    yield tree.name(path), found


def test_resources_shown_are_valid() -> None:
    types = {kind.KIND: vars(kind)[kind.KIND] for kind in KINDS}
    shown = list(resources_shown())
    assert shown
    for _, found in shown:
        types[str(found["kind"])].model_validate(found)


def test_the_engine_configuration_shown_is_what_an_agent_demands() -> None:
    (shown,) = (json.loads(block) for block in tree.fenced(OPERATIONS, "json"))
    assert shown["live-restore"] is True
    assert tuple(shown["runtimes"]["runsc"]["runtimeArgs"]) == REQUIRED_ARGUMENTS


def test_the_agents_file_shown_has_every_key_and_no_other() -> None:
    blocks = (tomllib.loads(block) for block in tree.fenced(OPERATIONS, "toml"))
    (shown,) = (block for block in blocks if "stateDir" in block)
    fields = AgentSettings.model_fields.items()
    assert shown.keys() == {field.alias or name for name, field in fields}
    AgentSettings.model_validate(shown)


def test_the_readme_shows_commands() -> None:
    assert len(list(commands(README))) >= 5


def test_every_document_is_in_the_list() -> None:
    listed = {
        (DOCS / link.partition("#")[0]).resolve()
        for link in LINK.findall(tree.text(DOCS / "README.md"))
    }
    every = {p for p in tree.documents() if p.is_relative_to(DOCS) and p != DOCS / "README.md"}
    assert every - listed == set()


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(int(p.name[:4]) for p in DECISIONS.glob("[0-9][0-9][0-9][0-9]-*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("*.md")), ids=tree.name)
def test_a_decision_says_why_and_what_follows(path: Path) -> None:
    headings = " ".join(re.findall(r"(?m)^## (.+)$", tree.text(path)))
    assert re.search("Context", headings)
    assert re.search("Consequence", headings)


def test_the_mapping_has_each_code_with_its_reasons() -> None:
    told = {
        code: tuple(re.findall(r"`([A-Za-z]+)`", given))
        for code, given in re.findall(r"(?m)^\| `([\w-]+)` \| (`.*`) \|$", tree.text(MAPPING))
    }
    assert told == reasons.seed_codes()


def test_the_guide_explains_each_key_of_a_nodes_policy() -> None:
    keys = set()
    for name, field in NodePolicy.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        alias = field.alias or name
        keys |= {f"{alias}.{f.alias or n}" for n, f in inner.items()} if inner else {alias}
    told = set(CODE.findall(tree.text(OPERATIONS)))
    assert keys - told == set()


METERED = {
    "isolet.operator.metrics": "the operator's collector",
    "isolet.agent.server.metrics": "the agent's server",
    "isolet.apiserver.metrics": "the front door",
}
"""The modules that make metrics; `metrics_in_code` asks each."""


def metrics_in_code() -> set[str]:
    """Names of the metrics that the product shows."""
    registry = CollectorRegistry()
    PassTimes(registry)
    families = [
        *registry.collect(),
        *StateCollector(MagicMock()).collect(),
        *ServerMetrics().registry.collect(),
        *DoorMetrics().registry.collect(),
    ]
    return {f.name + ("_total" if f.type == "counter" else "") for f in families}


def test_metrics_are_made_where_the_tests_look_for_them() -> None:
    makers = {
        module.dotted
        for module in tree.modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] == "prometheus_client"
        and {alias.name for alias in node.names} - {"CollectorRegistry", "generate_latest"}
    }
    assert makers == METERED.keys()


def test_the_guide_lists_each_metric_and_no_other() -> None:
    told = set(re.findall(r"`(isolet_[a-z_]+)`", tree.text(OPERATIONS)))
    assert told == metrics_in_code()
