"""The API reference as one Markdown page."""

from collections.abc import Iterator
from typing import Any

from isolet.api import admission, conditions, crd, fields, meta, reasons, rules, schema
from isolet.base import envnames

_INTRO = f"""\
<!-- Made by hack/generate from controller/isolet/api; not to be edited. -->
# API reference

Group `{meta.GROUP}`, version `{meta.VERSION}`. `kubectl explain execution.spec` says the same,
and `kubectl get {meta.CATEGORY}` lists all of it.

Quantities are strings, as in a Pod: `"500m"`, `512Mi`. Equal values are equal however they are
written (`"1000m"` and `"1"`), and what you wrote stays as you wrote it. Names ending in `Seconds`
are whole seconds. Times are RFC 3339 with a zone.

Everything here is checked by the API server when an object is written: the shape by the schema,
what one object can say by CEL rules, and what depends on another object or on who asks by the
ValidatingAdmissionPolicies in `deploy/admission/`. A refusal names the field and the rule.

## Limits on size

One object may carry {fields.MAX_INLINE} characters of arguments, environment values, file
contents and standard input in all: it has to fit into one request to etcd, and `kubectl apply`
keeps a copy of it in an annotation (`kubectl apply --server-side` does not; that copy counts a line
break as two characters). One argument is at most {fields.MAX_ARGUMENT_BYTES} bytes
(Linux' own bound), one environment value {envnames.MAX_VALUE_BYTES} bytes. Put more into a
ConfigMap or Secret and refer to it.

## Names that look like credentials

A plain `value` is refused under a name with a word for a credential in it, in any case and with
or without separators: token, secret, password, passphrase, credential, API key, private key and
the like. `MYTOKEN`, `apikey` and `KEY_API` are refused; `MAX_TOKENS`, `STOP_TOKEN_IDS`,
`TOKENIZERS_PARALLELISM` and `KEYBOARD_LAYOUT` are not. Take such a value from a Secret with
`valueFrom.secretKeyRef`.
"""

_RESERVED = {
    f"`{meta.FINALIZER}` (finalizer)": (
        "holds an object until its node has confirmed that nothing of it is left"
    ),
    f"`{meta.FORCE_RELEASE}` (annotation)": (
        "gives an object up without that word; the last resort, for those whom ConfigMap"
        " `isolet-identities` names as releasers"
    ),
    f"`{meta.ORIGIN_LABEL}` (label)": "which part of Isolet made the object",
    f"`{meta.RESERVED_PREFIX}...` (labels, annotations, finalizers)": (
        "set, changed and removed by the identities in ConfigMap `isolet-identities` only"
    ),
}


def page() -> str:
    """The whole page."""
    kinds = map(_kind, crd.KINDS)
    parts = [_INTRO, *kinds, _policies(), _conditions(), _reasons(), _reserved()]
    return "\n".join(parts)


def _kind(kind: crd.Kind) -> str:
    whole = crd.object_schema(kind)
    columns = ", ".join(f"{c.name}{' (wide)' if c.wide else ''}" for c in kind.columns)
    scope = "in a namespace" if kind.namespaced else "cluster-wide"
    lines = [
        f"## {kind.name}",
        "",
        whole["description"],
        "",
        f"`kubectl get {kind.plural}` (short `{kind.short}`), {scope}. Columns: {columns}.",
        "",
    ]
    for part in ("spec", "status"):
        inner = whole["properties"][part]
        lines += [f"### {kind.name} {part}", "", inner["description"], ""]
        lines += ["| field | type | description |", "|---|---|---|"]
        lines += list(_rows(inner, ""))
        lines += ["", *_immutable(inner), *_rules(inner)]
    return "\n".join(lines)


def _rows(node: schema.Schema, path: str) -> Iterator[str]:
    required = set(node.get("required", ()))
    for name, value in node.get("properties", {}).items():
        place = f"{path}.{name}".removeprefix(".")
        mark = " **required**" if name in required else ""
        text = value["description"] + _extras(value)
        yield f"| `{place}` | {_type(value)}{mark} | {_cell(text)} |"
        inner, suffix = (value["items"], "[]") if "items" in value else (value, "")
        yield from _rows(inner, place + suffix)


def _type(node: schema.Schema) -> str:
    if "items" in node:
        return f"list of {_type(node['items'])}"
    if "additionalProperties" in node:
        return "map of strings"
    return str(node.get("format", node["type"]))


def _extras(node: schema.Schema) -> str:
    bounds = _bounds(node)
    extra = ""
    # What the text says already, and the length of what is no text of the user's, is left out.
    if str(node.get("maximum", "-")) in node["description"] or "quantity" in str(node):
        bounds = ""
    if "enum" in node:
        extra += " One of " + ", ".join(f"`{value}`" for value in node["enum"]) + "."
    if bounds:
        extra += f" {bounds}."
    if "default" in node:
        extra += f" Default `{_literal(node['default'])}`."
    return extra


def _bounds(node: schema.Schema) -> str:
    unit = {"string": "characters", "array": "items", "object": "entries"}.get(node["type"], "")
    found = []
    for low, high in (
        ("minimum", "maximum"),
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
    ):
        least, most = node.get(low), node.get(high)
        if most is not None and most != 2**31 - 1:
            found.append(f"From {least} to {most}" if least else f"At most {most}")
        elif least:
            found.append(f"At least {least}")
    return f"{found[0]} {unit}".strip() if found else ""


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _immutable(node: schema.Schema) -> list[str]:
    """One sentence for the many rules of one form."""
    named = [
        f"`{rule['fieldPath'].removeprefix('.')}`"
        for rule in node.get(rules.VALIDATIONS, ())
        if rule["message"].endswith(rules.IMMUTABLE)
    ]
    return [f"After creation, {', '.join(named)} {rules.IMMUTABLE}.", ""] if named else []


def _rules(node: schema.Schema) -> list[str]:
    """What CEL says of the part as a whole and of what is in it, each message once."""
    lines: dict[str, None] = {}
    for path, inner in schema.walk(node):
        for rule in inner.get(rules.VALIDATIONS, ()):
            if rule["message"].endswith(rules.IMMUTABLE):
                continue
            place = (path + rule.get("fieldPath", "")).removeprefix(".")
            lines[f"- {f'`{place}`: ' if place else ''}{_text(rule['message'])}"] = None
    return ["Rules:", "", *lines, ""] if lines else []


def _policies() -> str:
    """What the admission policies say, in their own words."""
    lines = [
        "## Rules that need more than one object",
        "",
        "The API server judges these by ValidatingAdmissionPolicies. What a class allows is judged"
        " again when the object is bound; a class that does not exist yet refuses nothing.",
        "",
    ]
    for document in admission.documents():
        if document["kind"] == "ValidatingAdmissionPolicy":
            found = dict.fromkeys(check["message"] for check in document["spec"]["validations"])
            lines += [f"`{document['metadata']['name']}`:", "", *map(_point, found), ""]
    return "\n".join(lines)


def _point(text: str) -> str:
    return f"- {_text(text)}"


def _conditions() -> str:
    kinds = {
        "Execution": conditions.EXECUTION_TYPES,
        "Process": conditions.PROCESS_TYPES,
        "Checkpoint": conditions.CHECKPOINT_TYPES,
        "ExecutionClass": conditions.CLASS_TYPES,
        "ExecutionNode": conditions.NODE_TYPES,
    }
    lines = ["## Conditions", "", "| type | on | meaning |", "|---|---|---|"]
    for name, meaning in conditions.MEANINGS.items():
        on = ", ".join(kind for kind, types in kinds.items() if name in types)
        lines.append(f"| `{name}` | {on} | {_cell(meaning)} |")
    return "\n".join([*lines, ""])


def _reasons() -> str:
    lines = [
        "## Reasons",
        "",
        "The list is closed: a reason never changes its meaning, and programs may rely on it. In"
        " the last column: the error codes and states that it stands for, of the systems whose work"
        " Isolet does (docs/seed-mapping.md).",
        "",
    ]
    for family in reasons.Family:
        lines += [f"### {family.value}", "", "| reason | meaning | stands for |", "|---|---|---|"]
        for reason in reasons.REASONS.values():
            if reason.family is family:
                seed = ", ".join(f"`{code}`" for code in reason.seed)
                lines.append(f"| `{reason.name}` | {_cell(reason.text)} | {seed} |")
        lines.append("")
    return "\n".join(lines)


def _reserved() -> str:
    rows = [f"| {name} | {meaning} |" for name, meaning in _RESERVED.items()]
    return "\n".join(["## Reserved names", "", "| name | what it is |", "|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Markdown would take `<digest>` for a tag."""
    return text.replace("<", "&lt;").replace(">", "&gt;")
