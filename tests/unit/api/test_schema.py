from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from isolet.api import meta, rules, schema


class Inner(meta.Model):
    """Something inner."""

    model_config = rules.on_model(rules.Rule(rule="true", message="inner"))

    name: str
    """Its name."""


class Translated(meta.Model):
    """All shapes that have a structural form."""

    optional: int | None = None
    """May be absent."""
    reference: Inner
    """Its own description."""
    optional_reference: (
        Annotated[Inner, rules.on_field(rules.Rule(rule="x", message="y"))] | None
    ) = None
    """Both rules."""
    constant: Literal["x"] = "x"
    """One value."""
    above: Annotated[int, Field(gt=0)] = 1
    """More than none."""
    named: Annotated[tuple[Inner, ...], rules.list_map("name")] = ()
    """A list."""
    labels: dict[str, str] | None = None
    """A map."""
    many_lines: str = ""
    """One
    sentence."""
    nested: Inner = Inner(name="a")
    """With a default."""


def test_translated() -> None:
    found = schema.structural(Translated)
    inner: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "Its name."}},
        "required": ["name"],
    }
    rule = {"rule": "true", "message": "inner"}
    assert found == {
        "type": "object",
        "description": "All shapes that have a structural form.",
        "required": ["reference"],
        "properties": {
            "optional": {"type": "integer", "description": "May be absent."},
            "reference": {
                **inner,
                "description": "Its own description.",
                rules.VALIDATIONS: [rule],
            },
            "optionalReference": {
                **inner,
                "description": "Both rules.",
                rules.VALIDATIONS: [rule, {"rule": "x", "message": "y"}],
            },
            "constant": {
                "type": "string",
                "enum": ["x"],
                "default": "x",
                "description": "One value.",
            },
            "above": {
                "type": "integer",
                "minimum": 0,
                "exclusiveMinimum": True,
                "default": 1,
                "description": "More than none.",
            },
            "named": {
                "type": "array",
                "items": {**inner, "description": "Something inner.", rules.VALIDATIONS: [rule]},
                rules.LIST_TYPE: "map",
                rules.LIST_MAP_KEYS: ["name"],
                "description": "A list.",
            },
            "labels": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "A map.",
            },
            "manyLines": {"type": "string", "default": "", "description": "One sentence."},
            "nested": {
                **inner,
                rules.VALIDATIONS: [rule],
                "default": {"name": "a"},
                "description": "With a default.",
            },
        },
    }


def _model(annotation: Any, text: str | None = "x.") -> type[meta.Model]:
    namespace = {
        "__annotations__": {"field": Annotated[annotation, Field(description=text)]},
        "__module__": __name__,
    }
    return type("Odd", (meta.Model,), namespace)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (tuple[int, str], "use a named model"),
        (int | str, "one optional member a case"),
        (list[int], "needs a list type"),
        (set[int], "instead of using a set"),
        (float, "number is not used"),
        (dict[str, Any], "has no type of its own|would be pruned"),
        (Any, "has no type of its own"),
        (Annotated[int, Field(multiple_of=2)], "multipleOf"),
    ],
)
def test_refused(annotation: Any, words: str) -> None:
    with pytest.raises(schema.SchemaError, match=rf"Odd\.field.*({words})"):
        schema.structural(_model(annotation))


def test_a_field_without_a_description_is_refused() -> None:
    with pytest.raises(schema.SchemaError, match=r"Odd\.field: has no description"):
        schema.structural(_model(int, None))
