"""What an object's class must allow, told when the object is created.

A policy cannot look a class up by its name. So every ExecutionClass is a parameter, and one that
the object does not use has nothing to say. Where there is no class at all nothing is refused: an
object may be older than its class and waits for it. The binding checks all of this again, against
the class as it is then, and what runs keeps what was pinned.
"""

from typing import Any

from isolet.api import bounds, execution, executionclass, meta, policy, process

_PARAMETERS = {"apiVersion": meta.API_VERSION, "kind": executionclass.KIND}
_REFERENCE = {"selector": {}, "parameterNotFoundAction": "Allow"}

_GRANTED = (
    "params.spec.namespaceSelector.?matchLabels.orValue({}).all(k, k in variables.labels"
    " && variables.labels[k] == params.spec.namespaceSelector.matchLabels[k])"
    " && params.spec.namespaceSelector.?matchExpressions.orValue([]).all(e,"
    " e.operator == 'In' ? e.key in variables.labels && variables.labels[e.key] in e.values"
    " : e.operator == 'NotIn' ? !(e.key in variables.labels)"
    " || !(variables.labels[e.key] in e.values)"
    " : e.operator == 'Exists' ? e.key in variables.labels : !(e.key in variables.labels))"
)
"""`LabelSelector.matches` as CEL."""


class _Checks:
    """Collects the checks of one kind; each speaks only of the class that the object uses."""

    def __init__(self, at: str, asked: str, creating: str) -> None:
        self.at = at
        """Where the sandbox is asked for, for messages: `spec` or `spec.template`."""
        self.asked = asked
        self.creating = creating
        self.found: list[policy.Check] = []

    def add(
        self, field: str, must: str, text: str, *, most: str | None = None, when: str | None = None
    ) -> None:
        """A check on one field.

        Args:
            field: path below the sandbox's place.
            must: CEL that has to hold.
            text: what is wrong, after "class x ".
            most: CEL of the amount that the message ends with.
            when: CEL that says whether to look; absent: at creation.
        """
        where = f"{self.at}.{field}" if field else self.at
        self.found.append(
            policy.Check(
                expression=f"!variables.used || !({when or self.creating}) || ({must})",
                message=f"'{where}: class ' + params.metadata.name + ' {text}'"
                + (f" + ' ' + string({most})" if most else ""),
                fallback=f"{where}: "
                + ("over the class's maximum" if most else f"the class {text}"),
            )
        )


def _value(name: str) -> str:
    """CEL: a bound as the object and the class together give it."""
    return f"variables.own.?{name}.or(variables.fallback.?{name})"


def _bound_checks(checks: _Checks, restored: str) -> None:
    for name in bounds.NAMES:
        given = f"{restored} || has(variables.own.{name}) || has(variables.fallback.{name})"
        checks.add(
            f"resources.{name}", given, "has no default for it: it is mandatory and must be given"
        )
        most = f"params.spec.resources.maximum.{name}"
        within = (
            f"int(variables.own.{name}) <= int({most})"
            if name == "pids"
            else f"quantity(variables.own.{name}).compareTo(quantity({most})) <= 0"
        )
        checks.add(
            f"resources.{name}",
            f"!has(variables.own.{name}) || {within}",
            "allows at most",
            most=most,
        )
    parts = " + ".join(
        f"{_value(name)}.optMap(q, quantity(q).asApproximateFloat()).orValue(0.0)"
        for name in ("tmp", "shm")
    )
    workspace = f"{_value('workspace')}.optMap(q, quantity(q).asApproximateFloat()).orValue(0.0)"
    memory = f"{_value('memory')}.optMap(q, quantity(q).asApproximateFloat())"
    checks.add(
        "resources",
        f"{restored} || {parts} + (variables.medium == 'Memory' ? {workspace} : 0.0)"
        f" <= {memory}.orValue(1.0e18)",
        "completes it so that tmp, shm and a Memory workspace, which are memory, do not fit into"
        " memory",
    )


def _common(checks: _Checks, restored: str) -> None:
    checks.add("className", _GRANTED, "is not granted to this namespace (its namespaceSelector)")
    checks.add(
        "image",
        "!has(variables.asked.image) || variables.asked.image in params.spec.images.allowed",
        "does not allow this image",
    )
    checks.add(
        "image",
        f"{restored} || has(variables.asked.image) || has(params.spec.images.default)",
        "has no default image: one must be given",
    )
    _bound_checks(checks, restored)
    checks.add(
        "workspace.medium",
        "variables.medium in params.spec.workspace.media",
        "does not allow this medium",
    )
    checks.add(
        "workspace.git.repository",
        "!has(variables.asked.workspace) || !has(variables.asked.workspace.git)"
        " || variables.asked.workspace.git.repository"
        " in params.spec.workspace.?gitRepositories.orValue([])",
        "does not allow this repository",
    )
    most = "params.spec.workspace.maximumRetainSeconds"
    checks.add(
        "workspace.retainSeconds",
        f"variables.asked.?workspace.?retainSeconds.orValue(0) <= {most}",
        "allows at most",
        most=most,
    )


def _secret_check(checks: _Checks, uses: str) -> None:
    checks.found.append(
        policy.Check(
            expression=(
                f"!variables.used || !({checks.creating}) || params.spec.env.allowSecretRefs"
                f" || !({uses})"
            ),
            message=(
                "'spec: class ' + params.metadata.name + ' does not allow secretKeyRef"
                " (env.allowSecretRefs)'"
            ),
            fallback="spec: the class does not allow secretKeyRef (env.allowSecretRefs)",
        )
    )


_ENV_SECRET = (
    "object.spec.?env.orValue([]).exists(e, has(e.valueFrom) && has(e.valueFrom.secretKeyRef))"
)


def _variables(asked: str) -> dict[str, str]:
    return {
        "labels": "namespaceObject.metadata.?labels.orValue({})",
        "asked": asked,
        "used": (
            "has(variables.asked.className) ? variables.asked.className == params.metadata.name"
            " : params.spec.?isDefault.orValue(false)"
        ),
        "own": "variables.asked.?resources.orValue({})",
        "fallback": "params.spec.resources.?default.orValue({})",
        "medium": "variables.asked.?workspace.?medium.orValue('Disk')",
    }


def executions() -> list[dict[str, Any]]:
    """Executions against their class."""
    checks = _Checks("spec", "object.spec", "request.operation == 'CREATE'")
    _common(checks, "has(object.spec.restoreFrom)")
    _secret_check(checks, _ENV_SECRET)
    deadline, most = "object.spec.activeDeadlineSeconds", "params.spec.deadlines.maximumSeconds"
    checks.add(
        "activeDeadlineSeconds",
        f"!has({deadline}) || {deadline} <= {most}",
        "allows at most",
        most=most,
        # Judged by the class as it is now; what runs may have pinned a smaller maximum.
        when="oldObject == null || !has(oldObject.spec.activeDeadlineSeconds)"
        f" || !has({deadline}) || oldObject.spec.activeDeadlineSeconds != {deadline}",
    )
    idle, longest = (
        "object.spec.idleTimeoutSeconds",
        "params.spec.deadlines.?maximumIdleTimeoutSeconds",
    )
    checks.add(
        "idleTimeoutSeconds",
        f"!has({idle}) || {idle} <= {longest}.orValue({idle})",
        "allows at most",
        most=f"{longest}.orValue(0)",
    )
    return policy.documents(
        "isolet-execution-class",
        resources=[execution.PLURAL],
        operations=("CREATE", "UPDATE"),
        parameters=_PARAMETERS,
        reference=_REFERENCE,
        variables=_variables("object.spec"),
        checks=checks.found,
    )


def processes() -> list[dict[str, Any]]:
    """Processes that have a sandbox of their own against its class."""
    checks = _Checks("spec.template", "object.spec.template", "request.operation == 'CREATE'")
    _common(checks, "false")
    stdin = "has(object.spec.stdin) && has(object.spec.stdin.secretKeyRef)"
    files = "object.spec.?files.orValue([]).exists(f, has(f.secretKeyRef))"
    _secret_check(checks, f"{_ENV_SECRET} || {files} || {stdin}")
    return policy.documents(
        "isolet-process-class",
        resources=[process.PLURAL],
        operations=("CREATE",),
        parameters=_PARAMETERS,
        reference=_REFERENCE,
        conditions={"has-a-sandbox-of-its-own": "has(object.spec.template)"},
        variables=_variables("object.spec.template"),
        checks=checks.found,
    )


def one_default() -> list[dict[str, Any]]:
    """At most one default class, as far as one request can see."""
    name = "params.metadata.name"
    return policy.documents(
        "isolet-default-class",
        resources=[executionclass.PLURAL],
        operations=("CREATE", "UPDATE"),
        parameters=_PARAMETERS,
        reference=_REFERENCE,
        conditions={"is-default": "has(object.spec.isDefault) && object.spec.isDefault"},
        variables={},
        checks=[
            policy.Check(
                expression=(
                    f"{name} == object.metadata.name || !params.spec.?isDefault.orValue(false)"
                ),
                message=f"'spec.isDefault: class ' + {name} + ' is the default already'",
                fallback="spec.isDefault: another class is the default already",
            )
        ],
    )
