"""The message that starts something: the object, what was pinned, and the values. PURE."""

from typing import Any, assert_never

import pydantic

from isolet.api import execution, process, reasons
from isolet.base import quantity
from isolet.plan import values
from isolet.plan.binding import Effective, Inside, Pinned, deadline_seconds
from isolet.plan.objects import ExecutionFacts, ProcessFacts, Work, explain
from isolet.plan.values import Inputs, Wait
from isolet.wire.checkpoint import Restore
from isolet.wire.execution import ExecutionSpec, ExecutionWanted, Workspace
from isolet.wire.process import (
    Code,
    OnOverflow,
    OutputPolicy,
    ProcessSpec,
    ProcessWanted,
    Sandbox,
)

Wanted = ExecutionWanted | ProcessWanted


def wanted(object_: Work, pinned: Effective, known: Inputs, generation: int) -> Wanted | Wait:
    """The message. `pin_inputs` or `inputs_changed` has been asked before."""
    if object_.spec is None:
        return Wait(reasons.INVALID_SPEC, object_.invalid)
    wait = values.unusable(object_.spec, known)
    if wait is not None:
        return wait
    try:
        match object_:
            case ExecutionFacts():
                return _execution(object_, pinned, known, generation)
            case ProcessFacts():
                return _process(object_, pinned, known, generation)
            case _:
                assert_never(object_)
    except pydantic.ValidationError as error:
        # The API's rules are at least as strict, but for the sizes of what is not inline.
        return Wait(reasons.INVALID_SPEC, explain(error))
    except ValueError:
        return Wait(reasons.INVALID_SPEC, "spec: a value is not the base64 it should be")


def _execution(
    object_: ExecutionFacts, pinned: Effective, known: Inputs, generation: int
) -> ExecutionWanted | Wait:
    spec = object_.spec
    if spec is None or not isinstance(pinned, Pinned):
        return Wait(reasons.INVALID_SPEC, "its binding is not that of an Execution")
    return ExecutionWanted(
        uid=object_.uid,
        namespace=object_.namespace,
        name=object_.metadata.name,
        class_name=pinned.class_name,
        generation=generation,
        spec=_effective(spec, pinned, known),
        active_deadline_seconds=deadline_seconds(object_, pinned)
        or pinned.default_deadline_seconds,
    )


def _effective(spec: execution.ExecutionSpec, pinned: Pinned, known: Inputs) -> ExecutionSpec:
    return ExecutionSpec(
        **_bounds(pinned),
        command=spec.command or (),
        env=values.env(spec, known),
        status_tail_bytes=spec.output.status_tail_bytes if spec.output else 0,
    )


def bare(pinned: Pinned) -> ExecutionSpec:
    """What is pinned of an Execution, without what it runs."""
    return ExecutionSpec(**_bounds(pinned))


def _bounds(pinned: Pinned) -> dict[str, Any]:
    return {
        "image": pinned.run,
        "runtime": pinned.runtime,
        "user": pinned.user,
        "resources": pinned.resources,
        "workspace": _workspace(pinned),
        "tmp_executable": pinned.tmp_executable,
        "maximum_deadline_seconds": pinned.maximum_deadline_seconds,
        "idle_timeout_seconds": pinned.idle_timeout_seconds,
        "restore": _restore(pinned),
    }


def _restore(pinned: Pinned) -> Restore | None:
    what = pinned.restored
    if what is None:
        return None
    return Restore(
        checkpoint_uid=what.uid,
        manifest_digest=what.manifest_digest,
        content_digest=what.content_digest,
    )


def _workspace(pinned: Pinned) -> Workspace:
    return Workspace(
        medium=pinned.medium,
        executable=pinned.workspace_executable,
        retain_seconds=pinned.retain_seconds,
        git=pinned.git,
    )


def _process(
    object_: ProcessFacts, pinned: Effective, known: Inputs, generation: int
) -> ProcessWanted | Wait:
    spec = object_.spec
    if spec is None or (object_.host is None) is isinstance(pinned, Inside):
        return Wait(reasons.INVALID_SPEC, "its binding is not that of this Process")
    return ProcessWanted(
        uid=object_.uid,
        namespace=object_.namespace,
        name=object_.metadata.name,
        class_name=pinned.class_name,
        generation=generation,
        spec=ProcessSpec(
            execution_uid=pinned.execution_uid if isinstance(pinned, Inside) else None,
            sandbox=None if isinstance(pinned, Inside) else _sandbox(pinned),
            command=spec.command or (),
            shell=spec.shell,
            code=None
            if spec.code is None
            else Code(language=spec.code.language.value, source=spec.code.source),
            env=values.env(spec, known),
            files=values.files(spec, known),
            stdin=values.stdin(spec, known),
            cwd=spec.cwd or "",
            timeout_seconds=deadline_seconds(object_, pinned),
            deadline_at=spec.deadline_at,
            artifacts=tuple(rule.glob for rule in spec.artifacts or ()),
            output=_output(spec.output),
            maximum_deadline_seconds=pinned.maximum_deadline_seconds,
        ),
    )


def _sandbox(pinned: Pinned) -> Sandbox:
    return Sandbox(
        image=pinned.run,
        runtime=pinned.runtime,
        user=pinned.user,
        resources=pinned.resources,
        workspace=_workspace(pinned),
        tmp_executable=pinned.tmp_executable,
    )


def _output(asked: process.ProcessOutput | None) -> OutputPolicy:
    if asked is None:
        return OutputPolicy()
    limit = asked.limit
    return OutputPolicy(
        on_overflow=OnOverflow(asked.on_overflow.value),
        limit_bytes=None if limit is None else quantity.to_bytes(limit),
        status_tail_bytes=asked.status_tail_bytes,
    )
