"""May this run here? Every rule again, whoever has checked it before. Pure.

Each function looks at one thing and yields what is wrong with it: the field, the rule, and a
message that names the bound. Values of arguments and of the environment are never part of one.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pydantic

from isolet.agent.policy.model import NodePolicy
from isolet.base import envnames, imageref
from isolet.wire.execution import EnvVar, ExecRequest, ExecutionSpec, ExecutionWanted, Medium
from isolet.wire.node import Amounts
from isolet.wire.pool import PoolWanted
from isolet.wire.process import ProcessSpec, files_problem

MAX_ARGUMENT_BYTES = 131_071
"""Linux' MAX_ARG_STRLEN without the NUL: for one argument, and for one NAME=value."""

MAX_TOTAL_BYTES = (2 << 20) - 8192
"""Arguments and environment together, as the kernel counts them, less some for the runtime's."""

MAX_ID = 4_294_967_294
_PER_STRING = 9
"""What the kernel adds to each string: its NUL and a pointer."""
_USER = re.compile(r"([0-9]{1,10}):([0-9]{1,10})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that is broken."""

    field: str
    rule: str
    """Name of the rule, for machines."""
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def violations(
    spec: ExecutionSpec, policy: NodePolicy, *, image_names: Sequence[str] = ()
) -> tuple[Violation, ...]:
    """All that stands against running `spec` here.

    Args:
        spec: what is to run.
        policy: what the node allows.
        image_names: names under which the node has the image, for one that is given by its id.
    """
    return tuple(
        violation
        for check in (
            _bounds(ExecutionSpec, spec),
            _image(spec.image, policy, image_names),
            _runtime(spec, policy),
            _user(spec.user),
            _maximum(spec, policy),
            _fits_memory(spec),
            _workspace(spec, policy),
            _git(spec, policy),
            _times(spec, policy),
            _strings(spec.command, spec.env),
            _environment(spec.env),
        )
        for violation in check
    )


def wanted_violations(
    wanted: ExecutionWanted, policy: NodePolicy, *, image_names: Sequence[str] = ()
) -> tuple[Violation, ...]:
    """As `violations`, with the fields beside the spec."""
    found = violations(wanted.spec, policy, image_names=image_names)
    limit = wanted.spec.maximum_deadline_seconds
    if not 1 <= wanted.active_deadline_seconds <= limit:
        message = f"{wanted.active_deadline_seconds} is not between 1 and the maximum {limit}"
        found += (Violation("activeDeadlineSeconds", "DeadlineBound", message),)
    return found


def exec_violations(request: ExecRequest) -> tuple[Violation, ...]:
    """All that stands against running a command in a session."""
    return (
        *_bounds(ExecRequest, request),
        *_strings(request.command, request.env),
        *_environment(request.env),
        *_cwd(request.cwd),
    )


def process_violations(spec: ProcessSpec) -> tuple[Violation, ...]:
    """All that stands against running a Process, its sandbox apart."""
    return (
        *_bounds(ProcessSpec, spec),
        *_strings(spec.argv(), spec.env),
        *_environment(spec.env),
    )


def pool_violations(
    wanted: PoolWanted, policy: NodePolicy, *, image_names: Sequence[str] = ()
) -> tuple[Violation, ...]:
    """All that stands against the slots of a pool. It closes that pool and no other of the wish."""
    found = violations(wanted.spec(), policy, image_names=image_names)
    problem = None if wanted.runner is None else files_problem(wanted.runner.files)
    return found if problem is None else (*found, Violation("runner.files", "FilesFit", problem))


def demand(spec: ExecutionSpec) -> Amounts:
    """What the sandbox takes of the node's capacity."""
    return Amounts.of_sandbox(spec.resources, spec.workspace.medium)


def room(policy: NodePolicy, allocated: Amounts, spec: ExecutionSpec) -> str | None:
    """None if the node has room beside what is promised, else what it lacks."""
    capacity, more = policy.capacity_amounts(), demand(spec)
    lacks = [
        f"{unit} (of {has} are {taken} promised, {asked} more are asked for)"
        for unit, has, taken, asked in (
            ("millicores of CPU", capacity.cpu_millis, allocated.cpu_millis, more.cpu_millis),
            ("bytes of memory", capacity.memory_bytes, allocated.memory_bytes, more.memory_bytes),
            ("bytes of disk", capacity.disk_bytes, allocated.disk_bytes, more.disk_bytes),
            ("sandboxes", capacity.executions, allocated.executions, more.executions),
        )
        if asked and taken + asked > has
    ]
    return f"the node has no room for more {', '.join(lacks)}" if lacks else None


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptCheckpoints:
    """What the node holds of Checkpoints, those being taken among them."""

    count: int
    of_namespace: int
    """How many of them are of the namespace that asks."""
    bytes: int


def checkpoint_quota(policy: NodePolicy, kept: KeptCheckpoints) -> str | None:
    """None if the node takes another Checkpoint, else what is used up."""
    most = policy.checkpoints
    if kept.count >= most.count:
        return f"the node keeps {kept.count} Checkpoints, of at most {most.count}"
    if most.namespace_count is not None and kept.of_namespace >= most.namespace_count:
        return (
            f"the node keeps {kept.of_namespace} Checkpoints of this namespace, "
            f"of at most {most.namespace_count}"
        )
    if kept.bytes >= most.bytes:
        return f"the node's Checkpoints take {kept.bytes} bytes, of at most {most.bytes}"
    return None


def _bounds(model: type[pydantic.BaseModel], value: pydantic.BaseModel) -> Iterator[Violation]:
    """What the message's own types say, once more: a caller in this process may have passed by."""
    try:
        model.model_validate(value.model_dump(by_alias=True, warnings=False))
    except pydantic.ValidationError as error:
        for found in error.errors(include_input=False, include_url=False, include_context=False):
            yield Violation(".".join(map(str, found["loc"])), "Bounds", found["msg"])


def _image(image: str, policy: NodePolicy, names: Sequence[str]) -> Iterator[Violation]:
    if not imageref.is_pinned(image):
        message = (
            "must be name@sha256:<64 lower-case hex digits> or a local id sha256:<64 such digits>"
        )
        yield Violation("image", "ImagePinned", message)
    elif not _is_allowed(image, policy.images, names):
        yield Violation("image", "ImageAllowed", f"{image} is not among the images of this node")


def _is_allowed(image: str, patterns: Iterable[str], names: Sequence[str]) -> bool:
    """Whether a pattern is the reference itself, or matches a name that the image has."""
    name, _, digest = image.rpartition("@")
    candidates = {image, digest, *names, *([name] if name else [])}
    return any(
        pattern == "*" or fnmatch.fnmatchcase(candidate, pattern)
        for pattern in patterns
        for candidate in candidates
    )


def _runtime(spec: ExecutionSpec, policy: NodePolicy) -> Iterator[Violation]:
    if spec.runtime not in policy.runtimes:
        allowed = ", ".join(policy.runtimes)
        message = f"{spec.runtime} is not allowed on this node, which allows {allowed}"
        yield Violation("runtime", "RuntimeAllowed", message)


def _user(user: str) -> Iterator[Violation]:
    match = _USER.match(user)
    if match is None or not all(1 <= int(part) <= MAX_ID for part in match.groups()):
        message = f"must be <uid>:<gid>, both numbers from 1 to {MAX_ID}"
        yield Violation("user", "UserNumeric", message)


def _maximum(spec: ExecutionSpec, policy: NodePolicy) -> Iterator[Violation]:
    asked, most, has = spec.resources, policy.maximum, policy.capacity
    disk = has.disk if spec.workspace.medium is Medium.DISK else most.workspace
    for field, value, bound, whole in (
        ("cpuMillis", asked.cpu_millis, most.cpu, has.cpu),
        ("memoryBytes", asked.memory_bytes, most.memory, has.memory),
        ("workspaceBytes", asked.workspace_bytes, most.workspace, disk),
        ("tmpBytes", asked.tmp_bytes, most.tmp, most.tmp),
        ("shmBytes", asked.shm_bytes, most.shm, most.shm),
        ("pids", asked.pids, most.pids, most.pids),
        ("outputBytes", asked.output_bytes, most.output, most.output),
    ):
        if value > bound:
            message = f"{value} is over this node's maximum of {bound}"
            yield Violation(f"resources.{field}", "NodeMaximum", message)
        elif value > whole:
            message = f"{value} is more than the whole node gives to sandboxes ({whole})"
            yield Violation(f"resources.{field}", "NodeCapacity", message)


def _fits_memory(spec: ExecutionSpec) -> Iterator[Violation]:
    """Pages of a tmpfs count as memory: filling one must be ENOSPC and not an OOM kill."""
    asked = spec.resources
    parts = {"tmp": asked.tmp_bytes, "shm": asked.shm_bytes}
    if spec.workspace.medium is Medium.MEMORY:
        parts = {"workspace": asked.workspace_bytes, **parts}
    if sum(parts.values()) > asked.memory_bytes:
        message = (
            f"{' + '.join(parts)} ({sum(parts.values())} bytes) live in memory and are more than "
            f"memoryBytes ({asked.memory_bytes})"
        )
        yield Violation("resources.memoryBytes", "MemoryHoldsTmpfs", message)


def _workspace(spec: ExecutionSpec, policy: NodePolicy) -> Iterator[Violation]:
    if spec.workspace.medium not in policy.media:
        message = f"{spec.workspace.medium} is not allowed on this node"
        yield Violation("workspace.medium", "MediumAllowed", message)
    if spec.workspace.medium is Medium.DISK and not spec.workspace.executable:
        message = "only a Memory workspace can forbid execution: gVisor ignores it on a volume"
        yield Violation("workspace.executable", "NoexecNeedsMemory", message)
    if spec.restore is not None and spec.workspace.git is not None:
        message = "a workspace begins with a Checkpoint or with a Git revision, not with both"
        yield Violation("restore", "OneBeginning", message)


def _git(spec: ExecutionSpec, policy: NodePolicy) -> Iterator[Violation]:
    source = spec.workspace.git
    if source is not None and policy.git.find(source.repository) is None:
        message = f"{source.repository} is not among the repositories of this node"
        yield Violation("workspace.git.repository", "RepositoryAllowed", message)


def _times(spec: ExecutionSpec, policy: NodePolicy) -> Iterator[Violation]:
    for field, value, bound in (
        ("maximumDeadlineSeconds", spec.maximum_deadline_seconds, policy.maximum_deadline_seconds),
        (
            "workspace.retainSeconds",
            spec.workspace.retain_seconds,
            policy.maximum_retain_seconds,
        ),
    ):
        if value > bound:
            message = f"{value} is over this node's maximum of {bound}"
            yield Violation(field, "NodeMaximum", message)
    if spec.command and spec.idle_timeout_seconds is not None:
        message = "only a session, which has no command, can be idle"
        yield Violation("idleTimeoutSeconds", "IdleNeedsSession", message)


def _strings(command: Sequence[str], env: Sequence[EnvVar]) -> Iterator[Violation]:
    """The kernel's bounds on what a program can be started with."""
    total = 0
    for index, argument in enumerate(command):
        field = f"command.{index}"
        try:
            size = len(argument.encode())
        except UnicodeEncodeError:
            yield Violation(field, "ArgumentText", "must be text that UTF-8 can carry")
            continue
        total += size + _PER_STRING
        if "\0" in argument:
            yield Violation(field, "NoNUL", "must not contain a NUL character")
        if size > MAX_ARGUMENT_BYTES:
            message = f"has {size} bytes; an argument may have {MAX_ARGUMENT_BYTES}"
            yield Violation(field, "ArgumentSize", message)
    if command and not command[0]:
        yield Violation("command.0", "ProgramNamed", "must name a program")
    total += sum(len(v.name) + 1 + len(v.value) + _PER_STRING for v in env)
    if total > MAX_TOTAL_BYTES:
        message = f"arguments and environment have {total} bytes; they may have {MAX_TOTAL_BYTES}"
        yield Violation("command", "TotalSize", message)


def _environment(env: Sequence[EnvVar]) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, variable in enumerate(env):
        field, name = f"env.{index}", variable.name
        if not envnames.is_name(name):
            message = f"{name[:64]!r} is no name of an environment variable"
            yield Violation(f"{field}.name", "EnvName", message)
        elif not variable.secret and envnames.looks_like_credential(name):
            message = f"{name} looks like a credential; its value must come from a Secret"
            yield Violation(f"{field}.name", "CredentialFromSecret", message)
        if name in seen:
            yield Violation(f"{field}.name", "EnvUnique", f"{name[:64]} is given twice")
        seen.add(name)
        if b"\0" in variable.value:
            yield Violation(f"{field}.value", "NoNUL", f"{name[:64]}: must not contain a NUL byte")


def _cwd(cwd: str | None) -> Iterator[Violation]:
    if cwd is not None and (not cwd.startswith("/") or "\0" in cwd or len(cwd.encode()) > 4095):
        message = "must be an absolute path of at most 4095 bytes without NUL"
        yield Violation("cwd", "AbsolutePath", message)
