"""What holds for all kinds: the promises of docs/design.md §2."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from isolet.api import admission, bounds, conditions, crd, executionclass, reasons, rules, schema
from isolet.base import quantity
from isolet.plan import reasons as plan_reasons
from isolet.wire import execution as wire
from tests.unit.api.objects import MAXIMUM, RESOURCES, resources

KINDS = [pytest.param(kind, id=kind.name) for kind in crd.KINDS]


def _fields(kind: crd.Kind, part: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return schema.walk(crd.object_schema(kind)["properties"][part], f".{part}")


@pytest.mark.parametrize("kind", KINDS)
def test_everything_in_a_spec_is_bounded(kind: crd.Kind) -> None:
    """Or CEL's cost could not be estimated, and one object could be of any size."""
    for path, node in _fields(kind, "spec"):
        match node["type"]:
            case "string" if "enum" not in node and node.get("format") != "date-time":
                assert "maxLength" in node or path.endswith("{}"), path
            case "array":
                assert "maxItems" in node, path
            case "object" if "additionalProperties" in node:
                assert "maxProperties" in node, path
            case "integer":
                assert {"minimum", "maximum", "format"} <= node.keys(), path


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_says_how_it_is_merged(kind: crd.Kind) -> None:
    for part in ("spec", "status"):
        for path, node in _fields(kind, part):
            if node["type"] == "array":
                assert node[rules.LIST_TYPE] in ("atomic", "set", "map"), path
                keys = node.get(rules.LIST_MAP_KEYS, [])
                assert set(keys) <= set(node["items"].get("required", [])), path


@pytest.mark.parametrize("kind", KINDS)
def test_a_status_has_no_defaults_and_asks_for_nothing(kind: crd.Kind) -> None:
    for path, node in _fields(kind, "status"):
        assert "default" not in node, path
    assert "required" not in crd.object_schema(kind)["properties"]["status"]


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_obey_the_schema(kind: crd.Kind) -> None:
    for _, node in _fields(kind, "spec"):
        if "default" in node and "enum" in node:
            assert node["default"] in node["enum"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_says_what_is_right(kind: crd.Kind) -> None:
    for path, node in _fields(kind, "spec"):
        for rule in node.get(rules.VALIDATIONS, ()):
            assert len(rule["message"]) > 10, path
            assert "\n" not in rule["message"]


def test_names() -> None:
    shorts = [kind.short for kind in crd.KINDS]
    assert len(set(shorts)) == len(shorts)
    peers = {"sandbox", "sbx", "sbs", "sbc", "sbt", "cp", "cmt", "suo", "swp", "bsbx", "tr", "trs"}
    kubernetes = {"po", "no", "ns", "ev", "cm", "ds", "sts", "deploy", "rs", "svc", "crd", "pc"}
    assert not set(shorts) & (peers | kubernetes)
    for document in crd.documents():
        assert document["spec"]["names"]["categories"] == ["isolet"]
        assert document["spec"]["versions"][0]["subresources"] == {"status": {}}


def test_columns_are_fields() -> None:
    for kind in crd.KINDS:
        known = {path for path, _ in schema.walk(crd.object_schema(kind))}
        for column in kind.columns:
            path = re.sub(r'\[\?\(@\.type=="(\w+)"\)\]', "[]", column.path)
            assert path in known or path.startswith(".metadata."), column.path


def test_generating_twice_gives_the_same() -> None:
    assert crd.documents() == crd.documents()
    assert admission.files() == admission.files()


def test_reasons_are_one_closed_list() -> None:
    word = re.compile("[A-Z][A-Za-z]+")
    for name, reason in reasons.REASONS.items():
        assert word.fullmatch(name)
        assert reason.text.endswith(".")
    own = {v for k, v in vars(reasons).items() if k.isupper() and isinstance(v, str)}
    assert own == reasons.REASONS.keys()
    given = {v for k, v in vars(plan_reasons).items() if k.isupper() and isinstance(v, str)}
    assert given <= reasons.REASONS.keys(), given - reasons.REASONS.keys()


SEED_CODES = """
EXECUTION_INVALID_REQUEST EXECUTION_HOST_UNAVAILABLE EXECUTION_NOT_FOUND EXECUTION_ALREADY_EXISTS
EXECUTION_RESOURCE_LIMIT EXECUTION_TIMEOUT EXECUTION_OUTPUT_LIMIT EXECUTION_NETWORK_POLICY
EXECUTION_CHECKPOINT_NOT_FOUND EXECUTION_CHECKPOINT_INVALID EXECUTION_CREDENTIAL_ERROR
EXECUTION_RUNTIME_ERROR
start_unconfirmed start_failed oom_killed container_conflict docker_unavailable cancel_unverified
docker_failed process_running artifact_rejected not_found artifact_too_large OperationConflictError
running exited cancelled lost disposed cancel-requested needs-reconcile
"""


@pytest.mark.parametrize("code", [pytest.param(code) for code in SEED_CODES.split()])
def test_every_seed_code_has_a_reason(code: str) -> None:
    assert reasons.seed_codes()[code]


def test_families() -> None:
    assert reasons.family("NonZeroExit") is reasons.Family.WORK_FAILED
    assert reasons.family("nonsense") is None


def test_conditions_of_a_kind_are_documented_there() -> None:
    text = crd.object_schema(crd.EXECUTION)["properties"]["status"]["properties"]["conditions"]
    for name in conditions.EXECUTION_TYPES:
        assert name in text["description"]


def test_bounds_are_those_of_the_wire() -> None:
    """What the API takes an agent takes."""
    wire_fields = wire.Resources.model_fields
    names_there = {
        "cpu": ("cpu_millis", quantity.to_milli_cpu),
        "memory": ("memory_bytes", quantity.to_bytes),
        "workspace": ("workspace_bytes", quantity.to_bytes),
        "tmp": ("tmp_bytes", quantity.to_bytes),
        "shm": ("shm_bytes", quantity.to_bytes),
        "output": ("output_bytes", quantity.to_bytes),
    }
    for name, (there, convert) in names_there.items():
        for model in (bounds.Resources, bounds.Maximum):
            marker = next(
                m for m in _metadata(model, name) if hasattr(m, "low") and hasattr(m, "high")
            )
            limits = {type(m).__name__: m for m in wire_fields[there].metadata}
            assert convert(marker.low) == limits["Ge"].ge, name
            assert convert(marker.high) == limits["Le"].le, name


def _metadata(model: type[Any], name: str) -> list[Any]:
    field = model.model_fields[name]
    found = list(field.metadata)
    for argument in getattr(field.annotation, "__args__", ()):
        found += getattr(argument, "__metadata__", ())
    return found


def test_merging_and_judging_bounds() -> None:
    own = bounds.Resources.model_validate({"cpu": "500m", "memory": "1Gi"})
    default = bounds.Resources.model_validate({"cpu": "1", "tmp": "16Mi"})
    maximum = bounds.Maximum.model_validate(MAXIMUM)
    merged = bounds.merged(own, default)
    assert (merged.cpu, merged.memory, merged.tmp) == ("500m", "1Gi", "16Mi")
    assert bounds.missing(merged) == ("workspace", "shm", "pids", "output")
    assert bounds.missing(bounds.Resources.model_validate(RESOURCES)) == ()
    assert bounds.exceeded(bounds.Resources.model_validate(MAXIMUM), maximum) == ()
    over = bounds.Resources.model_validate({"cpu": "4001m", "pids": 1025, "memory": "4096Mi"})
    assert bounds.exceeded(over, maximum) == ("cpu", "pids")
    assert bounds.same(own, bounds.Resources.model_validate({"cpu": "0.5", "memory": "1024Mi"}))
    assert not bounds.same(own, default)


@pytest.mark.parametrize(
    ("changes", "in_memory", "fits"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"workspace": "492Mi"}, True, True),
        ({"workspace": "493Mi"}, True, False),
        ({"tmp": "513Mi"}, False, False),
    ],
)
def test_what_fits_into_memory(changes: dict[str, Any], in_memory: bool, fits: bool) -> None:
    asked = bounds.Resources.model_validate(resources(**changes))
    assert bounds.fits_memory(asked, memory_workspace=in_memory) is fits


def test_the_user_is_written_as_engines_want_it() -> None:
    assert str(executionclass.User()) == "65532:65532"
