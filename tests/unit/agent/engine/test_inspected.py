from datetime import UTC, datetime, timedelta

import pytest

from isolet.agent.engine import base, inspected

from .samples import CONFIG, shown

MOMENTS = {
    "2026-01-02T03:04:05.123456789Z": datetime(2026, 1, 2, 3, 4, 5, 123456, UTC),
    "2026-01-02T03:04:05.1Z": datetime(2026, 1, 2, 3, 4, 5, 100000, UTC),
    "2026-01-02T03:04:05Z": datetime(2026, 1, 2, 3, 4, 5, 0, UTC),
    "2026-01-02T03:04:05.120+02:00": datetime(2026, 1, 2, 1, 4, 5, 120000, UTC),
    "0001-01-01T00:00:00Z": None,
    "": None,
}


@pytest.mark.parametrize("text", MOMENTS)
def test_a_moment(text):
    assert inspected.moment(text) == MOMENTS[text]


STARTED, FINISHED = "2026-01-02T03:04:06Z", "2026-01-02T03:04:07.5Z"
ZERO = "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("status", "started", "finished", "code"),
    [
        ("created", ZERO, ZERO, None),
        ("running", STARTED, ZERO, None),
        ("paused", STARTED, ZERO, None),
        ("restarting", STARTED, FINISHED, None),
        ("exited", STARTED, FINISHED, 7),
        ("dead", STARTED, FINISHED, 7),
        ("removing", STARTED, FINISHED, 7),
    ],
)
def test_an_exit_code_is_there_only_after_the_end(status, started, finished, code):
    raw = shown()
    raw["State"] |= {"Status": status, "StartedAt": started, "FinishedAt": finished, "ExitCode": 7}
    found = inspected.container(raw)
    assert (found.status, found.exit_code) == (base.Status(status), code)
    assert (found.finished_at is None) == (code is None)


def test_a_start_that_failed_left_no_exit_code():
    raw = shown()
    raw["State"] |= {"ExitCode": 127, "Error": "no such file"}
    found = inspected.container(raw)
    assert (found.exit_code, found.error, found.started_at) == (None, "no such file", None)


def test_an_end_is_never_before_its_start():
    raw = shown()
    raw["State"] |= {"Status": "exited", "StartedAt": FINISHED, "FinishedAt": STARTED}
    found = inspected.container(raw)
    assert found.finished_at == found.started_at == inspected.moment(FINISHED)


def test_a_container():
    found = inspected.container(shown())
    assert found.name == CONFIG.name
    assert found.created_at == datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)
    assert found.labels["maintainer"] == "the image's"


def test_an_image_of_which_only_names_are_read():
    raw = {
        "Id": "sha256:1",
        "RepoTags": ["a:1", "<none>:<none>"],
        "RepoDigests": None,
        "Architecture": "arm64",
        "Config": {"Env": ["PATH=/bin", "TOKEN=secret=x", "EMPTY"]},
    }
    assert inspected.image(raw) == base.Image(
        id="sha256:1", tags=("a:1",), env=("PATH", "TOKEN", "EMPTY"), architecture="arm64"
    )
    assert inspected.image({"Id": "sha256:1", "Config": None}).env == ()


def an_event(action, **attributes):
    return {
        "Type": "container",
        "Action": action,
        "Actor": {"ID": "c", "Attributes": {"name": "n", "image": "i", **attributes}},
        "time": 1_767_225_600,
        "timeNano": 1_767_225_600_123_456_789,
    }


def test_an_event():
    raw = an_event("die", exitCode="137", **{"dev.isolet.uid": "u"})
    assert inspected.event(raw) == base.EngineEvent(
        action="die",
        container_id="c",
        container_name="n",
        labels={"dev.isolet.uid": "u"},
        at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=123456),
        exit_code=137,
    )


def test_an_event_of_an_exec_has_no_command_line():
    raw = an_event("exec_create: sh -c 'echo secret'", execID="e")
    found = inspected.event(raw)
    assert (found.action, found.exec_id, found.exit_code) == ("exec_create", "e", None)
    assert "secret" not in repr(found)
