"""Field types that several kinds share: quantities, images, paths, revisions.

Each has one form that is documented, checked by the API server (pattern or CEL) and by Python, from
the same constants.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints
from pydantic_core import core_schema

from isolet.api import rules
from isolet.base import gitnames, imageref, quantity

BYTES_PATTERN = (
    "^(?:[0-9]{1,18}|[0-9]{1,6}(?:\\.[0-9]{1,3})?(?:Ki|Mi|Gi|Ti|k|M|G|T)|[0-9]{1,6}[eE][0-9]{1,2})$"
)
"""Sizes: plain bytes, a number with a suffix, or an exponent. No sign, no fraction of a byte."""

CPU_PATTERN = "^(?:[0-9]{1,3}(?:\\.[0-9]{1,3})?|[0-9]{1,6}m)$"
"""CPUs: up to three decimals, or thousandths with `m`; nothing finer exists."""

_MAX_QUANTITY_LENGTH = 24


@dataclass(frozen=True, slots=True)
class QuantityRange:
    """Marks a string as a quantity between two bounds, in Python and in the API server."""

    pattern: str
    example: str
    low: str
    high: str

    def check(self, text: str) -> str:
        """Refuses what is not a quantity of this range."""
        if len(text) > _MAX_QUANTITY_LENGTH or not re.fullmatch(self.pattern, text):
            raise ValueError(f"must be a quantity such as {self.example}")
        low, value, high = (quantity.parse(q) for q in (self.low, text, self.high))
        if not low <= value <= high:
            raise ValueError(f"must be between {self.low} and {self.high}")
        return text

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Adds the check after the string."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, core: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Adds the same check as CEL: a pattern would name no rule a person understands."""
        form = f"self.matches({rules.quote(self.pattern)})"
        between = (
            f"!{form} || (quantity(self).compareTo(quantity({rules.quote(self.low)})) >= 0"
            f" && quantity(self).compareTo(quantity({rules.quote(self.high)})) <= 0)"
        )
        checks = (
            rules.Rule(rule=form, message=f"must be a quantity such as {self.example}"),
            rules.Rule(rule=between, message=f"must be between {self.low} and {self.high}"),
        )
        return {
            **handler(core),
            "maxLength": _MAX_QUANTITY_LENGTH,
            rules.VALIDATIONS: [check.document() for check in checks],
        }


def _bytes(low: str, high: str) -> QuantityRange:
    return QuantityRange(BYTES_PATTERN, "512Mi, 1Gi or 1000M, written as a string", low, high)


Cpu = Annotated[
    str, QuantityRange(CPU_PATTERN, "1, 0.5 or 250m, written as a string", "10m", "128")
]
Memory = Annotated[str, _bytes("16Mi", "512Gi")]
WorkspaceSize = Annotated[str, _bytes("2Mi", "1Ti")]
TmpSize = Annotated[str, _bytes("1Mi", "512Gi")]
ShmSize = Annotated[str, _bytes("64Ki", "512Gi")]
OutputSize = Annotated[str, _bytes("1", "64Mi")]


def _check_image(image: str) -> str:
    if not imageref.is_pinned(image) and not imageref.is_tagged(image):
        raise ValueError(
            "must be pinned: name@sha256:<64 lower-case hex digits> or a local image id"
            " sha256:<64 lower-case hex digits>; or name:tag where the class resolves tags"
        )
    return image


_IMAGE_RULES = (
    rules.Rule(
        rule=f"!self.contains('@') || self.matches({rules.quote(imageref.DIGEST_PATTERN)})",
        message=(
            "a digest is written name@sha256:<64 lower-case hex digits>, with no tag beside it"
        ),
    ),
    rules.Rule(
        rule=f"!self.startsWith('sha256:') || self.matches({rules.quote(imageref.ID_PATTERN)})",
        message="a local image id is written sha256:<64 lower-case hex digits>",
    ),
    rules.Rule(
        rule=(
            "self.contains('@') || self.startsWith('sha256:')"
            f" || self.matches({rules.quote(imageref.TAG_PATTERN)})"
        ),
        message=(
            "must be pinned: name@sha256:<64 lower-case hex digits> or a local image id"
            " sha256:<64 lower-case hex digits>; or name:tag where the class resolves tags"
        ),
    ),
)
Image = Annotated[
    str,
    StringConstraints(min_length=1, max_length=imageref.MAX_LENGTH),
    AfterValidator(_check_image),
    rules.on_field(*_IMAGE_RULES),
]
"""An image reference."""

_SEGMENT = "(?:[^/.\\x00][^/\\x00]*|\\.[^/.\\x00][^/\\x00]*|\\.\\.[^/\\x00]+)"
PATH_PATTERN = f"^{_SEGMENT}(?:/{_SEGMENT})*$"
"""A relative, normalised path: no `.`, `..`, empty part, leading or trailing slash, or NUL."""


def _check_path(path: str) -> str:
    if not re.fullmatch(PATH_PATTERN.removesuffix("$"), path):
        raise ValueError(_PATH_MESSAGE)
    return path


def _check_folder(path: str) -> str:
    return path and _check_path(path)


_PATH_MESSAGE = (
    "must be a normalised path relative to the workspace, such as out/report.txt: no leading or"
    " trailing slash, no empty, '.' or '..' part"
)
Path = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4095),
    AfterValidator(_check_path),
    rules.on_field(
        rules.Rule(rule=f"self.matches({rules.quote(PATH_PATTERN)})", message=_PATH_MESSAGE)
    ),
]
"""A file in the workspace."""

Folder = Annotated[
    str,
    StringConstraints(max_length=4095),
    AfterValidator(_check_folder),
    rules.on_field(
        rules.Rule(
            rule=f"self == '' || self.matches({rules.quote(PATH_PATTERN)})", message=_PATH_MESSAGE
        )
    ),
]
"""A folder in the workspace; empty is the workspace itself."""

NO_FILE_BELOW_A_FILE = rules.Rule(
    rule=(
        "self.all(f, !self.exists(g, size(g.path) > size(f.path)"
        " && g.path.charAt(size(f.path)) == '/' && g.path.startsWith(f.path)))"
    ),
    message=(
        "no path may lie below another file's path, as a/b does below a: what is a file cannot be"
        " a folder too"
    ),
)
"""Of a list of files, each path once: they can all lie in one workspace.

It stands on the list and not on the spec, so that the API server does not ask it of a list that an
update leaves as it is. Lengths and one character come first: joined paths would be over its budget.
"""

REVISION_PATTERN = gitnames.REVISION_PATTERN
_REVISION_MESSAGE = (
    "must name a commit, branch or tag and begin with a letter or digit; ranges, paths (a:b),"
    " search (^{/text}) and reflog (@{...}) forms are refused, since what they mean changes"
)


def _check_revision(revision: str) -> str:
    if not gitnames.is_revision(revision):
        raise ValueError(_REVISION_MESSAGE)
    return revision


Revision = Annotated[
    str,
    StringConstraints(min_length=1, max_length=256),
    AfterValidator(_check_revision),
    rules.on_field(
        rules.Rule(
            rule=(
                f"self.matches({rules.quote(REVISION_PATTERN)}) && !self.contains('@{{')"
                " && !self.contains('^{/') && !self.contains('..')"
            ),
            message=_REVISION_MESSAGE,
        )
    ),
]
"""A revision of a Git repository."""

REPOSITORY_PATTERN = gitnames.REPOSITORY_PATTERN
Repository = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=REPOSITORY_PATTERN)
]
"""The name of a repository that nodes are configured to serve; never a path or a URL."""

RUNTIME_PATTERN = "^[a-z0-9](?:[-a-z0-9_.]*[a-z0-9])?$"
RuntimeHandler = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=RUNTIME_PATTERN)
]
"""The name of a runtime in the engine's configuration."""

MAX_ARGUMENTS = 512
MAX_ARGUMENT_BYTES = 131_071
"""Linux' MAX_ARG_STRLEN without the final NUL."""

MAX_INLINE = 196_608
"""Characters of arguments, values and contents that one object may carry in all.

An object has to fit a request to etcd (1.5 MiB) at four bytes a character, and `kubectl apply` has
to be able to copy it into an annotation (256 KiB).
"""


def check_no_nul(text: str) -> str:
    """Refuses text that no argument or variable can hold."""
    if "\0" in text:
        raise ValueError("must not contain NUL")
    return text


NO_NUL = rules.Rule(rule="!self.contains('\\x00')", message="must not contain NUL")
"""CEL and not a pattern: what breaks a pattern is quoted in the answer, and this may be secret."""


def _check_argument(text: str) -> str:
    if len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise ValueError(_TOO_LONG)
    return text


_TOO_LONG = f"must be at most {MAX_ARGUMENT_BYTES} bytes long"
Argument = Annotated[
    str,
    # The API server counts characters; counting the bytes of so many long strings in CEL is over
    # its budget. What is too long in bytes alone is refused at binding. So is NUL a pattern here.
    StringConstraints(max_length=MAX_ARGUMENT_BYTES, pattern="^[^\\x00]*$"),
    AfterValidator(_check_argument),
]
"""One argument of a command; Linux takes no longer one."""
