"""The agent's interface over HTTP: paths, headers, bounds, and the bodies that only HTTP has.

Client and server share this module and nothing else; docs/agent-api.md tells the same to people.
"""

import re

from pydantic import Field

from isolet.wire.base import UID_PATTERN, Uid, Wire
from isolet.wire.execution import ExecRequest, ExecResult
from isolet.wire.faults import Fault
from isolet.wire.node import Stray
from isolet.wire.process import FileEntry

NO_SUCH_PATH = "NoSuchPath"
"""Reason of a 404 for a path, as opposed to one for a thing: an older agent, or another server."""
INTERNAL_ERROR = "InternalError"
UNSUPPORTED_WIRE_VERSION = "UnsupportedWireVersion"

EXECUTIONS = "/v1/executions"
PROCESSES = "/v1/processes"
PROCESSES_FORGET = "/v1/processes:forget"
CHECKPOINTS = "/v1/checkpoints"
DISPATCHES = "/v1/dispatches"
SLOTS_RESERVE = "/v1/slots:reserve"
SLOTS_RELEASE = "/v1/slots:release"
WATCH = "/v1/watch"
NODE = "/v1/node"
STRAYS_REMOVE = "/v1/strays:remove"
POOLS = "/v1/pools"
HEALTHZ = "/healthz"
READYZ = "/readyz"
METRICS = "/metrics"

HEADER_REQUEST_ID = "Isolet-Request-Id"
HEADER_WIRE_VERSIONS = "Isolet-Wire-Versions"
HEADER_OUTPUT_OFFSET = "Isolet-Output-Offset"
HEADER_OUTPUT_TOTAL = "Isolet-Output-Total"
HEADER_OUTPUT_COMPLETE = "Isolet-Output-Complete"
HEADER_GRANT = "Isolet-Grant"
HEADER_ARTIFACT_SIZE = "Isolet-Artifact-Size"
HEADER_ARTIFACT_DIGEST = "Isolet-Artifact-Digest"

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
FRAMED = "application/vnd.isolet.framed"
"""JSON on one line, then bytes as they are: a command's input or output.

Base64 in JSON serves as well, but at 64 MiB it holds up an event loop for a good part of a second.
"""

MAX_OUTPUT_CHUNK = 1 << 20
"""Most bytes of output in one answer; a larger `limit` is cut to it."""

MAX_BODY = 64 << 10
MAX_WANTED_BODY = 16 << 20
"""A command line and environment of 2 MiB, each character escaped as six."""
MAX_POOLS_BODY = 64 << 20
"""256 classes, each with files for its runner."""
MAX_PROCESS_BODY = 64 << 20
"""Files and input of 16 MiB each as base64, and a command line."""
MAX_STDIN = 64 << 20
MAX_EXEC_BODY = 96 << 20
"""64 MiB of stdin or output as base64, and the command line."""
MAX_ANSWER = 64 << 20
"""A snapshot of a node that holds tens of thousands of records."""
MAX_LINE = 1 << 20
MAX_EVENT_LINE = 8 << 20
"""An event of 1 MiB, each character of it escaped as six, and what stands around it."""

IDENTITY_OPERATOR = "isolet:operator"
IDENTITY_STREAM = "isolet:stream"
IDENTITY_DISPATCH = "isolet:dispatch"
IDENTITIES = (IDENTITY_OPERATOR, IDENTITY_STREAM, IDENTITY_DISPATCH)

NODE_DOMAIN = "node.isolet.dev"


_UID = re.compile(UID_PATTERN.rstrip("$") + r"\Z")
_FENCE = re.compile(r"[!-~]{1,256}\Z")


def is_uid(text: str) -> bool:
    """Whether `text` can name an Execution, and so stand in a path as it is."""
    return _UID.match(text) is not None


def is_fence(text: str) -> bool:
    """Whether `text` can stand in the fence header: printable, no blanks, not endless."""
    return _FENCE.match(text) is not None


def server_name(node: str) -> str:
    """The DNS name in the certificate of a node's agent; it is checked, never looked up."""
    return f"{node}.{NODE_DOMAIN}"


def execution(uid: str) -> str:
    """Path of one Execution. `uid` needs no quoting: its pattern has no character that would."""
    return f"{EXECUTIONS}/{uid}"


def output(uid: str, stream: str) -> str:
    """Path of a stored output stream."""
    return f"{EXECUTIONS}/{uid}/output/{stream}"


def exec_(uid: str) -> str:
    """Path that runs a command in a session."""
    return f"{EXECUTIONS}/{uid}/exec"


def process(uid: str) -> str:
    """Path of one Process."""
    return f"{PROCESSES}/{uid}"


def process_output(uid: str, stream: str) -> str:
    """Path of a stored output stream of a Process."""
    return f"{PROCESSES}/{uid}/output/{stream}"


def artifact(uid: str) -> str:
    """Path of an artifact, whose own path is in the query."""
    return f"{PROCESSES}/{uid}/artifact"


def file(uid: str) -> str:
    """Path of a file of a session, whose own path is in the query."""
    return f"{EXECUTIONS}/{uid}/file"


def files(uid: str) -> str:
    """Path that lists a folder of a session."""
    return f"{EXECUTIONS}/{uid}/files"


def checkpoint(uid: str) -> str:
    """Path of one Checkpoint."""
    return f"{CHECKPOINTS}/{uid}"


def grant(uid: str) -> str:
    """Path that lets another node read one Checkpoint."""
    return f"{CHECKPOINTS}/{uid}/grant"


def dispatch(uid: str) -> str:
    """Path of one run."""
    return f"{DISPATCHES}/{uid}"


def dispatch_events(uid: str) -> str:
    """Path of a run's events."""
    return f"{DISPATCHES}/{uid}/events"


def part(uid: str, name: str) -> str:
    """Path of one of the files of a Checkpoint."""
    return f"{CHECKPOINTS}/{uid}/parts/{name}"


class ForgetRequest(Wire):
    """Body of `POST /v1/processes:forget`."""

    uids: tuple[Uid, ...] = Field(max_length=1000)


class GrantRequest(Wire):
    """Body of `POST /v1/checkpoints/{uid}/grant`."""

    reader: str = Field(min_length=1, max_length=253)
    """Name of the node that is to read."""
    seconds: int = Field(ge=1, le=3600)


class ForgetAnswer(Wire):
    """Its answer: how many tombstones were dropped."""

    forgotten: int


class FilesAnswer(Wire):
    """Answer of a listing."""

    entries: tuple[FileEntry, ...]


class StraysRequest(Wire):
    """Body of `POST /v1/strays:remove`."""

    names: tuple[str, ...] = Field(max_length=1000)


class StraysAnswer(Wire):
    """Its answer: those that are still there."""

    strays: tuple[Stray, ...]


class WatchFault(Wire):
    """The last line of a watch stream that ended with an error after it had begun."""

    status: int
    fault: Fault


class _ResultHead(ExecResult):
    """The JSON part of a framed result."""

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_length: int = Field(ge=0)


def frame_request(request: ExecRequest) -> bytes:
    """A command with its input, framed."""
    head = request.model_copy(update={"stdin": b""}).to_json()
    return b"\n".join((head, request.stdin))


def unframe_request(body: bytes) -> ExecRequest:
    """A framed command; raises ValueError when it is none."""
    head, newline, stdin = body.partition(b"\n")
    if not newline or len(stdin) > MAX_STDIN:
        raise ValueError(f"must be JSON, a newline and at most {MAX_STDIN} bytes of input")
    return ExecRequest.model_validate_json(head).model_copy(update={"stdin": stdin})


def frame_result(result: ExecResult) -> bytes:
    """What a command did, framed: stdout and then stderr follow the newline."""
    head = _ResultHead(
        exit_code=result.exit_code,
        started_at=result.started_at,
        completed_at=result.completed_at,
        stdout_length=len(result.stdout),
    )
    return b"".join((head.to_json(), b"\n", result.stdout, result.stderr))


def unframe_result(body: bytes) -> ExecResult:
    """A framed result; raises ValueError when it is none."""
    head, newline, output_ = body.partition(b"\n")
    known = _ResultHead.model_validate_json(head)
    if not newline or known.stdout_length > len(output_):
        raise ValueError("the output is shorter than it says")
    return ExecResult(
        exit_code=known.exit_code,
        started_at=known.started_at,
        completed_at=known.completed_at,
        stdout=output_[: known.stdout_length],
        stderr=output_[known.stdout_length :],
    )
