"""Wrong objects of every kind: which field is to blame, and what is said.

One table for two judges: the API server's answer must name the field and say the words
(integration), and the Python types refuse what they claim to (unit). `python` says whether the
latter is so: what needs two fields of one object is CEL's alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.unit.api.objects import (
    DIGEST,
    DROP,
    MAXIMUM,
    NO_CLASS,
    PINNED,
    a_checkpoint,
    a_class,
    a_node,
    a_process,
    an_execution,
    resources,
)

HEX = DIGEST.removeprefix("sha256:")
PINNED_WORDS = "must be pinned: name@sha256:<64 lower-case hex digits>"
BYTES_WORDS = "must be a quantity such as 512Mi, 1Gi or 1000M, written as a string"
CPU_WORDS = "must be a quantity such as 1, 0.5 or 250m, written as a string"
PATH_WORDS = "must be a normalised path relative to the workspace"
NESTED_WORDS = "no path may lie below another file's path"
REVISION_WORDS = "must name a commit, branch or tag and begin with a letter or digit"


@dataclass(frozen=True)
class Case:
    """One wrong object."""

    name: str
    object: dict[str, Any]
    field: str
    words: str
    python: bool = True


def _execution(name: str, field: str, words: str, python: bool = True, **spec: Any) -> Case:
    field = f"spec.{field}" if field else "spec"
    return Case(f"execution {name}", an_execution(**spec), field, words, python)


def _images() -> Iterator[Case]:
    digest_words = "a digest is written name@sha256:<64 lower-case hex digits>, with no tag"
    id_words = "a local image id is written sha256:<64 lower-case hex digits>"
    for name, image, words in (
        ("no tag and no digest", "alpine", PINNED_WORDS),
        ("upper-case digest", f"alpine@sha256:{HEX.upper()}", digest_words),
        ("63 digits", f"alpine@sha256:{HEX[:-1]}", digest_words),
        ("65 digits", f"alpine@sha256:{HEX}0", digest_words),
        ("tag beside a digest", f"alpine:3.20@{DIGEST}", digest_words),
        ("another hash", f"alpine@sha512:{HEX}", digest_words),
        ("id of 63 digits", DIGEST[:-1], id_words),
        ("upper-case id", f"sha256:{HEX.upper()}", id_words),
        ("short id", "sha256:0123", id_words),
        ("upper-case name", "Alpine:3.20", PINNED_WORDS),
        ("blank in it", "alpine:3 20", PINNED_WORDS),
        ("option", "--privileged", PINNED_WORDS),
        ("newline at its end", f"{PINNED}\n", digest_words),
    ):
        yield _execution(f"image: {name}", "image", words, image=image)
    yield _execution("image: empty", "image", "should be at least 1 chars long", image="")
    yield _execution(
        "image: 513 characters", "image", "may not be more than 512", image=f"{'a' * 508}:1234"
    )


def _quantities() -> Iterator[Case]:
    for field, value, words in (
        ("cpu", "0", "must be between 10m and 128"),
        ("cpu", "0.001", "must be between 10m and 128"),
        ("cpu", "9m", "must be between 10m and 128"),
        ("cpu", "128001m", "must be between 10m and 128"),
        ("cpu", "129", "must be between 10m and 128"),
        ("cpu", "0.0101", CPU_WORDS),
        ("cpu", "-1", CPU_WORDS),
        ("cpu", "1k", CPU_WORDS),
        ("cpu", "one", CPU_WORDS),
        ("cpu", "", CPU_WORDS),
        ("memory", "4194304", "must be between 16Mi and 512Gi"),
        ("memory", "1024", "must be between 16Mi and 512Gi"),
        ("memory", "16777215", "must be between 16Mi and 512Gi"),
        ("memory", "513Gi", "must be between 16Mi and 512Gi"),
        ("memory", "549755813889", "must be between 16Mi and 512Gi"),
        ("memory", "9007199254740993", "must be between 16Mi and 512Gi"),
        ("memory", "1e99", "must be between 16Mi and 512Gi"),
        ("memory", "9223372036854775808", BYTES_WORDS),
        ("memory", "-1", BYTES_WORDS),
        ("memory", "0x10", BYTES_WORDS),
        ("memory", "512mb", BYTES_WORDS),
        ("memory", "512 Mi", BYTES_WORDS),
        ("memory", "100m", BYTES_WORDS),
        ("memory", "1.5", BYTES_WORDS),
        ("memory", "1Gi\n", BYTES_WORDS),
        ("workspace", "1Mi", "must be between 2Mi and 1Ti"),
        ("workspace", "1025Gi", "must be between 2Mi and 1Ti"),
        ("tmp", "1023Ki", "must be between 1Mi and 512Gi"),
        ("shm", "63Ki", "must be between 64Ki and 512Gi"),
        ("output", "0", "must be between 1 and 64Mi"),
        ("output", "67108865", "must be between 1 and 64Mi"),
    ):
        yield _execution(
            f"{field} {value!r}", f"resources.{field}", words, resources={field: value}
        )
    for field, value, words in (
        ("cpu", 1, "must be of type string"),
        ("cpu", 1.5, "must be of type string"),
        ("memory", 9007199254740993, "must be of type string"),
        ("memory", 9223372036854775807, "must be of type string"),
        ("pids", "64", "must be of type integer"),
        ("pids", 0, "should be greater than or equal to 1"),
        ("pids", -1, "should be greater than or equal to 1"),
        ("pids", 32769, "should be less than or equal to 32768"),
        ("pids", 1.5, "must be of type int32"),
    ):
        yield _execution(
            f"{field} {value!r}", f"resources.{field}", words, resources={field: value}
        )


def _memory() -> Iterator[Case]:
    words = "tmp, shm and a Memory workspace are memory: together they must fit"
    in_memory = {"medium": "Memory"}
    yield _execution(
        "Memory workspace and tmp over memory", "resources", words, False,
        workspace=in_memory, resources=resources(workspace="500Mi", tmp="16Mi", shm="64Ki"),
    )  # fmt: skip
    yield _execution(
        "tmp over memory on a disk", "resources", words, False, resources=resources(tmp="513Mi")
    )
    yield _execution(
        "one byte too much", "resources", words, False,
        workspace=in_memory,
        resources={"memory": "100Mi", "workspace": "82837505", "tmp": "16Mi", "shm": "5Mi"},
    )  # fmt: skip


def _times() -> Iterator[Case]:
    for field, value, words in (
        ("activeDeadlineSeconds", 0, "should be greater than or equal to 1"),
        ("activeDeadlineSeconds", -1, "should be greater than or equal to 1"),
        ("activeDeadlineSeconds", 86401, "should be less than or equal to 86400"),
        ("activeDeadlineSeconds", 1.5, "must be of type int32"),
        ("activeDeadlineSeconds", "60", "must be of type integer"),
        ("activeDeadlineSeconds", "1m", "must be of type integer"),
        ("schedulingDeadlineSeconds", 0, "should be greater than or equal to 1"),
        ("ttlSecondsAfterFinished", -1, "should be greater than or equal to 0"),
        ("ttlSecondsAfterFinished", 2**31, "should be less than or equal to 2147483647"),
    ):
        yield _execution(f"{field} {value!r}", field, words, **{field: value})
    yield _execution(
        "idle timeout beside a command", "idleTimeoutSeconds", "only a session can be idle", False,
        idleTimeoutSeconds=60,
    )  # fmt: skip
    yield _execution(
        "retained for too long", "workspace.retainSeconds", "less than or equal to 86400",
        workspace={"retainSeconds": 86401},
    )  # fmt: skip


def _git() -> Iterator[Case]:
    for revision in (
        "--output=/tmp/x",
        "--remote=/srv/other.git",
        "-l",
        "--",
        ":/fix",
        "HEAD@{yesterday}",
        "@{-1}",
        "HEAD^{/x}",
        "HEAD:src",
        "main..dev",
        "main\n--output=x",
        "ä",
    ):
        yield _execution(
            f"revision {revision!r}", "workspace.git.revision", REVISION_WORDS,
            workspace={"git": {"repository": "project", "revision": revision}},
        )  # fmt: skip
    yield _execution(
        "revision of 257 characters", "workspace.git.revision", "may not be more than 256",
        workspace={"git": {"repository": "project", "revision": "a" * 257}},
    )  # fmt: skip
    yield _execution(
        "empty revision", "workspace.git.revision", "should be at least 1 chars long",
        workspace={"git": {"repository": "project", "revision": ""}},
    )  # fmt: skip
    for repository in ("/srv/project", "../project", "https://example.test/x.git", "a//b", "a/"):
        yield _execution(
            f"repository {repository!r}", "workspace.git.repository", "should match",
            workspace={"git": {"repository": repository, "revision": "main"}},
        )  # fmt: skip
    yield _execution(
        "Git and a Checkpoint", "restoreFrom", "a Checkpoint or from Git, not from both", False,
        workspace={"git": {"repository": "project", "revision": "main"}},
        restoreFrom={"checkpointName": "saved"},
    )  # fmt: skip


def _commands() -> Iterator[Case]:
    for name, field, words, command, python in (
        ("of no words", "command", "should have at least 1 items", [], True),
        ("that is a string", "command", "must be of type array", "make test", True),
        ("with a number in it", "command[1]", "must be of type string", ["sleep", 1], True),
        ("with an empty program", "command", "the first item is the program", ["", "x"], False),
        ("with NUL", "command[1]", "should match", ["echo", "a\0b"], True),
        ("with an argument too long", "command[1]", "may not be more than 131071",
         ["echo", "x" * 131072], True),
        ("with too many arguments", "command", "must have at most 512 items", ["x"] * 513, True),
        ("too long in all", "", "must be at most 196608 characters",
         ["echo", *["x" * 100_000] * 2], False),
    ):  # fmt: skip
        yield _execution(f"command {name}", field, words, python, command=command)


def _env() -> Iterator[Case]:
    for name in ("1A", "A-B", "A B", "A=B", "TO\u200bKEN", "Ä", "A\n"):
        yield _execution(
            f"env name {name!r}", "env[0].name", "should match",
            env=[{"name": name, "value": "x"}],
        )  # fmt: skip
    for name, value, field, words in (
        ("number", 1, "value", "must be of type string"),
        ("truth", True, "value", "must be of type string"),
        ("float", 1e3, "value", "must be of type string"),
        ("NUL", "a\0b", "value", "must not contain NUL"),
        ("too long", "x" * 32769, "value", "may not be more than 32768"),
        ("too many bytes", "€" * 11000, "value", "must be at most 32 KiB long"),
    ):
        yield _execution(
            f"env value: {name}", f"env[0].{field}", words, env=[{"name": "A", "value": value}]
        )
    one = "exactly one of value, valueFrom must be set"
    reference = {"name": "x", "key": "y"}
    yield _execution("env of null", "env[0]", one, env=[{"name": "A", "value": None}])
    yield _execution("env without a value", "env[0]", one, env=[{"name": "A"}])
    yield _execution(
        "env with two values", "env[0]", one,
        env=[{"name": "A", "value": "", "valueFrom": {"secretKeyRef": reference}}],
    )  # fmt: skip
    yield _execution(
        "env from nowhere", "env[0].valueFrom", "exactly one of secretKeyRef, configMapKeyRef",
        False, env=[{"name": "A", "valueFrom": {}}],
    )  # fmt: skip
    yield _execution(
        "env name twice", "env[1]", "Duplicate value", False,
        env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
    )  # fmt: skip
    yield _execution(
        "129 variables", "env", "must have at most 128 items",
        env=[{"name": f"A{i}", "value": ""} for i in range(129)],
    )  # fmt: skip
    yield _execution(
        "credential in the clear", "env[1]",
        "the name GITHUB_TOKEN looks like a credential: take its value from a Secret",
        env=[{"name": "A", "value": "1"}, {"name": "GITHUB_TOKEN", "value": "canary"}],
    )  # fmt: skip


def _rest_of_execution() -> Iterator[Case]:
    yield _execution(
        "network that is not there", "network.mode", "Unsupported value", network={"mode": "Host"}
    )
    yield _execution("state", "desiredState", "Unsupported value", desiredState="Stopped")
    yield _execution("medium", "workspace.medium", "Unsupported value", workspace={"medium": "Ram"})
    yield _execution("class name", "className", "should match", className="Standard")
    yield _execution(
        "class name of 254 characters", "className", "may not be more than 253", className="a" * 254
    )
    yield _execution(
        "tail of 4097 bytes", "output.statusTailBytes", "less than or equal to 4096",
        output={"statusTailBytes": 4097},
    )  # fmt: skip
    yield _execution(
        "node selector", "nodeSelector.zone", "should match", nodeSelector={"zone": "a b"}
    )
    yield Case(
        "execution without a spec",
        {"apiVersion": "isolet.dev/v1alpha1", "kind": "Execution", "metadata": {"name": "x"}},
        "spec",
        "Required value",
    )


def _process(name: str, field: str, words: str, python: bool = True, **spec: Any) -> Case:
    field = f"spec.{field}" if field else "spec"
    return Case(f"process {name}", a_process(**spec), field, words, python)


def _processes() -> Iterator[Case]:
    where = "exactly one of executionRef, template must be set"
    what = "exactly one of command, shell, code must be set"
    yield _process("in two places", "", where, False, template={"className": NO_CLASS})
    yield _process("nowhere", "", where, False, executionRef=DROP)
    yield _process("of nothing", "", what, False, command=DROP)
    yield _process("of two commands", "", what, False, shell="true")
    yield _process(
        "in COBOL", "code.language", "Unsupported value",
        command=DROP, code={"language": "cobol", "source": "x"},
    )  # fmt: skip
    for cwd in ("/etc", "../etc", "data/../..", ".", "a//b", "a/", "a\0b", "data/./x"):
        yield _process(f"cwd {cwd!r}", "cwd", PATH_WORDS, cwd=cwd)
    for path in ("./out/x", "out//x", "out/../x", "/out/x", "out/x/", "..", "a\0"):
        yield _process(
            f"file at {path!r}", "files[0].path", PATH_WORDS, files=[{"path": path, "content": ""}]
        )
        yield _process(
            f"artifact at {path!r}", "artifacts[0].glob", PATH_WORDS, artifacts=[{"glob": path}]
        )
    yield _process(
        "artifact path of 5000 characters", "artifacts[0].glob", "may not be more than 4095",
        artifacts=[{"glob": "a" * 5000}],
    )  # fmt: skip
    yield _process(
        "two files at one path", "files[1]", "Duplicate value", False,
        files=[{"path": "a", "content": ""}, {"path": "a", "content": "x"}],
    )  # fmt: skip
    for below in ("a/b", "a/b/c"):
        yield _process(
            f"a file at a and one at {below}", "files", NESTED_WORDS, False,
            files=[{"path": path, "content": ""} for path in (below, "c", "a")],
        )  # fmt: skip
    content = "exactly one of content, contentBase64, configMapKeyRef, secretKeyRef"
    yield _process("file of nothing", "files[0]", content, False, files=[{"path": "a"}])
    yield _process(
        "file mode", "files[0].mode", "less than or equal to 511",
        files=[{"path": "a", "content": "", "mode": 0o1777}],
    )  # fmt: skip
    yield _process(
        "file that is not base64", "files[0].contentBase64", "should match",
        files=[{"path": "a", "contentBase64": "abc"}],
    )  # fmt: skip
    source = "exactly one of value, valueBase64, secretKeyRef must be set"
    yield _process("stdin of nothing", "stdin", source, False, stdin={})
    yield _process("stdin of two", "stdin", source, False, stdin={"value": "", "valueBase64": ""})
    for size in (131_073, 200_000, 300_000, 1_048_576):
        yield _process(
            f"stdin of {size} bytes", "stdin.value", "may not be more than 131072",
            stdin={"value": "x" * size},
        )  # fmt: skip
    yield _process(
        "too much in all", "", "must be at most 196608 characters long", False,
        stdin={"value": "x" * 131_072}, files=[{"path": "a", "content": "x" * 65_536}],
    )  # fmt: skip
    for time, words in (
        ("2030-01-01T00:00:00", "should match"),
        ("2030-01-01 00:00:00Z", "should match"),
        ("2030-01-01", "should match"),
        ("1893456000", "should match"),
        (1893456000000, "must be of type date-time"),
        ("tomorrow", "should match"),
        ("2030-13-01T00:00:00Z", "must be of type date-time"),
    ):
        yield _process(f"deadline {time!r}", "deadlineAt", words, deadlineAt=time)
    yield _process(
        "artifacts of a Memory workspace", "artifacts", "artifacts need template.workspace.medium",
        False, executionRef=DROP, artifacts=[{"glob": "out/*"}],
        template={"className": NO_CLASS, "workspace": {"medium": "Memory"}},
    )  # fmt: skip
    yield _process("timeout", "timeoutSeconds", "greater than or equal to 1", timeoutSeconds=0)
    yield _process("state", "desiredState", "Unsupported value", desiredState="Terminated")
    yield _process(
        "template with a bare image", "template.image", PINNED_WORDS,
        executionRef=DROP, template={"className": NO_CLASS, "image": "alpine"},
    )  # fmt: skip
    yield _process(
        "template over its memory", "template.resources", "together they must fit", False,
        executionRef=DROP, template={"className": NO_CLASS, "resources": resources(tmp="1Gi")},
    )  # fmt: skip


def _class(name: str, field: str, words: str, python: bool = True, **spec: Any) -> Case:
    return Case(f"class {name}", a_class(**spec), f"spec.{field}", words, python)


def _classes() -> Iterator[Case]:
    for missing in MAXIMUM:
        yield _class(
            f"without maximum {missing}", f"resources.maximum.{missing}", "Required value",
            resources={"maximum": {k: v for k, v in MAXIMUM.items() if k != missing}},
        )  # fmt: skip
    for field, value in (
        ("cpu", "5"),
        ("memory", "4097Mi"),
        ("workspace", "11Gi"),
        ("tmp", "1025Mi"),
        ("shm", "65Mi"),
        ("pids", 1025),
        ("output", "64Mi"),
    ):
        maximum = {**MAXIMUM, "output": "63Mi"}
        yield _class(
            f"with default {field} over its maximum", "resources.default",
            f"the default {field} is over the maximum", False,
            resources={"default": {field: value}, "maximum": maximum},
        )  # fmt: skip
    for user, field, words in (
        ({"uid": 0, "gid": 1000}, "user.uid", "should be greater than or equal to 1"),
        ({"uid": 1000, "gid": 0}, "user.gid", "should be greater than or equal to 1"),
        ({"uid": 4294967295}, "user.uid", "should be less than or equal to 4294967294"),
        ({"uid": "root"}, "user.uid", "must be of type integer"),
        ("65532:65532", "user", "must be of type object"),
    ):
        yield _class(f"user {user}", field, words, user=user)
    yield _class(
        "with a tag", "images.allowed", "a tag is allowed only where resolveTags is true",
        images={"allowed": ["alpine:3.20"]},
    )  # fmt: skip
    yield _class(
        "with a default it does not allow", "images.default", "must be one of the allowed ones",
        images={"allowed": [PINNED], "default": f"other@{DIGEST}"},
    )  # fmt: skip
    yield _class("without images", "images.allowed", "at least 1 items", images={"allowed": []})
    yield _class(
        "with an image twice", "images.allowed[1]", "Duplicate value", False,
        images={"allowed": [PINNED, PINNED]},
    )  # fmt: skip
    yield _class("for nobody said", "namespaceSelector", "Required value", namespaceSelector=DROP)
    need = "In and NotIn need values"
    yield _class(
        "selector without values", "namespaceSelector.matchExpressions[0]", need, False,
        namespaceSelector={"matchExpressions": [{"key": "a", "operator": "In"}]},
    )  # fmt: skip
    yield _class(
        "selector with an unknown operator", "namespaceSelector.matchExpressions[0].operator",
        "Unsupported value",
        namespaceSelector={"matchExpressions": [{"key": "a", "operator": "Like"}]},
    )  # fmt: skip
    yield _class("runtime", "runtimeHandler", "should match", runtimeHandler="--privileged")
    yield _class(
        "noexec on a disk", "workspace.exec", "exec: false needs media: [Memory]", False,
        workspace={"exec": False},
    )  # fmt: skip
    yield _class(
        "retention", "workspace", "the default retention is over the maximum", False,
        workspace={"defaultRetainSeconds": 7200},
    )  # fmt: skip
    yield _class(
        "deadlines", "deadlines.defaultSeconds", "the default deadline is over the maximum", False,
        deadlines={"defaultSeconds": 700, "maximumSeconds": 600},
    )  # fmt: skip


def _pools() -> Iterator[Case]:
    one = "give either size, or maximum and perhaps minimum"
    for pool, field, words in (
        ({}, "warmPool", one),
        ({"size": 1, "maximum": 2}, "warmPool", one),
        ({"size": 1, "minimum": 1}, "warmPool.minimum", "minimum needs a maximum"),
        ({"minimum": 3, "maximum": 2}, "warmPool.minimum", "may not be over it"),
    ):
        yield _class(f"pool {pool}", field, words, False, warmPool=pool)
    for pool, field, words in (
        ({"size": 0}, "warmPool.size", "should be greater than or equal to 1"),
        ({"size": 1025}, "warmPool.size", "should be less than or equal to 1024"),
        ({"size": 1, "createConcurrency": 33}, "warmPool.createConcurrency", "equal to 32"),
        ({"size": 1, "idleTimeoutSeconds": 9}, "warmPool.idleTimeoutSeconds", "equal to 10"),
        ({"size": 1, "whenEmpty": "Cry"}, "warmPool.whenEmpty", "Unsupported value"),
    ):
        yield _class(f"pool {pool}", field, words, warmPool=pool)
    pool = {"size": 1}
    yield _class(
        "pool of no image", "warmPool", "give images.default", False,
        warmPool=pool, images={"allowed": [PINNED]},
    )  # fmt: skip
    yield _class(
        "pool of incomplete bounds", "warmPool", "give every one of resources.default", False,
        warmPool=pool, resources={"default": {"cpu": "1"}, "maximum": MAXIMUM},
    )  # fmt: skip
    yield _class(
        "pool of another medium", "warmPool", "none of workspace.media", False,
        warmPool=pool, workspace={"media": ["Memory"]},
    )  # fmt: skip


RUNNER = {"command": ["/app/runtime"]}
DISPATCH = {
    "runID": "run-1",
    "mode": "stream",
    "payloadDigest": DIGEST,
    "payloadBytes": 2,
}
"""What a front door says of a run."""


def a_dispatch(**spec: Any) -> dict[str, Any]:
    """An Execution as a front door makes it."""
    return an_execution(**{"command": DROP, "image": DROP, "dispatch": DISPATCH, **spec})


def _dispatches() -> Iterator[Case]:
    alone = "a dispatch runs its class's runner: it takes no command, env, image or resources"
    for name, spec in (
        ("command", {"command": ["true"]}),
        ("image", {"image": PINNED}),
        ("env", {"env": [{"name": "A", "value": "b"}]}),
        ("resources", {"resources": {"cpu": "1"}}),
        ("idle timeout", {"idleTimeoutSeconds": 5}),
    ):
        yield Case(f"dispatch with {name}", a_dispatch(**spec), "spec.dispatch", alone, False)
    for field, value, words in (
        ("runID", "a/b", "should match"),
        ("runID", ".a", "should match"),
        ("runID", "a" * 129, "may not be more than 128"),
        ("mode", "batch", "Unsupported value"),
        ("payloadDigest", "sha256:1", "should match"),
        ("payloadBytes", 0, "greater than or equal to 1"),
        ("payloadBytes", (8 << 20) + 1, "less than or equal to 8388608"),
    ):
        changed = a_dispatch(dispatch={**DISPATCH, field: value})
        yield Case(f"dispatch {field} {str(value)[:20]}", changed, f"spec.dispatch.{field}", words)


CEL_ALONE = ("an empty program", "a file below a file", "two files at one path")
"""Of wrong runners."""


def _runners() -> Iterator[Case]:
    private = "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\n"
    for name, field, words, change in (
        ("no command", "command", "Required value", {"command": DROP}),
        ("an empty program", "command", "the first item is the program", {"command": [""]}),
        (
            "a credential's name",
            "env[0].name",
            "looks like a credential's",
            {"env": [{"name": "API_KEY", "value": "x"}]},
        ),
        (
            "a private key in a file",
            "files[0].content",
            "must hold no private key",
            {"files": [{"path": "key.pem", "content": private}]},
        ),
        (
            "a private binding key",
            "bindingKey",
            "must hold no private key",
            {"bindingKey": private},
        ),
        (
            "a file outside",
            "files[0].path",
            PATH_WORDS,
            {"files": [{"path": "../key.pem", "content": ""}]},
        ),
        (
            "a file below a file",
            "files",
            NESTED_WORDS,
            {"files": [{"path": path, "content": ""} for path in ("keys", "keys/a.pem")]},
        ),
        (
            "two files at one path",
            "files[1]",
            "Duplicate value",
            {"files": [{"path": "a", "content": ""}, {"path": "a", "content": "x"}]},
        ),
        ("a ready line of two", "readyLine", "should match", {"readyLine": "a\nb"}),
        (
            "no time to start",
            "budgets.startupSeconds",
            "greater than",
            {"budgets": {"startupSeconds": 0}},
        ),
        (
            "a day and a second",
            "budgets.executionSeconds",
            "less than or equal to 86400",
            {"budgets": {"executionSeconds": 86_401}},
        ),
    ):
        runner = {k: v for k, v in {**RUNNER, **change}.items() if v is not DROP}
        python = name not in CEL_ALONE
        field = f"spec.runner.{field}"
        yield Case(f"runner with {name}", a_class(runner=runner), field, words, python)


def _nodes() -> Iterator[Case]:
    for endpoint in (
        "http://10.0.0.1:7443",
        "https://10.0.0.1",
        "https://user@host:1",
        "https://host:1/path",
        "unix://relative",
        "unix:///",
        "tcp://10.0.0.1:1",
        "",
    ):
        yield Case(
            f"node endpoint {endpoint!r}",
            a_node(endpoint=endpoint),
            "spec.endpoint",
            "should match",
        )
    yield Case(
        "node drained without a deadline",
        a_node(drain={"onDeadline": "Terminate"}),
        "spec.drain.deadlineSeconds",
        "onDeadline: Terminate needs deadlineSeconds",
        python=False,
    )
    yield Case(
        "node out of service for no reason",
        a_node(outOfService={}),
        "spec.outOfService.reason",
        "Required value",
    )


def _checkpoints() -> Iterator[Case]:
    yield Case(
        "checkpoint of nothing",
        a_checkpoint(executionRef=DROP),
        "spec.executionRef",
        "Required value",
    )
    yield Case(
        "checkpoint with a long reason",
        a_checkpoint(reason="x" * 1025),
        "spec.reason",
        "may not be more than 1024",
    )


CASES = [
    *_images(),
    *_quantities(),
    *_memory(),
    *_times(),
    *_git(),
    *_commands(),
    *_env(),
    *_rest_of_execution(),
    *_processes(),
    *_classes(),
    *_pools(),
    *_dispatches(),
    *_runners(),
    *_nodes(),
    *_checkpoints(),
]


def _words(text: str) -> list[str]:
    return text.split()


# Names of environment variables whose plain value is taken, and those it is refused under.
HARMLESS = _words("""
TOKENIZERS_PARALLELISM MAX_TOKENS STOP_TOKEN_IDS RUST_TOKENIZERS KEYBOARD_LAYOUT XKB_KEYMAP
NODE_MONKEY_PATCH SECRETARIAT_REGION COMPASS_MODE AUTHOR_NAME TOKENS_PER_SECOND PATH HOME PWD OLDPWD
BYPASS_CACHE TWO_PASS PUBLIC_KEY CACHE_KEY PRIMARY_KEY MONKEY_API_URL EOS_TOKEN_ID TOKEN_LIMIT
MAX_TOKEN_COUNT TOKENIZER tokenize API_KEYBOARD PASSWORDLESS_LOGIN ACCREDITED SECRETION_RATE
TURKEY_API A _ NUM_TOKENS_2 APP_KEYSPACE
""")
CREDENTIALS = _words("""
GITHUB_TOKEN APIKEY MYTOKEN KEY_API HF_TOKEN HF_TOKEN_2 hf_token apikey MyAppPassword PGPASSWORD
DB_PASSWD AWS_SECRET_ACCESS_KEY GOOGLE_APPLICATION_CREDENTIALS npm_config__authToken PRIVATE_KEY
ACCESSKEY PRIVATEKEY KEYAPI CLIENTSECRET CLIENT_SECRET TOKEN SECRET PASSWORD CREDENTIAL token
TOKEN_FILE TOKENVALUE MAX_TOKENS_TOKEN ACCESS_TOKENS API_KEYS API__KEY apiKey APIKey AuthToken
DB_PASS MYSQL_PWD SSH_PASSPHRASE DJANGO_SECRET_KEY SECRET_NAME SECRETS CREDS AWS_CREDS
AWS_SESSION_TOKEN OPENAI_API_KEY SIGNING_KEY ENCRYPTION_KEY_2 keyApi TOKEN_ID_SECRET tOkEn
""")
