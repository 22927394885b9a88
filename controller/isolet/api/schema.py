"""From a pydantic type to the structural schema that a CRD may carry.

pydantic's own JSON schema is refused by the API server in most of its shapes; this translates those
that have a structural form and refuses the others with the place and the cure, at generation time.
It also holds every type to what the project promises of its API: a description on each field, list
semantics on each list.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from isolet.api import rules

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "description",
        "type",
        "enum",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
        rules.VALIDATIONS,
        rules.LIST_TYPE,
        rules.LIST_MAP_KEYS,
        rules.MAP_TYPE,
    }
)
_DROPPED = frozenset({"title", "$defs", "additionalProperties", "items", "properties", "default"})
_FORMATS = frozenset({"date-time", "int32", "int64"})
_REFUSED = {
    "prefixItems": "a fixed tuple has no structural form: use a named model",
    "oneOf": "a union has no structural form: use one optional member a case and exactly_one",
    "anyOf": "a union has no structural form: use one optional member a case and exactly_one",
    "discriminator": "a discriminated union has no structural form",
    "allOf": "several schemas at once have no structural form",
    "patternProperties": "patterned keys have no structural form: use a list of named items",
    "uniqueItems": "mark the list with rules.SET instead of using a set",
    "not": "a negation has no structural form",
}


class SchemaError(Exception):
    """A type has no structural form, or breaks a promise of the API; says where."""


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model.

    Args:
        model: the type, with all that it refers to.

    Returns:
        A schema that stands alone: references are inlined.

    Raises:
        SchemaError: something in it has no structural form.
    """
    raw = model.model_json_schema(by_alias=True)
    return _convert(raw, raw.get("$defs", {}), model.__name__)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    node = _constant(_inlined(_without_null(_inlined(node, definitions)), definitions))
    for key, why in _REFUSED.items():
        if key in node:
            raise SchemaError(f"{path}: {why}")
    if "type" not in node:
        raise SchemaError(f"{path}: has no type of its own: give it one")
    result: Schema = {key: value for key, value in node.items() if key in _KEPT}
    for key, value in node.items():
        if key in _KEPT or key in _DROPPED:
            continue
        result.update(_translated(key, value, path))
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    result.update(_default(node))
    result.update(_members(node, definitions, path))
    return result


def _inlined(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The node with its reference replaced by what it refers to; its own keys win, rules add up."""
    flat = dict(node)
    while "$ref" in flat:
        target = definitions[flat.pop("$ref").removeprefix("#/$defs/")]
        flat = _overlaid(target, flat)
    return flat


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`X | None` as X: in Kubernetes an absent field is what says "none"."""
    options = node.get("anyOf")
    if not isinstance(options, list):
        return node
    real = [option for option in options if option != {"type": "null"}]
    if len(real) != 1 or len(options) == 1:
        return node
    return _overlaid(real[0], {key: value for key, value in node.items() if key != "anyOf"})


def _overlaid(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **over}
    if rules.VALIDATIONS in base and rules.VALIDATIONS in over:
        merged[rules.VALIDATIONS] = [*base[rules.VALIDATIONS], *over[rules.VALIDATIONS]]
    return merged


def _constant(node: dict[str, Any]) -> dict[str, Any]:
    if "const" not in node:
        return node
    value = node["const"]
    return {**{k: v for k, v in node.items() if k != "const"}, "enum": [value]}


def _translated(key: str, value: Any, path: str) -> Schema:
    match key:
        case "format" if value in _FORMATS:
            return {"format": value}
        case "exclusiveMinimum" | "exclusiveMaximum":
            return {key.replace("exclusiveM", "m"): value, key: True}
        case _:
            raise SchemaError(f"{path}: {key}: {value!r} is not known to the API server")


def _default(node: Mapping[str, Any]) -> Schema:
    """The static default; one that says "absent" is none."""
    value = _pruned(node.get("default"))
    return {} if value is None or value in ([], {}) else {"default": value}


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    return value


def _members(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    match node["type"]:
        case "array":
            if rules.LIST_TYPE not in node:
                raise SchemaError(f"{path}: a list needs a list type (rules.ATOMIC, SET, list_map)")
            return {"items": _convert(node["items"], definitions, f"{path}[]")}
        case "object" if "properties" in node:
            return {"properties": dict(_properties(node["properties"], definitions, path))}
        case "object":
            values = node.get("additionalProperties")
            if not isinstance(values, Mapping):
                raise SchemaError(f"{path}: an object without named fields would be pruned")
            return {"additionalProperties": _convert(values, definitions, f"{path}{{}}")}
        case "string" | "integer" | "boolean":
            return {}
        case other:
            raise SchemaError(f"{path}: {other} is not used in this API")


def _properties(
    properties: Mapping[str, Any], definitions: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Schema]]:
    for name, value in properties.items():
        place = f"{path}.{name}"
        if name == "metadata":
            yield name, {"type": "object"}  # the API server knows it, and allows no more here
            continue
        converted = _convert(value, definitions, place)
        if not converted.get("description"):
            raise SchemaError(f"{place}: has no description for kubectl explain")
        yield name, converted


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema inside this one with its path, such as `.spec.env[].name`, itself first."""
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from walk(value, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")
