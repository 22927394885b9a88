"""What a type says to the API server beyond its shape: CEL rules and list semantics.

These are markers for `typing.Annotated` and for a model's configuration; `schema` turns them into
`x-kubernetes-…` keys. They check nothing in Python.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, GetJsonSchemaHandler
from pydantic_core import core_schema

VALIDATIONS = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One CEL rule; it holds for every stored object, or for every update if it names `oldSelf`."""

    rule: str
    message: str
    """Says what is right, not only what is wrong."""
    message_expression: str | None = None
    """CEL that makes a better message from the value; `message` is the fallback."""
    field: str | None = None
    """The field to blame, as a path such as `.command`; absent: where the rule stands."""

    def document(self) -> dict[str, Any]:
        """The rule as an entry of `x-kubernetes-validations`."""
        entry: dict[str, Any] = {"rule": self.rule, "message": self.message}
        if self.message_expression is not None:
            entry["messageExpression"] = self.message_expression
        if self.field is not None:
            entry["fieldPath"] = self.field
        return entry


def on_model(*rules: Rule) -> ConfigDict:
    """The configuration of a model that carries these rules."""
    return ConfigDict(json_schema_extra={VALIDATIONS: [rule.document() for rule in rules]})


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Extra schema keys on one field."""

    keys: dict[str, Any]

    def __get_pydantic_json_schema__(
        self, core: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Adds the keys beside what the field already has; rules add up."""
        schema = dict(handler(core))
        for key, value in self.keys.items():
            schema[key] = [*schema.get(key, ()), *value] if key == VALIDATIONS else value
        return schema


def on_field(*rules: Rule) -> Keys:
    """A marker that puts rules on one field."""
    return Keys({VALIDATIONS: [rule.document() for rule in rules]})


ATOMIC = Keys({LIST_TYPE: "atomic"})
"""The whole list has one owner and is replaced at once."""

SET = Keys({LIST_TYPE: "set"})
"""Every item once; owners add and remove items of their own."""

ATOMIC_MAP = Keys({MAP_TYPE: "atomic"})
"""The whole object has one owner and is replaced at once."""


def list_map(*keys: str) -> Keys:
    """A list whose items are told apart by these fields."""
    return Keys({LIST_TYPE: "map", LIST_MAP_KEYS: list(keys)})


def quote(text: str) -> str:
    """The text as a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


IMMUTABLE = "cannot be changed, added or removed; make a new object instead"


def immutable(*fields: str) -> tuple[Rule, ...]:
    """One rule a field: it can be neither changed, nor added, nor removed after creation.

    A rule on the optional field itself would not see it come and go, so these stand on its parent.
    """
    return tuple(
        Rule(
            rule=(
                f"has(self.{f}) == has(oldSelf.{f}) && (!has(self.{f}) || self.{f} == oldSelf.{f})"
            ),
            message=f"{f} {IMMUTABLE}",
            field=f".{f}",
        )
        for f in fields
    )


def write_once(field: str) -> Rule:
    """A field that is set at most once and then stays."""
    return Rule(
        rule=f"!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})",
        message=f"{field} is written once and never changed or removed",
        field=f".{field}",
    )


def one_way(field: str, final: str) -> Rule:
    """A field that keeps the value `final` once it has it."""
    return Rule(
        rule=(
            f"!has(oldSelf.{field}) || oldSelf.{field} != {quote(final)}"
            f" || (has(self.{field}) && self.{field} == {quote(final)})"
        ),
        message=f"{field} cannot be taken back once it is {final}",
        field=f".{field}",
    )


def exactly_one(*fields: str) -> Rule:
    """Exactly one of these optional fields is set."""
    count = " + ".join(f"(has(self.{f}) ? 1 : 0)" for f in fields)
    return Rule(rule=f"{count} == 1", message=f"exactly one of {', '.join(fields)} must be set")
