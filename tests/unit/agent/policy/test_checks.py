"""Every rule of the node, as a table: a healthy request, one change, what is said."""

import pydantic
import pytest

from isolet.agent.policy import checks, model
from isolet.wire.dispatch import RunnerContract
from isolet.wire.execution import (
    EnvVar,
    ExecRequest,
    ExecutionSpec,
    ExecutionWanted,
    GitSource,
    Medium,
    Resources,
    Workspace,
)
from isolet.wire.node import Amounts
from isolet.wire.pool import PoolWanted
from isolet.wire.process import ProcessSpec, StagedFile
from isolet.wire.restore import Restore

HEX = "a" * 64
FACTS = model.NodeFacts(cpus=4, memory_bytes=8 << 30, disk_bytes=10 << 30)
POLICY = model.default(FACTS)
MIB = 1 << 20
RESOURCES = Resources(
    cpu_millis=500,
    memory_bytes=64 * MIB,
    workspace_bytes=16 * MIB,
    tmp_bytes=4 * MIB,
    shm_bytes=1 * MIB,
    pids=64,
    output_bytes=1 * MIB,
)
SPEC = ExecutionSpec(image=f"sha256:{HEX}", resources=RESOURCES, command=("true",))
SESSION = SPEC.model_copy(update={"command": ()})


def spec(**changes: object) -> ExecutionSpec:
    """The healthy spec with changes that no validation has seen."""
    return SPEC.model_copy(update=changes)


def sizes(**changes: int) -> ExecutionSpec:
    return spec(resources=RESOURCES.model_copy(update=changes))


def env(*variables: tuple[str, bytes], secret: bool = False) -> ExecutionSpec:
    made = tuple(EnvVar.model_construct(name=n, value=v, secret=secret) for n, v in variables)
    return spec(env=made)


def policy(text: str) -> model.NodePolicy:
    return model.parse(text, FACTS)


def found(candidate: ExecutionSpec, rules: model.NodePolicy = POLICY) -> set[tuple[str, str]]:
    return {(v.field, v.rule) for v in checks.violations(candidate, rules)}


@pytest.mark.parametrize(
    "good",
    [
        SPEC,
        SESSION,
        spec(image=f"registry.example:5000/a/b@sha256:{HEX}"),
        spec(user="1:1"),
        spec(user="4294967294:4294967294"),
        sizes(cpu_millis=4000),
        sizes(workspace_bytes=59 * MIB),
        spec(
            workspace=Workspace(medium=Medium.DISK),
            resources=RESOURCES.model_copy(update={"workspace_bytes": 8 << 30}),
        ),
        spec(command=("x" * 131_071, "", "ü")),
        SESSION.model_copy(update={"idle_timeout_seconds": 5}),
        env(("MAX_TOKENS", b"5"), ("KEYBOARD_LAYOUT", b"us")),
        env(("GITHUB_TOKEN", b"x"), secret=True),
    ],
)
def test_what_is_right_passes(good: ExecutionSpec) -> None:
    assert checks.violations(good, POLICY) == ()


@pytest.mark.parametrize(
    ("bad", "want"),
    [
        # Images: a tag moves, an upper-case or short digest is none.
        (spec(image="python:3.12"), ("image", "ImagePinned")),
        (spec(image="python"), ("image", "ImagePinned")),
        (spec(image=f"python:3@sha256:{HEX}"), ("image", "ImagePinned")),
        (spec(image=f"sha256:{'A' * 64}"), ("image", "ImagePinned")),
        (spec(image=f"sha256:{HEX[:-1]}"), ("image", "ImagePinned")),
        (spec(image=f"sha256:{HEX}\n"), ("image", "ImagePinned")),
        (spec(image=""), ("image", "ImagePinned")),
        (spec(runtime="runc"), ("runtime", "RuntimeAllowed")),
        (spec(runtime=""), ("runtime", "RuntimeAllowed")),
        # Users: both parts numeric and at least 1.
        *(
            (spec(user=user), ("user", "UserNumeric"))
            for user in (
                "root",
                "1000",
                "0:1000",
                "1000:0",
                "user:group",
                "-1:5",
                "1:4294967295",
                "1:2:3",
                " 1:1",
                "1:1\n",
                "\u0661:\u0661",
                "",
            )
        ),
        # Bounds of the types themselves: nobody's word is taken for them.
        (sizes(pids=0), ("resources.pids", "Bounds")),
        (sizes(pids=-1), ("resources.pids", "Bounds")),
        (sizes(cpu_millis=0), ("resources.cpuMillis", "Bounds")),
        (sizes(memory_bytes=4 * MIB), ("resources.memoryBytes", "Bounds")),
        (sizes(output_bytes=65 * MIB), ("resources.outputBytes", "Bounds")),
        (spec(status_tail_bytes=5000), ("statusTailBytes", "Bounds")),
        (spec(maximum_deadline_seconds=90_000), ("maximumDeadlineSeconds", "Bounds")),
        # Bigger than the node.
        (sizes(cpu_millis=64_000), ("resources.cpuMillis", "NodeCapacity")),
        (sizes(memory_bytes=16 << 30), ("resources.memoryBytes", "NodeCapacity")),
        # Everything on a tmpfs counts as memory.
        (sizes(workspace_bytes=60 * MIB), ("resources.memoryBytes", "MemoryHoldsTmpfs")),
        (sizes(tmp_bytes=48 * MIB), ("resources.memoryBytes", "MemoryHoldsTmpfs")),
        (
            spec(
                workspace=Workspace(medium=Medium.DISK),
                resources=RESOURCES.model_copy(update={"tmp_bytes": 64 * MIB}),
            ),
            ("resources.memoryBytes", "MemoryHoldsTmpfs"),
        ),
        (
            spec(workspace=Workspace(medium=Medium.DISK, executable=False)),
            ("workspace.executable", "NoexecNeedsMemory"),
        ),
        (
            spec(
                workspace=Workspace(git=GitSource(repository="project", revision="main")),
                restore=Restore(
                    checkpoint_uid="c",
                    manifest_digest=f"sha256:{HEX}",
                    content_digest=f"sha256:{HEX}",
                ),
            ),
            ("restore", "OneBeginning"),
        ),
        (spec(idle_timeout_seconds=5), ("idleTimeoutSeconds", "IdleNeedsSession")),
        # Arguments.
        (spec(command=("a", "x" * 131_072)), ("command.1", "ArgumentSize")),
        (spec(command=("a", "ü" * 65_536)), ("command.1", "ArgumentSize")),
        (spec(command=("a\0b",)), ("command.0", "NoNUL")),
        (spec(command=("a", "\ud800")), ("command.1", "ArgumentText")),
        (spec(command=("", "b")), ("command.0", "ProgramNamed")),
        (spec(command=("x" * 131_000,) * 17), ("command", "TotalSize")),
        (spec(command=("x",) * 300_000), ("command", "TotalSize")),
        # Environment.
        (env(("GITHUB_TOKEN", b"x")), ("env.0.name", "CredentialFromSecret")),
        (env(("MYTOKEN", b"x")), ("env.0.name", "CredentialFromSecret")),
        (env(("APIKEY", b"x")), ("env.0.name", "CredentialFromSecret")),
        (env(("A", b"1"), ("A", b"2")), ("env.1.name", "EnvUnique")),
        (env(("A-B", b"1")), ("env.0.name", "EnvName")),
        (env(("1A", b"1")), ("env.0.name", "EnvName")),
        (env(("", b"1")), ("env.0.name", "EnvName")),
        (env(("A\n", b"1")), ("env.0.name", "EnvName")),
        (env(("TO\u200bKEN", b"1")), ("env.0.name", "EnvName")),
        (env(("A" * 257, b"1")), ("env.0.name", "EnvName")),
        (env(("A", b"a\0b")), ("env.0.value", "NoNUL")),
        (env(("A", b"x" * 32_769)), ("env.0.value", "Bounds")),
    ],
)
def test_what_is_wrong_is_named(bad: ExecutionSpec, want: tuple[str, str]) -> None:
    assert want in found(bad)


@pytest.mark.parametrize(
    ("text", "candidate", "want"),
    [
        ("images = []", SPEC, {("image", "ImageAllowed")}),
        (f'images = ["sha256:{"b" * 64}"]', SPEC, {("image", "ImageAllowed")}),
        (f'images = ["sha256:{HEX}"]', SPEC, set()),
        ('images = ["team/*"]', spec(image=f"team/python@sha256:{HEX}"), set()),
        ('images = ["team/*"]', spec(image=f"other/a@sha256:{HEX}"), {("image", "ImageAllowed")}),
        ('images = ["team/*"]', SPEC, {("image", "ImageAllowed")}),
        (f'images = ["team/a@sha256:{HEX}"]', spec(image=f"team/a@sha256:{HEX}"), set()),
        ('runtimes = ["runc"]', spec(runtime="runc"), set()),
        ('runtimes = ["runc"]', SPEC, {("runtime", "RuntimeAllowed")}),
        ('media = ["Disk"]', SPEC, {("workspace.medium", "MediumAllowed")}),
        (
            "maximumDeadlineSeconds = 60",
            SPEC,
            {("maximumDeadlineSeconds", "NodeMaximum")},
        ),
        (
            "maximumRetainSeconds = 5",
            spec(workspace=Workspace(retain_seconds=6)),
            {("workspace.retainSeconds", "NodeMaximum")},
        ),
        ("[maximum]\npids = 63", SPEC, {("resources.pids", "NodeMaximum")}),
        ("[maximum]\ncpu = 0.25", SPEC, {("resources.cpuMillis", "NodeMaximum")}),
        ('[maximum]\nmemory = "32Mi"', SPEC, {("resources.memoryBytes", "NodeMaximum")}),
        ('[maximum]\nworkspace = "8Mi"', SPEC, {("resources.workspaceBytes", "NodeMaximum")}),
        ('[maximum]\ntmp = "1Mi"', SPEC, {("resources.tmpBytes", "NodeMaximum")}),
        ('[maximum]\nshm = "64Ki"', SPEC, {("resources.shmBytes", "NodeMaximum")}),
        ('[maximum]\noutput = "1Ki"', SPEC, {("resources.outputBytes", "NodeMaximum")}),
    ],
)
def test_the_nodes_own_caps(
    text: str, candidate: ExecutionSpec, want: set[tuple[str, str]]
) -> None:
    assert found(candidate, policy(text)) == want


def test_an_image_given_by_id_is_known_by_its_names_on_the_node() -> None:
    rules = policy('images = ["team/*"]')
    assert checks.violations(SPEC, rules, image_names=("team/python:3",)) == ()
    assert checks.violations(SPEC, rules, image_names=("other/python:3",)) != ()


BELOW = "a path lies below another file's path"
PATHS = [
    ((), None),
    (("a",), None),
    (("a/b", "a/c"), None),
    (("a", "ab", "a.b", "a-b/c", "b/a"), None),
    (("a", "a/b"), BELOW),
    (("a/b", "a"), BELOW),
    (("a/b/c/d", "x", "a-b", "a"), BELOW),
    (("a/b", "c", "a/b/c"), BELOW),
    (("a/b", "c", "a/b"), "a path is given twice"),
    (("a", "./a"), "normalised"),
    (("a//b",), "normalised"),
    (("a/",), "normalised"),
    (("../a",), "normalised"),
    (("a/" + "x" * 255 + "/b", "ü" * 127), None),
    (("a/" + "x" * 256 + "/b",), "longer than the 255 bytes"),
    (("ü" * 128,), "longer than the 255 bytes"),
    (("/a",), "normalised"),
]


@pytest.mark.parametrize(("paths", "problem"), PATHS)
def test_files_that_cannot_lie_in_one_workspace(
    paths: tuple[str, ...], problem: str | None
) -> None:
    """Refused as a Process's; of a runner they close the pool of its class and no other."""
    files = tuple(StagedFile(path=path, content=b"canary") for path in paths)
    pool = PoolWanted(
        class_name="runs",
        image=SPEC.image,
        resources=RESOURCES,
        minimum=1,
        maximum=1,
        runner=RunnerContract(command=("run",), files=files),
    )
    told = [str(violation) for violation in checks.pool_violations(pool, POLICY)]
    if problem is None:
        assert ProcessSpec(execution_uid="u", command=("true",), files=files).files == files
        assert told == []
        return
    with pytest.raises(pydantic.ValidationError, match=f"files: .*{problem}"):
        ProcessSpec(execution_uid="u", command=("true",), files=files)
    assert len(told) == 1
    assert told[0].startswith("runner.files: ")
    assert problem in told[0]


def test_all_that_is_wrong_is_said_at_once() -> None:
    bad = spec(image="python:3", user="root", runtime="kata", command=("a\0",))
    assert found(bad) == {
        ("image", "ImagePinned"),
        ("user", "UserNumeric"),
        ("runtime", "RuntimeAllowed"),
        ("command.0", "NoNUL"),
    }


def test_no_value_is_ever_repeated() -> None:
    bad = spec(
        command=("canary-77\0" + "x" * 131_072,),
        env=(EnvVar.model_construct(name="API_KEY", value=b"canary-78\0", secret=False),),
    )
    said = " ".join(map(str, checks.violations(bad, POLICY)))
    assert "API_KEY" in said
    assert "canary" not in said


def test_the_deadline_stays_below_the_specs_maximum() -> None:
    def rules(seconds: int) -> set[str]:
        limited = spec(maximum_deadline_seconds=60)
        wanted = ExecutionWanted(uid="u", name="n", spec=limited, active_deadline_seconds=60)
        changed = wanted.model_copy(update={"active_deadline_seconds": seconds})
        return {v.rule for v in checks.wanted_violations(changed, POLICY)}

    assert rules(60) == set()
    assert rules(61) == {"DeadlineBound"}
    assert rules(0) == {"DeadlineBound"}


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, set()),
        ({"cwd": "/workspace/a"}, set()),
        ({"cwd": "workspace"}, {"AbsolutePath"}),
        ({"cwd": "/a\0"}, {"AbsolutePath"}),
        ({"cwd": "/" + "a" * 4096}, {"AbsolutePath"}),
        ({"command": ()}, {"Bounds"}),
        ({"command": ("",)}, {"ProgramNamed"}),
        ({"timeout_seconds": 0.0}, {"Bounds"}),
        ({"timeout_seconds": float("nan")}, {"Bounds"}),
        ({"env": (EnvVar(name="DB_PASSWORD", value=b""),)}, {"CredentialFromSecret"}),
    ],
)
def test_commands_in_a_session(changes: dict[str, object], want: set[str]) -> None:
    request = ExecRequest(command=("true",)).model_copy(update=changes)
    assert {v.rule for v in checks.exec_violations(request)} == want


def test_room_says_what_lacks() -> None:
    rules = policy('[capacity]\ncpu = 1\nmemory = "128Mi"\ndisk = "64Mi"\nexecutions = 2')
    none, half = Amounts(), Amounts(cpu_millis=500, memory_bytes=64 * MIB, executions=1)
    assert checks.room(rules, none, SPEC) is None
    assert checks.room(rules, half, SPEC) is None
    full = Amounts(cpu_millis=501, memory_bytes=65 * MIB, executions=2)
    lack = checks.room(rules, full, SPEC)
    assert lack is not None
    for part in ("CPU", "memory", "sandboxes"):
        assert part in lack
    assert "disk" not in lack
    on_disk = spec(workspace=Workspace(medium=Medium.DISK))
    assert checks.room(rules, Amounts(disk_bytes=48 * MIB), on_disk) is None
    assert "disk" in (checks.room(rules, Amounts(disk_bytes=49 * MIB), on_disk) or "")


KEPT = checks.KeptCheckpoints(count=2, of_namespace=1, bytes=1000)

QUOTAS = {
    "room": ("", None),
    "one more is too many": ("count = 2", "the node keeps 2 Checkpoints, of at most 2"),
    "one more of this namespace is too many": (
        "namespaceCount = 1",
        "the node keeps 1 Checkpoints of this namespace, of at most 1",
    ),
    "another namespace has room": ("namespaceCount = 2", None),
    "their bytes are used up": (
        "bytes = 1000",
        "the node's Checkpoints take 1000 bytes, of at most 1000",
    ),
    "a byte is left": ("bytes = 1001", None),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_what_a_node_keeps_of_workspaces_is_bounded(name: str) -> None:
    said, want = QUOTAS[name]
    assert checks.checkpoint_quota(policy(f"[checkpoints]\n{said}"), KEPT) == want


def test_a_tenth_of_the_disk_is_for_checkpoints_unless_the_file_says_more() -> None:
    assert POLICY.checkpoints.bytes == FACTS.disk_bytes // 10
    assert policy('[checkpoints]\nbytes = "3Gi"').checkpoints.bytes == 3 << 30
