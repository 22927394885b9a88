"""The runner contract of a class: the program that waits in a warm sandbox for one document."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from isolet.api import fields, inputs, meta, rules, sandbox
from isolet.base import envnames

MAX_FILES = 16
MAX_FILE = 65_536


class Mode(StrEnum):
    """How a runner tells of its result, beside its events."""

    CALLBACK = "callback"
    CALLBACK_QUEUED = "callback-queued"
    STREAM = "stream"


RUN_ID_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
RunID = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=RUN_ID_PATTERN)]
PayloadDigest = Annotated[str, StringConstraints(max_length=71, pattern="^sha256:[0-9a-f]{64}$")]
MAX_PAYLOAD_BYTES = 8 << 20

_PRIVATE = "PRIVATE KEY"


def _check_public(text: str) -> str:
    if _PRIVATE in text:
        raise ValueError(_NO_PRIVATE.message)
    return text


_NO_PRIVATE = rules.Rule(
    rule=f"!self.contains({rules.quote(_PRIVATE)})",
    message="must hold no private key: everyone who may read the class, and every run, sees it",
)
Content = Annotated[
    str,
    StringConstraints(max_length=MAX_FILE),
    AfterValidator(_check_public),
    rules.on_field(_NO_PRIVATE),
]
PublicKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=16_384, pattern="^-----BEGIN PUBLIC KEY-----"),
    AfterValidator(_check_public),
    rules.on_field(_NO_PRIVATE),
]
ReadyLine = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern="^[ -~]+$")]


class RunnerEnv(meta.Model):
    """One variable that every run of the class is given; nothing of a tenant."""

    model_config = rules.on_model(
        rules.Rule(
            rule=f"!self.name.matches({rules.quote(envnames.CREDENTIAL_PATTERN)})",
            message="the name looks like a credential's, and every run of the class would see it",
            field=".name",
        )
    )

    name: inputs.EnvName
    """Name: a letter or underscore, then letters, digits and underscores."""
    value: inputs.EnvValue
    """The value, as it is."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if envnames.looks_like_credential(self.name):
            raise ValueError("the name looks like a credential's")
        return self


class RunnerFile(meta.Model):
    """One file that every run of the class is given, such as a public key."""

    path: fields.Path
    """Where: a normalised path relative to the workspace."""
    content: Content
    """Content as text, at most 65536 characters; no private key."""


class Budgets(meta.Model):
    """How long each part of a run may take. They bound a run, and not the class's deadlines."""

    startup_seconds: Annotated[meta.Int32, Field(ge=1, le=600)] = 120
    """From the assignment until the runner has taken its document; of a fresh slot, from its start
    until it is ready."""
    execution_seconds: sandbox.Seconds = 3600
    """From then until its terminal event."""
    finalization_seconds: Annotated[meta.Int32, Field(ge=1, le=300)] = 60
    """From its terminal event until it has ended."""
    cleanup_seconds: Annotated[meta.Int32, Field(ge=1, le=300)] = 30
    """From its end until all of it is confirmed gone. What takes longer is quarantined."""


class Runner(meta.Model):
    """What is started ahead of any tenant and waits for one document on its stdin."""

    model_config = rules.on_model(
        rules.Rule(
            rule=(
                "self.command.map(a, size(a)).sum()"
                " + (has(self.env) ? self.env.map(e, size(e.value)).sum() : 0)"
                " + (has(self.files) ? self.files.map(f, size(f.content)).sum() : 0)"
                f" <= {fields.MAX_INLINE}"
            ),
            message=(
                f"command, env values and files together must be at most {fields.MAX_INLINE}"
                " characters long"
            ),
        )
    )

    command: sandbox.Command
    """Program and arguments. It writes its ready line, reads one line
    {"mode": …, "payload": {…}} to the end of its stdin, and writes one JSON object a line."""
    env: Annotated[tuple[RunnerEnv, ...], Field(max_length=64), rules.list_map("name")] | None = (
        None
    )
    """Environment variables, the same for every run."""
    files: (
        Annotated[
            tuple[RunnerFile, ...],
            Field(max_length=MAX_FILES),
            rules.list_map("path"),
            rules.on_field(fields.NO_FILE_BELOW_A_FILE),
        ]
        | None
    ) = None
    """Files, the same for every run; none below the path of another."""
    ready_line: ReadyLine = "ready"
    """The first line it writes, once it waits for its document."""
    budgets: Budgets = Budgets()
    """How long each part of a run may take."""
    binding_key: PublicKey | None = None
    """Public key (PEM) with which the front door checks that a document's `executor_jwt` was signed
    for exactly this run. Absent: the runner alone checks it."""


class Dispatch(meta.Model):
    """One document for a runner. The document itself is in no object."""

    run_id: RunID = Field(alias="runID")
    """Id of the run, from its caller. A run is begun at most once."""
    mode: Mode
    """callback, callback-queued or stream."""
    payload_digest: PayloadDigest
    """SHA-256 of the document."""
    payload_bytes: Annotated[meta.Int32, Field(ge=1, le=MAX_PAYLOAD_BYTES)]
    """Size of the document."""
