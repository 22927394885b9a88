"""The class's rules: one change to a pair that agrees, and the whole answer."""

from typing import Any

import pytest

from isolet.plan import admission, values
from isolet.plan.binding import Pinned
from isolet.plan.model import Absent, Input, InputRef, Known, Unknown
from isolet.plan.values import Refusal, Wait
from isolet.wire.execution import Medium
from tests.unit.plan.operator.worlds import (
    IMAGE,
    MI,
    RESOURCES,
    TAG,
    a_class,
    a_pinned,
    an_execution,
    observed,
)

OTHER = IMAGE.replace("a" * 64, "b" * 64)
SECRET = {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}
CONFIG = {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "modes", "key": "m"}}}
OVER = "over the maximum of ExecutionClass standard: "


def admit(
    spec: dict[str, Any], rules: dict[str, Any], inputs: Any = None
) -> Pinned | Refusal | Wait:
    seen = observed(
        an_execution(spec=spec), classes=Known((a_class(**rules),)), inputs=inputs or {}
    )
    return admission.admit(seen)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], Refusal]] = {
    "git": (
        {"workspace": {"git": {"repository": "r", "revision": "main"}}},
        {},
        Refusal(
            "RepositoryNotAllowed",
            "ExecutionClass standard does not allow Git repository r"
            " (spec.workspace.gitRepositories)",
        ),
    ),
    "a namespace that has not the label": (
        {},
        {"namespaceSelector": {"matchLabels": {"team": "b"}}},
        Refusal(
            "ClassNotAllowed",
            "ExecutionClass standard is not granted to namespace team (spec.namespaceSelector)",
        ),
    ),
    "no image at all": (
        {"image": None},
        {},
        Refusal("InvalidSpec", "image is mandatory: ExecutionClass standard has no default image"),
    ),
    "another image": (
        {"image": OTHER},
        {},
        Refusal(
            "ImageNotAllowed",
            f"image {OTHER} is not among those that ExecutionClass standard allows",
        ),
    ),
    "a tag where the class resolves none": (
        {"image": TAG},
        {},
        Refusal(
            "ImageNotAllowed",
            f"image {TAG} is not among those that ExecutionClass standard allows",
        ),
    ),
    "bounds that nobody gave": (
        {},
        {"resources": {"default": {"pids": None, "tmp": None}}},
        Refusal(
            "IncompleteResources",
            "resources.tmp, pids: given neither here nor by ExecutionClass standard",
        ),
    ),
    "bounds over the maximum": (
        {"resources": {"cpu": "4001m", "memory": "2049Mi", "pids": 257}},
        {},
        Refusal(
            "ResourcesNotAllowed",
            OVER + "cpu 4001m (at most 4), memory 2049Mi (at most 2Gi), pids 257 (at most 256)",
        ),
    ),
    "mounts that are memory and do not fit it": (
        {"resources": {"memory": "64Mi"}},
        {},
        Refusal(
            "InvalidSpec",
            "resources: tmp, shm and a Memory workspace are memory: together they must fit into"
            " resources.memory",
        ),
    ),
    "a medium": (
        {},
        {"workspace": {"media": ["Disk"]}},
        Refusal("MediumNotAllowed", "ExecutionClass standard allows no Memory workspace"),
    ),
    "a retention": (
        {"workspace": {"retainSeconds": 3601}},
        {},
        Refusal(
            "RetentionNotAllowed",
            "workspace.retainSeconds 3601 is over the maximum 3600 of ExecutionClass standard",
        ),
    ),
    "a deadline": (
        {"activeDeadlineSeconds": 3601},
        {},
        Refusal(
            "DeadlineNotAllowed",
            "activeDeadlineSeconds 3601 is over the maximum 3600 of ExecutionClass standard",
        ),
    ),
    "an idle timeout": (
        {"command": None, "idleTimeoutSeconds": 61},
        {"deadlines": {"maximumIdleTimeoutSeconds": 60}},
        Refusal(
            "DeadlineNotAllowed",
            "idleTimeoutSeconds 61 is over the maximum 60 of ExecutionClass standard",
        ),
    ),
    "a secret": (
        {"env": [SECRET, CONFIG]},
        {},
        Refusal(
            "SecretNotAllowed",
            "ExecutionClass standard allows no values from Secrets: env API_KEY",
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str) -> None:
    spec, rules, want = REFUSED[name]
    assert admit(spec, rules) == want


AT_THE_BOUND: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "everything as the class says": ({}, {}, {}),
    "the class's image": ({"image": None}, {"images": {"default": IMAGE}}, {}),
    "a tag": (
        {"image": TAG},
        {"images": {"allowed": [TAG], "resolveTags": True}},
        {"image": TAG, "run": TAG},
    ),
    "every bound at its maximum": (
        {
            "resources": {
                "cpu": "4",
                "memory": "2048Mi",
                "workspace": "1Gi",
                "tmp": "64Mi",
                "shm": "64Mi",
                "pids": 256,
                "output": "16Mi",
            },
            "activeDeadlineSeconds": 3600,
        },
        {},
        {
            "resources": RESOURCES.model_copy(
                update={
                    "cpu_millis": 4000,
                    "memory_bytes": 2048 * MI,
                    "workspace_bytes": 1024 * MI,
                    "tmp_bytes": 64 * MI,
                    "shm_bytes": 64 * MI,
                    "pids": 256,
                    "output_bytes": 16 * MI,
                }
            )
        },
    ),
    "memory that mounts just fit": (
        {"resources": {"memory": "84Mi"}},
        {},
        {"resources": RESOURCES.model_copy(update={"memory_bytes": 84 * MI})},
    ),
    "a disk is no memory": (
        {"resources": {"memory": "20Mi"}, "workspace": {"medium": "Disk"}},
        {},
        {
            "medium": Medium.DISK,
            "resources": RESOURCES.model_copy(update={"memory_bytes": 20 * MI}),
        },
    ),
    "a session's idle timeout from the class": (
        {"command": None},
        {"deadlines": {"idleTimeoutSeconds": 30}},
        {"idle_timeout_seconds": 30},
    ),
    "a command has none": ({}, {"deadlines": {"idleTimeoutSeconds": 30}}, {}),
    "its own retention, also none at all": (
        {"workspace": {"retainSeconds": 0}},
        {"workspace": {"defaultRetainSeconds": 60}},
        {"retain_seconds": 0},
    ),
    "the class's options": (
        {},
        {
            "runtimeHandler": "kata",
            "user": {"uid": 7, "gid": 8},
            "tmp": {"exec": True},
            "workspace": {"exec": False, "media": ["Memory"], "defaultRetainSeconds": 60},
            "deadlines": {"defaultSeconds": 5, "maximumSeconds": 6},
        },
        {
            "runtime": "kata",
            "user": "7:8",
            "tmp_executable": True,
            "workspace_executable": False,
            "retain_seconds": 60,
            "default_deadline_seconds": 5,
            "maximum_deadline_seconds": 6,
        },
    ),
}


@pytest.mark.parametrize("name", AT_THE_BOUND)
def test_is_pinned_as_it_stands(name: str) -> None:
    spec, rules, changes = AT_THE_BOUND[name]
    assert admit(spec, rules) == a_pinned(**changes)


def test_versions_of_inputs_are_pinned_and_values_are_not() -> None:
    known = {
        InputRef("Secret", "keys"): Known(
            Input(uid="s", resource_version="7", data={"k": b"canary"})
        ),
        InputRef("ConfigMap", "modes"): Known(
            Input(uid="c", resource_version="8", data={"m": b"canary"})
        ),
    }
    found = admit({"env": [SECRET, CONFIG]}, {"env": {"allowSecretRefs": True}}, known)
    assert found == a_pinned(
        inputs=(
            values.PinnedInput(kind="ConfigMap", name="modes", uid="c", resource_version="8"),
            values.PinnedInput(kind="Secret", name="keys", uid="s", resource_version="7"),
        )
    )
    assert "canary" not in repr(found)


ALLOWED = {"env": {"allowSecretRefs": True}}


@pytest.mark.parametrize(
    ("fact", "want"),
    [
        (Unknown(), Wait("AwaitingInputs", "Secret keys could not be read", sure=False)),
        (Absent(), Wait("AwaitingInputs", "Secret keys is not there (env API_KEY)")),
        (
            Known(Input(uid="s", resource_version="7", data={})),
            Wait("AwaitingInputs", "key k of Secret keys is not there (env API_KEY)"),
        ),
        (
            Known(Input(uid="s", resource_version="7", data={"k": b"x" * 32769})),
            Wait(
                "AwaitingInputs",
                "key k of Secret keys is longer than 32768 bytes (env API_KEY)",
            ),
        ),
        (
            Known(Input(uid="s", resource_version="7", data={"k": b"a\0b"})),
            Wait(
                "AwaitingInputs",
                "key k of Secret keys holds a NUL byte, which no environment can (env API_KEY)",
            ),
        ),
    ],
)
def test_an_input_that_cannot_be_used_is_waited_for(fact: Any, want: Wait) -> None:
    assert admit({"env": [SECRET]}, ALLOWED, {InputRef("Secret", "keys"): fact}) == want


def test_the_class_that_is_named_counts_and_not_the_default() -> None:
    classes = (a_class("other", isDefault=True), a_class("standard"))
    found = admission.admit(observed(classes=Known(classes)))
    assert isinstance(found, Pinned)
    assert found.class_name == "standard"


def test_the_default_class_counts_where_none_is_named() -> None:
    classes = (a_class("other", isDefault=True), a_class("standard"))
    seen = observed(an_execution(spec={"className": None}), classes=Known(classes))
    found = admission.admit(seen)
    assert isinstance(found, Pinned)
    assert found.class_name == "other"


def test_a_namespace_that_is_gone_is_waited_for() -> None:
    found = admission.admit(observed(namespace_labels=Absent()))
    assert found == Wait("Pending", "its namespace could not be read", sure=True)
