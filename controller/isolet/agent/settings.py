"""What an agent process is started with: a TOML file, and the command line's options over it.

node = "node-1"                   # absent: this machine's host name
installation = "default"          # the word that all containers and disks are labelled with
stateDir = "/var/lib/isolet"      # on a local file system; records, output, disks
runDir = "/run/isolet"            # on a tmpfs; socket, deadlines, launches
engineSocket = "/var/run/docker.sock"
socket = "/run/isolet/agent.sock" # absent: agent.sock in runDir
listen = "0.0.0.0:7443"           # absent: only the Unix socket
tlsDir = "/etc/isolet/tls"        # tls.crt, tls.key, ca.crt; needed with listen
probeListen = "127.0.0.1:7444"    # plain HTTP for probes and metrics; absent: none
policyFile = "/etc/isolet/policy.toml"
watchdog = true                   # false where `isolet watchdog` is started by someone else
logLevel = "info"

[checkpointStore]                 # absent: Checkpoints are on their nodes only
name = "main"                     # as Checkpoints tell of it; the same on every node that has it
endpoint = "https://s3.example"   # of the S3 API
bucket = "isolet"
prefix = "checkpoints/"
region = "us-east-1"
credentialsFile = "/etc/isolet/store.ini"  # [default] aws_access_key_id, aws_secret_access_key
authorityFile = "/etc/isolet/store-ca.crt" # absent: whom the system trusts
"""

import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from isolet.base import errors, tls

_NODE = r"^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)*$"
_WORD = r"^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$"


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("must be <address>:<port>, such as 0.0.0.0:7443 or [::]:7443")
    return text


Place = Annotated[Path, AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]


class StoreSettings(BaseModel):
    """An object store for copies of Checkpoints."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )

    name: str = Field(pattern=_WORD)
    endpoint: str = Field(pattern=r"^https?://[A-Za-z0-9.\[\]:-]+$")
    bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    prefix: str = Field(default="", pattern=r"^([A-Za-z0-9._-]+/)*$", max_length=256)
    region: str = Field(default="us-east-1", pattern=r"^[a-z0-9-]{1,32}$")
    credentials_file: Place
    authority_file: Place | None = None


class AgentSettings(BaseModel):
    """The settings, checked and complete."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
    )

    node: str = Field(
        default_factory=lambda: socket.gethostname().lower(), pattern=_NODE, max_length=200
    )
    """Name of this node, which its certificate carries too."""
    installation: str = Field(default="default", pattern=_WORD)
    """Whose containers, volumes and disks are ours."""
    state_dir: Place = Path("/var/lib/isolet")
    run_dir: Place = Path("/run/isolet")
    engine_socket: Place = Path("/var/run/docker.sock")
    unix_socket: Place | None = Field(default=None, alias="socket")
    listen: Address | None = None
    tls_dir: Place | None = None
    probe_listen: Address | None = None
    policy_file: Place | None = None
    watchdog: bool = True
    checkpoint_store: StoreSettings | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @pydantic.model_validator(mode="after")
    def _tls_where_needed(self) -> "AgentSettings":
        if self.listen is not None and self.tls_dir is None:
            raise ValueError("listen needs tlsDir: nothing but mutual TLS is spoken over TCP")
        return self

    @property
    def socket_path(self) -> Path:
        """Where local callers find the agent."""
        return self.unix_socket or self.run_dir / "agent.sock"

    @property
    def deadlines(self) -> Path:
        """The file that the watchdog reads."""
        return self.run_dir / "deadlines.json"

    @property
    def journal(self) -> Path:
        """The file that the watchdog writes."""
        return self.run_dir / "watchdog.jsonl"

    @property
    def tls_files(self) -> tls.TLSFiles:
        """The certificate files; only where there is something to listen with."""
        assert self.tls_dir is not None
        return tls.TLSFiles.in_folder(self.tls_dir)


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address that has been checked."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def load(file: Path | None, given: Mapping[str, Any]) -> AgentSettings:
    """The settings of a file, with what was given on the command line over it.

    Args:
        file: TOML; None where there is none.
        given: values by field name; None stands for "not given".

    Raises:
        Invalid: the file cannot be read, or a key or value is wrong; the message names it.
    """
    values = dict(_read(file)) if file is not None else {}
    of_file = dict.fromkeys(values, f"{file}: ")
    fields = AgentSettings.model_fields
    for name, value in given.items():
        if value is not None:
            key = fields[name].alias or name
            values[key] = value
            of_file.pop(key, None)
    try:
        return AgentSettings.model_validate(values, by_alias=True, by_name=False)
    except pydantic.ValidationError as error:
        raise errors.Invalid(_problems(error, of_file), reason="InvalidConfig") from None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise errors.Invalid(f"{file}: {error.strerror}", reason="InvalidConfig") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"{file}: not TOML: {error}", reason="InvalidConfig") from None


def _problems(error: pydantic.ValidationError, of_file: Mapping[str, str]) -> str:
    """What is wrong; a key of the file is told with the file."""
    found = []
    for problem in error.errors(include_url=False):
        key = ".".join(map(str, problem["loc"]))
        unknown = problem["type"] == "extra_forbidden"
        said = "there is no such key" if unknown else problem["msg"].removeprefix("Value error, ")
        where = of_file.get(str(problem["loc"][0]), "") if problem["loc"] else ""
        found.append(f"{where}{key}: {said}" if key else said)
    return "; ".join(found)
