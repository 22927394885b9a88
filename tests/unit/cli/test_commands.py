"""The commands: what they say, and how a wrong configuration ends."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import isolet
from isolet.agent import run, settings
from isolet.apiserver import run as front
from isolet.apiserver.admission import REQUIRED, Contract
from isolet.apiserver.settings import Bounds, Settings
from isolet.base import errors
from isolet.cli.main import main
from isolet.operator import settings as operator


def isolet_(*words: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(main, list(words), catch_exceptions=False)


def test_version() -> None:
    assert isolet_("version").output == f"{isolet.__version__}\n"


def test_crds() -> None:
    listing = json.loads(isolet_("crds").output)
    assert {item["kind"] for item in listing["items"]} == {"CustomResourceDefinition"}
    assert "executions.isolet.dev" in {item["metadata"]["name"] for item in listing["items"]}


@pytest.mark.parametrize(
    "words", [(), ("agent",), ("apiserver",), ("operator",), ("watchdog",), ("pki", "node")]
)
def test_each_command_explains_itself(words: tuple[str, ...]) -> None:
    shown = isolet_(*words, "--help")
    assert shown.exit_code == 0
    assert "Usage: " in shown.output


def test_certificates_from_the_command_line(tmp_path: Path) -> None:
    folder = str(tmp_path / "pki")
    assert isolet_("pki", "init", folder).exit_code == 0
    made = isolet_("pki", "node", folder, "node-1", "--address", "10.0.0.1")
    assert made.output.split()[0] == f"{folder}/nodes/node-1/tls.crt"
    made = isolet_("pki", "client", folder, "isolet:operator", "--days", "30")
    assert (tmp_path / "pki" / "clients" / "operator" / "tls.key").exists()
    again = isolet_("pki", "init", folder)
    assert (again.exit_code, again.stderr) == (1, f"Error: {folder} has an authority already\n")
    wrong = isolet_("pki", "node", folder, "NODE")
    assert wrong.exit_code == 2
    assert len(wrong.stderr.splitlines()) == 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[settings.AgentSettings]:
    """What an agent would have been started with."""
    found: list[settings.AgentSettings] = []
    monkeypatch.setattr(run, "main", found.append)
    return found


def test_without_a_word_the_defaults_hold(started: list[settings.AgentSettings]) -> None:
    assert isolet_("agent").exit_code == 0
    (got,) = started
    assert got.node == socket.gethostname().lower()
    assert (got.installation, got.listen, got.watchdog) == ("default", None, True)
    assert got.socket_path == Path("/run/isolet/agent.sock")
    assert got.deadlines == Path("/run/isolet/deadlines.json")


def test_options_win_over_environment_and_file(
    started: list[settings.AgentSettings], tmp_path: Path
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'node = "from-file"\ninstallation = "from-file"\nstateDir = "/from/file"\n'
        'listen = "[::]:7443"\ntlsDir = "/tls"\nsocket = "/from/file.sock"\nwatchdog = false\n'
    )
    words = ("agent", "--config", str(file), "--node", "from-option")
    env = {"ISOLET_AGENT_INSTALLATION": "from-env", "ISOLET_AGENT_NODE": "from-env"}
    assert isolet_(*words, **env).exit_code == 0
    (got,) = started
    assert (got.node, got.installation) == ("from-option", "from-env")
    assert (got.state_dir, got.socket_path) == (Path("/from/file"), Path("/from/file.sock"))
    assert (got.listen, got.watchdog) == ("[::]:7443", False)
    assert settings.host_and_port("[::]:7443") == ("::", 7443)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stateDirectory = '/x'", "stateDirectory: there is no such key"),
        ("state_dir = '/x'", "state_dir: there is no such key"),
        ("stateDir = 'relative'", "stateDir: must be an absolute path"),
        ("node = 'Node_1'", "node: "),
        ("node = ''", "node: "),
        ("installation = 'a b'", "installation: "),
        ("listen = '7443'\ntlsDir = '/t'", "listen: must be <address>:<port>"),
        ("listen = '0.0.0.0:99999'\ntlsDir = '/t'", "listen: must be <address>:<port>"),
        ("listen = '0.0.0.0:7443'", "listen needs tlsDir"),
        ("logLevel = 'loud'", "logLevel: "),
        ("watchdog = 'maybe'", "watchdog: "),
        ("node = [", "not TOML"),
        ("\xff", "there is no such key|not TOML"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_code_2(
    started: list[settings.AgentSettings], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(text.encode("latin-1"))
    ended = isolet_("agent", "--config", str(file))
    assert ended.exit_code == 2
    assert any(part in ended.stderr for part in said.split("|"))
    assert len(ended.stderr.splitlines()) == 1
    assert started == []


def test_a_wrong_key_is_told_with_its_file_and_a_wrong_option_without(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("node = 'Node_1'\nlogLevel = 'loud'\n")
    both = isolet_("agent", "--config", str(file), "--node", "Node_2")
    assert both.exit_code == 2
    assert f"; {file}: logLevel: " in both.stderr
    assert f"{file}: node: " not in both.stderr
    assert f"Error: {file}: node: " in isolet_("agent", "--config", str(file)).stderr


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = isolet_("agent", "--config", str(tmp_path / "none.toml"))
    assert (ended.exit_code, ended.stderr) == (
        2,
        f"Error: {tmp_path}/none.toml: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.Conflict("another agent holds\nthe folder"), 1, "another agent holds the folder"),
        (errors.Invalid("policy file /p: x"), 2, "policy file /p: x"),
        (FileNotFoundError(2, "No such file or directory", "/t/tls.crt"), 1, "/t/tls.crt: No such"),
        (OSError("odd"), 1, "odd"),
    ],
)
def test_a_start_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, line: str
) -> None:
    def fail(_settings: object) -> None:
        raise error

    monkeypatch.setattr(run, "main", fail)
    ended = isolet_("agent")
    assert ended.exit_code == code
    assert ended.stderr.startswith(f"Error: {line}")
    assert len(ended.stderr.splitlines()) == 1


def test_an_operator_without_its_certificates_does_not_start(tmp_path: Path) -> None:
    ended = isolet_("operator", "--tls-dir", str(tmp_path))
    assert ended.exit_code == 1
    assert "tls.crt: No such file" in ended.stderr


def test_a_front_door_is_started_with_what_was_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    monkeypatch.setattr(front, "main", found.append)
    base = ("apiserver", "--namespace", "runs", "--class", "fast")
    more = ("--capacity", "10", "--require", "run_id", "--token-file", str(tmp_path / "token"))
    assert isolet_(*base, *more).exit_code == 0
    settings_ = found[0]
    assert (settings_.namespace, settings_.class_name) == ("runs", "fast")
    assert settings_.bounds.capacity == 10
    assert settings_.contract.required == ("run_id",)
    nothing = isolet_(*base, "--token-file", str(tmp_path / "token"))
    assert nothing.exit_code == 2
    assert "must have a callback_url and may name none: give --callback-url" in nothing.stderr
    assert isolet_(*base, "--callback-url", "http://callback").exit_code == 0
    assert found[1].contract == Contract(callback_url="http://callback")
    wrong = isolet_(*base, "--require", "image")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "Error: --require: image is no field of a dispatch\n",
    )
    monkeypatch.undo()
    base = (*base, "--require", "run_id")
    nobody = isolet_(*base, "--kubeconfig", str(tmp_path / "none"))
    assert nobody.exit_code == 2
    assert "nobody could call: give --token-file" in nobody.stderr


def test_a_front_door_without_its_certificates_does_not_start(tmp_path: Path) -> None:
    base = ("apiserver", "--namespace", "runs", "--class", "fast", "--kubernetes-tokens")
    base = (*base, "--require", "run_id")
    ended = isolet_(*base, "--agent-tls-dir", str(tmp_path))
    assert (ended.exit_code, ended.stderr) == (
        1,
        f"Error: {tmp_path}/tls.crt: No such file or directory\n",
    )


def test_the_defaults_that_a_front_door_shows_are_those_it_has() -> None:
    shown = " ".join(isolet_("apiserver", "--help").output.split())
    bounds, chosen = Bounds(), Settings(namespace="runs", class_name="fast")
    for value in (
        chosen.host,
        chosen.port,
        bounds.capacity,
        bounds.cancelled_ahead,
        ", ".join(REQUIRED),
    ):
        assert f"[default: {value}]" in shown


def test_the_defaults_that_an_operator_shows_are_those_it_has() -> None:
    shown = " ".join(isolet_("operator", "--help").output.split())
    chosen = operator.Settings(identity="a", namespace="b", installation="c", agent_tls=None)
    for option, value in (
        ("workers", chosen.workers),
        ("agent-calls", chosen.agent_calls),
        ("connections", chosen.connections),
        ("resync-seconds", f"{chosen.resync_seconds:g}"),
        ("orphan-policy", chosen.orphan_policy.value),
        ("metrics-host", chosen.metrics_host),
        ("metrics-port", chosen.metrics_port),
    ):
        described = shown.partition(f"--{option} ")[2].partition(" --")[0]
        assert f"[default: {value}]" in described, option
