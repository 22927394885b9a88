"""The launch script on the real shells: what the program sees is exactly what was asked for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isolet.agent.workspace import control, script
from isolet.base import errors

NONCE = "n0123456789abcdef"
ALONE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
"""As PID 1 of a namespace of its own, out of reach of a guard's `kill -9 1`."""

SHELLS = {"dash": ["dash"], "ash": ["busybox", "sh"], "bash": ["bash", "--posix"]}

# Prints its argv and environment from /proc, so that nothing in between can tidy them up.
SHOW = """#!{python}
import json, sys
read = lambda name: open("/proc/self/" + name, "rb").read().decode("latin-1").split("\\0")[:-1]
json.dump([read("cmdline")[2:], sorted(read("environ")), sys.stdin.buffer.read().decode("latin-1"),
          __import__("os").getcwd()], sys.stdout)
"""


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    words = SHELLS[request.param]
    assert shutil.which(words[0]), f"this suite needs {words[0]}"
    return words


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("show", "echo", "test", "true", "[", "printf", "cd", "ls", "cat", "-x", "a=b"):
        _program(folder / name)
    return folder


def _program(path: Path, content: str | None = None) -> Path:
    path.write_text(content if content is not None else SHOW.format(python=sys.executable))
    path.chmod(0o755)
    return path


def _run(
    shell: list[str],
    launch: script.Launch,
    tmp_path: Path,
    *,
    path: str,
    stdin: bytes = b"",
    image_env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    file = tmp_path / "launch"
    file.write_bytes(script.build(launch))
    env = {"PATH": path, "HOME": "/root", "HOSTNAME": "h", **(image_env or {})}
    return subprocess.run(
        [*shell, str(file)], input=stdin, capture_output=True, env=env, timeout=60, check=False
    )


def _taken_apart(
    stdout: bytes, nonce: str = NONCE
) -> tuple[object, control.ExecFailed | None, bytes]:
    lines = control.ControlLines(nonce)
    _, data = lines.feed(stdout)
    failed, rest = lines.finish()
    return lines.seen, failed, data + rest


def _shown(done: subprocess.CompletedProcess[bytes]) -> tuple[list[bytes], list[bytes], bytes, str]:
    seen, failed, data = _taken_apart(done.stdout)
    assert (seen, failed) == (control.Started(), None), (done.stdout[:500], done.stderr[:500])
    argv, env, stdin, cwd = json.loads(data)
    raw = [word.encode("latin-1") for word in argv]
    return raw, [pair.encode("latin-1") for pair in env], stdin.encode("latin-1"), cwd


BASH_NOISE = {b"SHLVL=0"}
IMAGE = {b"HOME=/root", b"HOSTNAME=h"}

ARGUMENTS = {
    "nothing": (),
    "M04, literal": ("%s\n", "$(id)", "a b", "*", ";", "--help", "`id`", "${HOME}", "~", "&", "|"),
    "empty strings": ("", "", "x", ""),
    "quotes": ("'", '"', "''", "it's", "'\\''", "\\'", '"$x"'),
    "backslashes": ("\\", "\\\\", "a\\nb", "\\0", "trailing\\"),
    "newlines": ("\n", "a\nb", "end\n", "\n\n", "\r\n", "\t"),
    "leading dashes": ("-", "--", "-c", "-e", "--version"),
    "unicode": ("ünïcødé", "日本語", "\u2028", "\U0001f600"),
    "bytes that are no text": ("\udcff\udc80", "\udc81\udc82\udc83\udc84\udc85\udc86\udc87\udc88"),
    "every byte but NUL": ("".join(chr(b) if b < 128 else chr(0xDC00 + b) for b in range(1, 256)),),
    "longest argument": ("a" * script.MAX_STRING_BYTES,),
    "long and quoted": ("'" * 130_000,),
    "many": tuple(str(i) for i in range(20_000)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_arrive_literally(
    name: str, shell: list[str], tmp_path: Path, bin_dir: Path
) -> None:
    argv = ("show", *ARGUMENTS[name])
    launch = script.Launch(argv=argv, cwd="/", nonce=NONCE)
    got, _, _, _ = _shown(_run(shell, launch, tmp_path, path=f"{bin_dir}:/usr/bin:/bin"))
    assert got == [os.fsencode(word) for word in argv[1:]]


EVERY_BYTE = bytes(range(1, 256))
WORDS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"'", b"\\", b"\n", b"$", b"`", b'"', b"\x81", b"\x88", b"#", b"!", b"~"]),
    ),
    max_size=6,
).map(lambda parts: b"".join(parts).replace(b"\0", b""))
NAMES = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.sampled_from(["IFS", "PS4", "PWD", "OPTIND", "SECONDS", "UID", "HOME", "LC_ALL", "_"]),
).filter(lambda name: name not in ("PATH", "SHLVL") and not name.startswith("PYTHON"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(WORDS, max_size=4), env=st.dictionaries(NAMES, WORDS, max_size=4))
def test_law_anything_arrives(
    arguments: list[bytes],
    env: dict[str, bytes],
    shell: list[str],
    tmp_path: Path,
    bin_dir: Path,
) -> None:
    argv = ("show", *map(os.fsdecode, arguments))
    launch = script.Launch(argv=argv, env=tuple(env.items()), cwd="/", nonce=NONCE)
    got, pairs, _, _ = _shown(_run(shell, launch, tmp_path, path=f"{bin_dir}:/usr/bin:/bin"))
    assert got == arguments
    assert {name.encode() + b"=" + value for name, value in env.items()} <= set(pairs)


ENVIRONMENTS: dict[str, dict[str, bytes]] = {
    "none": {},
    "K05, empty ones": {"HOME": b"", "PATH": b"", "DOCKER_HOST": b"x"},
    "every byte but NUL": {"A": EVERY_BYTE, "B": bytes(reversed(EVERY_BYTE))},
    "invalid UTF-8": {"A": b"\xff\xfe\x81\x82\x88", "B": b"\xc3"},
    "newlines": {"A": b"\n", "B": b"a\nb\n", "C": b"\n\n\n"},
    "quotes and shell": {"A": b"'", "B": b'"$(id)"`id`', "C": b"\\", "D": b"'; exit 1; '"},
    "the shell's working folders": {"PWD": b"/x", "OLDPWD": b"y\nz"},
    "separators": {"IFS": b"abc/$:", "CDPATH": b"/etc", "ENV": b"/etc/profile", "PS4": b"$(id)"},
    "locale": {"LC_ALL": b"xx_YY", "LANG": b"zz", "LC_CTYPE": b"\xff"},
    "names that look like the script's": {"isolet_run": b"1", "p": b"2", "nonce": b"3"},
    "names that shells compute": {
        "OPTIND": b"abc", "LINENO": b"l", "RANDOM": b"r", "SECONDS": b"s'", "UID": b"1000",
        "EUID": b"e", "PPID": b"p", "SHLVL": b"9", "_": b"u", "BASHOPTS": b"b", "BASH_ENV": b"v",
        "SHELLOPTS": b"o", "EPOCHSECONDS": b"\n", "EPOCHREALTIME": EVERY_BYTE, "GROUPS": b"g",
        "FUNCNAME": b"", "DIRSTACK": b"", "BASH_VERSION": b"5", "PIPESTATUS": b"1", "SRANDOM": b"",
    },
    "long": {"A": b"'" * 32_000, "B": b"x" * (script.MAX_STRING_BYTES - 2)},
}  # fmt: skip


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("by_path", [True, False], ids=["by path", "by name"])
def test_the_environment_is_exact(
    name: str, by_path: bool, shell: list[str], tmp_path: Path, bin_dir: Path
) -> None:
    env = dict(ENVIRONMENTS[name])
    if not by_path and "PATH" in env:
        env["PATH"] = os.fsencode(f"{bin_dir}:")
    program = str(bin_dir / "show") if by_path else "show"
    launch = script.Launch(argv=(program,), env=tuple(env.items()), cwd="/", nonce=NONCE)
    image_path = f"{bin_dir}:/usr/bin:/bin"
    done = _run(shell, launch, tmp_path, path=image_path, image_env={"PWD": "/i", "SHLVL": "3"})
    _, got, _, _ = _shown(done)
    image = {"HOME": b"/root", "HOSTNAME": b"h", "PATH": image_path.encode()}
    want = {**image, **env}
    pairs = sorted(key.encode() + b"=" + value for key, value in want.items())
    noise = set() if "SHLVL" in want or shell[0] != "bash" else BASH_NOISE
    assert sorted(set(got) - noise) == pairs
    assert len(got) == len(set(got))


@pytest.mark.parametrize("name", ["echo", "test", "true", "[", "printf", "cd", "ls", "cat", "-x"])
def test_a_name_that_the_shell_has_built_in_runs_the_file(
    name: str, shell: list[str], tmp_path: Path, bin_dir: Path
) -> None:
    launch = script.Launch(argv=(name, "a", "]"), cwd="/", nonce=NONCE)
    got, _, _, _ = _shown(_run(shell, launch, tmp_path, path=f"{bin_dir}:/usr/bin:/bin"))
    assert got == [b"a", b"]"]


def test_a_program_with_an_equals_sign(shell: list[str], tmp_path: Path, bin_dir: Path) -> None:
    launch = script.Launch(argv=("a=b", "c"), env=(("A", b"1"),), cwd="/", nonce=NONCE)
    got, env, _, _ = _shown(_run(shell, launch, tmp_path, path=f"{bin_dir}:/usr/bin:/bin"))
    assert got == [b"c"]
    assert b"A=1" in env


def test_stdin_is_the_programs(shell: list[str], tmp_path: Path, bin_dir: Path) -> None:
    launch = script.Launch(argv=("show",), cwd="/", nonce=NONCE, guard_seconds=30)
    stdin = EVERY_BYTE * 800
    path = f"{bin_dir}:/usr/bin:/bin"
    done = _run([*ALONE, *shell], launch, tmp_path, path=path, stdin=stdin)
    assert _shown(done)[2] == stdin


@pytest.mark.parametrize("cwd", ["/", "/usr/bin", "{tmp}/a b", "{tmp}/-q", "{tmp}/it's\n$(id)"])
def test_the_working_folder(cwd: str, shell: list[str], tmp_path: Path, bin_dir: Path) -> None:
    folder = Path(cwd.format(tmp=tmp_path))
    folder.mkdir(exist_ok=True)
    launch = script.Launch(argv=(str(bin_dir / "show"),), cwd=str(folder), nonce=NONCE)
    image_env = {"CDPATH": "/etc:/usr", "HOME": "/nowhere"}
    done = _run(shell, launch, tmp_path, path="/usr/bin:/bin", image_env=image_env)
    assert _shown(done)[3] == str(folder)


FAILURES = {
    "A08, missing": (("/no/such/bin",), "/", control.Why.MISSING, 127),
    "A08, missing name": (("no-such-name",), "/", control.Why.MISSING, 127),
    "missing relative": (("./no/such",), "/", control.Why.MISSING, 127),
    "A09, a folder": (("/etc",), "/", control.Why.NOT_EXECUTABLE, 126),
    "A09, no execute bit": (("{tmp}/plain",), "/", control.Why.NOT_EXECUTABLE, 126),
    "name without execute bit": (("plain",), "/", control.Why.NOT_EXECUTABLE, 126),
    "a device": (("/dev/null",), "/", control.Why.NOT_EXECUTABLE, 126),
    "a fifo": (("{tmp}/fifo",), "/", control.Why.NOT_EXECUTABLE, 126),
    "a dangling link": (("{tmp}/dangling",), "/", control.Why.MISSING, 127),
    "M05, cwd missing": (("show",), "/no/such", control.Why.BAD_CWD, 126),
    "M05, cwd is a file": (("show",), "{tmp}/plain", control.Why.BAD_CWD, 126),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_cannot_run_is_said_before_anything_ran(
    name: str, shell: list[str], tmp_path: Path, bin_dir: Path
) -> None:
    argv, cwd, why, code = FAILURES[name]
    (tmp_path / "plain").write_text("x")
    (tmp_path / "plain").chmod(0o644)
    (tmp_path / "dangling").symlink_to("/no/such")
    os.mkfifo(tmp_path / "fifo")
    launch = script.Launch(
        argv=tuple(word.format(tmp=tmp_path) for word in argv),
        cwd=cwd.format(tmp=tmp_path),
        nonce=NONCE,
    )
    done = _run(shell, launch, tmp_path, path=f"{tmp_path}:{bin_dir}:/usr/bin:/bin")
    assert _taken_apart(done.stdout) == (control.StartFailed(why), None, b"")
    assert done.returncode == code
    assert done.stderr == b""


EXEC_FAILURES = {
    "bad interpreter": ("#!/no/such/interpreter\n", ("{tmp}/p",), (), 127),
    "too many bytes": (None, ("/bin/true", *(["x" * 100_000] * 20)), 40, 126),
}


@pytest.mark.parametrize("name", EXEC_FAILURES)
def test_an_exec_that_the_kernel_refuses_is_told_apart(
    name: str, shell: list[str], tmp_path: Path
) -> None:
    content, argv, many, code = EXEC_FAILURES[name]
    _program(tmp_path / "p", content)
    launch = script.Launch(
        argv=tuple(word.format(tmp=tmp_path) for word in argv), cwd="/", nonce=NONCE
    )
    image_env = {f"I{i}": "y" * 100_000 for i in range(many)} if many else {}
    seen, failed, data = None, None, b""
    if many:
        # What the image's own environment takes is not known to validate().
        file = tmp_path / "launch"
        file.write_bytes(script.build(launch))
        exports = "".join(f"export {k}={v}\n" for k, v in image_env.items())
        file.write_bytes(exports.encode() + file.read_bytes())
        done = subprocess.run(
            [*shell, str(file)], capture_output=True, env={"PATH": "/bin"}, check=False
        )
    else:
        done = _run(shell, launch, tmp_path, path="/usr/bin:/bin")
    seen, failed, data = _taken_apart(done.stdout)
    assert (seen, failed, data) == (control.Started(), control.ExecFailed(code), b"")
    assert done.returncode == code


@pytest.mark.parametrize("code", [0, 1, 125, 126, 127, 255])
def test_a_programs_own_code_stays_its_own(code: int, shell: list[str], tmp_path: Path) -> None:
    argv = ("/bin/sh", "-c", f"echo out; exit {code}")
    done = _run(shell, script.Launch(argv=argv, cwd="/", nonce=NONCE), tmp_path, path="/bin")
    assert _taken_apart(done.stdout) == (control.Started(), None, b"out\n")
    assert done.returncode == code


def test_the_program_replaces_the_shell(shell: list[str], tmp_path: Path) -> None:
    argv = ("/bin/sh", "-c", "echo $$; kill -TERM $$")
    file = tmp_path / "launch"
    file.write_bytes(script.build(script.Launch(argv=argv, cwd="/", nonce=NONCE)))
    process = subprocess.Popen([*shell, str(file)], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[1] == str(process.pid).encode()
    assert process.returncode == -15


def test_a_session_sleeps(shell: list[str], tmp_path: Path) -> None:
    launch = script.Launch(argv=script.session(86_400), cwd="/", nonce=NONCE)
    file = tmp_path / "launch"
    file.write_bytes(script.build(launch))
    process = subprocess.Popen([*shell, str(file)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{NONCE} started\n".encode()
    process.kill()
    process.communicate(timeout=60)


def test_one_that_is_told_to_wait_begins_once_its_file_is_there(
    shell: list[str], tmp_path: Path
) -> None:
    go, file = tmp_path / "go", tmp_path / "launch"
    built = script.build(script.Launch(argv=("/bin/true",), cwd="/", nonce=NONCE, wait="go"))
    file.write_bytes(built.replace(b"/.isolet/go", str(go).encode()))
    process = subprocess.Popen([*shell, str(file)], stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.3)
    go.touch()
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (f"{NONCE} started\n".encode(), 0)


# Run as PID 1 of a namespace: starts the script, looks who its children are, waits past the guard.
PROBE = """
import os, subprocess, sys, time
def others():
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read()
            parent = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if pid not in (1, program.pid):
            yield parent, words
program = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
assert program.stdout.readline().endswith(b" started\\n")
late = time.monotonic() + 40
while len(before := list(others())) < 2 and time.monotonic() < late:
    time.sleep(0.01)
assert sorted(parent == 1 for parent, _ in before) == [False, True], before
assert not any(parent == program.pid for parent, _ in before), before
while list(others()) and time.monotonic() < late:
    time.sleep(0.05)
    while (pid := os.waitpid(-1, os.WNOHANG)[0]) not in (0, program.pid):
        pass
assert not list(others())
print("as wanted")
"""


def test_the_guard_is_nobodys_child_and_ends_by_itself(shell: list[str], tmp_path: Path) -> None:
    """PID 1 of a namespace is safe from its own members here, not under gVisor (test_guard)."""
    argv = ("/bin/sleep", "60")
    file = tmp_path / "launch"
    launch = script.Launch(argv=argv, cwd="/", nonce=NONCE, guard_seconds=4)
    file.write_bytes(script.build(launch))
    done = subprocess.run(
        [*ALONE, sys.executable, "-c", PROBE, *shell, str(file)],
        capture_output=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert (done.stdout, done.returncode) == (b"as wanted\n", 0), done.stderr


SLOW = """#!{python}
import sys
print("ready", flush=True)
sys.stdout.write(repr(sys.stdin.buffer.read()))
sys.stderr.write("noise")
"""


DOCUMENTS = [
    b"\n",
    b"{}\n",
    b"a" * ((8 << 20) - 1) + b"\n",
    bytes(byte for byte in range(256) if byte != 10) + b"\n",
]


@pytest.mark.parametrize("held_open", [True, False])
@pytest.mark.parametrize("document", DOCUMENTS, ids=["empty", "short", "8 MiB", "every byte"])
def test_a_runner_gets_its_document_and_then_the_end(
    shell: list[str], tmp_path: Path, bin_dir: Path, document: bytes, held_open: bool
) -> None:
    """Also while the slot's own input stays open, as it does for as long as the slot lives."""
    _program(bin_dir / "runner", SLOW.format(python=sys.executable))
    file = tmp_path / "launch"
    launch = script.Launch(argv=("runner",), nonce=NONCE, cwd=str(tmp_path), document=True)
    file.write_bytes(script.build(launch).replace(b"/tmp/.isolet", bytes(tmp_path / "fifo")))
    with subprocess.Popen(
        [*shell, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": f"{bin_dir}:{os.environ['PATH']}"},
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        started = running.stdout.readline() + running.stdout.readline()
        assert started == f"{NONCE} started\nready\n".encode()
        running.stdin.write(script.line(document))
        running.stdin.flush()
        if not held_open:
            running.stdin.close()
        assert running.stdout.read() == repr(document).encode()
        assert running.wait(60) == 0
        assert running.stderr is not None
        assert b"noise" not in running.stderr.read()


def test_half_a_document_ends_with_the_input_and_never_looks_whole(
    shell: list[str], tmp_path: Path, bin_dir: Path
) -> None:
    _program(bin_dir / "runner", SLOW.format(python=sys.executable))
    launch = script.Launch(argv=("runner",), nonce=NONCE, cwd=str(tmp_path), document=True)
    file = tmp_path / "launch"
    file.write_bytes(script.build(launch).replace(b"/tmp/.isolet", bytes(tmp_path / "fifo")))
    done = subprocess.run(
        [*shell, str(file)],
        input=script.line(b'{"a":1}\n')[:-3],
        capture_output=True,
        env={"PATH": f"{bin_dir}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    assert done.stdout.endswith(b"""b'{"a":'""")


@pytest.mark.parametrize("document", [b"", b"{}", b"{}\n{}\n", b"\n{}", b"\n\n"])
def test_what_is_not_one_line_is_sent_to_no_runner(document: bytes) -> None:
    with pytest.raises(errors.Invalid, match="one line"):
        script.line(document)
