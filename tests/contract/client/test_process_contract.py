"""What an agent promises about Processes and live files, however it is reached."""

from datetime import UTC, datetime

import pytest

from isolet.base import errors
from isolet.plan import reasons
from isolet.wire.base import Fence
from isolet.wire.execution import EnvVar
from isolet.wire.process import (
    Code,
    OnOverflow,
    OutputPolicy,
    ProcessAmendment,
    ProcessSpec,
    ProcessState,
    ProcessWanted,
    Sandbox,
    StagedFile,
)
from tests.contract.client.harness import Served, Way, resources
from tests.contract.client.wire import request, send

ANY_BYTES = bytes(range(256)) * 3
CANCEL = ProcessAmendment(state=ProcessState.CANCELLED)


def wanted(uid: str = "p-1", **changes: object) -> ProcessWanted:
    sandbox = Sandbox(image="sha256:" + "a" * 64, resources=resources())
    spec = {"sandbox": sandbox, "command": ("make",), **changes}
    return ProcessWanted(uid=uid, namespace="acme", name="one", spec=ProcessSpec(**spec))


async def test_the_whole_request_arrives(way: Way) -> None:
    asked = wanted(
        command=(),
        code=Code(language="python", source="print('ü\u2028')"),
        env=(EnvVar(name="RAW", value=ANY_BYTES[1:256]),),
        files=(StagedFile(path="a/b", content=ANY_BYTES, mode=0o750),),
        stdin=ANY_BYTES,
        cwd="a",
        timeout_seconds=7,
        deadline_at=datetime(2100, 1, 1, tzinfo=UTC),
        artifacts=("out/**",),
        output=OutputPolicy(on_overflow=OnOverflow.FAIL, limit_bytes=9),
    )
    seen = await way.api.put_process(asked, None)
    assert way.agent.wanted["p-1"] == asked
    assert seen.spec_digest == asked.spec.digest(b"memory")
    assert await way.api.put_process(asked, None) == seen
    assert await way.api.get_process("p-1") == seen
    assert (await way.api.snapshot()).processes == (seen,)


async def test_large_inputs_arrive(way: Way) -> None:
    content = bytes(8 << 20)
    await way.api.put_process(
        wanted(files=(StagedFile(path="f", content=content),), stdin=content), None
    )
    assert way.agent.wanted["p-1"].spec.stdin == content


async def test_another_request_is_a_conflict(way: Way) -> None:
    await way.api.put_process(wanted(), None)
    with pytest.raises(errors.Conflict):
        await way.api.put_process(wanted(stdin=b"x"), None)


async def test_cancel_dispose_remove_and_forget(way: Way) -> None:
    await way.api.put_process(wanted(), None)
    seen = await way.api.amend_process("p-1", CANCEL, Fence(lease_uid="l", transitions=1))
    assert seen.outcome is not None
    assert seen.outcome.reason == reasons.CANCELLED
    dispose = ProcessAmendment(state=ProcessState.CANCELLED, dispose=True)
    seen = await way.api.amend_process("p-1", dispose, None)
    assert (seen.nothing_left, seen.disposed) == (True, True)
    assert (await way.api.remove_process("p-1", None)).nothing_left
    with pytest.raises(errors.NotFound):
        await way.api.get_process("p-1")
    with pytest.raises(errors.Conflict) as caught:
        await way.api.put_process(wanted(), None)
    assert caught.value.reason == "AlreadyEnded"
    assert await way.api.forget_processes(["p-1", "none"], None) == 1
    assert (await way.api.put_process(wanted(), None)).outcome is None


async def test_an_old_fence_is_refused(way: Way) -> None:
    await way.api.put_process(wanted(), Fence(lease_uid="l", transitions=2))
    for call in (
        way.api.put_process(wanted(), Fence(lease_uid="l", transitions=1)),
        way.api.amend_process("p-1", CANCEL, Fence(lease_uid="l", transitions=1)),
        way.api.remove_process("p-1", Fence(lease_uid="l", transitions=1)),
        way.api.forget_processes(["p-1"], Fence(lease_uid="l", transitions=1)),
    ):
        with pytest.raises(errors.Fenced):
            await call


async def test_output_and_artifacts_are_exact(way: Way) -> None:
    await way.api.put_process(wanted(), None)
    way.agent.process_outputs["p-1/stderr"] = ANY_BYTES
    chunk = await way.streams.process_output("p-1", "stderr", -6, 4)
    assert (chunk.offset, chunk.data, chunk.total_bytes) == (762, ANY_BYTES[-6:-2], 768)
    with pytest.raises(errors.Conflict) as caught:
        await way.streams.read_artifact("p-1", "a", 0, 10)
    assert caught.value.reason == reasons.STILL_RUNNING
    await way.api.amend_process("p-1", CANCEL, None)
    way.agent.artifacts["p-1", "ü b/?&#%"] = ANY_BYTES
    piece = await way.streams.read_artifact("p-1", "ü b/?&#%", 5, 10)
    assert (piece.offset, piece.data, piece.artifact.size) == (5, ANY_BYTES[5:15], 768)
    with pytest.raises(errors.Refused) as refused:
        await way.streams.read_artifact("p-1", "../x", 0, 10)
    assert refused.value.reason == reasons.ARTIFACT_REJECTED
    with pytest.raises(errors.NotFound):
        await way.streams.read_artifact("p-1", "none", 0, 10)


async def test_live_files(way: Way) -> None:
    content = ANY_BYTES * 4000
    await way.streams.put_file("s", "a/ü &", content, 0o640)
    assert await way.streams.get_file("s", "a/ü &") == content
    (entry,) = await way.streams.list_files("s", "a")
    assert (entry.path, entry.size, entry.mode) == ("a/ü &", len(content), 0o640)
    with pytest.raises(errors.NotFound):
        await way.streams.get_file("s", "b")
    with pytest.raises(errors.Invalid):
        await way.streams.put_file("s", "../b", b"", 0o644)


@pytest.mark.parametrize(
    ("method", "path", "who"),
    [
        ("PUT", "/v1/processes/p", "stream"),
        ("DELETE", "/v1/processes/p", "stream"),
        ("POST", "/v1/processes:forget", "stream"),
        ("GET", "/v1/processes/p/output/stdout", "operator"),
        ("GET", "/v1/processes/p/artifact?path=a", "operator"),
        ("PUT", "/v1/executions/p/file?path=a", "operator"),
        ("GET", "/v1/executions/p/file?path=a", "operator"),
        ("GET", "/v1/executions/p/files", "operator"),
        ("GET", "/v1/processes/p", "dispatch"),
    ],
)
async def test_each_call_needs_its_right(served: Served, method: str, path: str, who: str) -> None:
    answer = await send(served, request(method, path, b"{}"), who)
    assert (answer.status, answer.reason) == (403, "IdentityNotAllowed")


BAD = {
    "two places": {"executionUid": "s"},
    "no program": {"command": []},
    "two programs": {"shell": "x"},
    "a path that leads out": {"files": [{"path": "../x", "content": ""}]},
    "a path twice": {"files": [{"path": "x", "content": ""}, {"path": "x", "content": ""}]},
    "an unknown language": {"command": [], "code": {"language": "cobol", "source": "x"}},
    "a cwd outside": {"cwd": "/etc"},
    "a deadline without a zone": {"deadlineAt": "2026-01-01T00:00:00"},
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_malformed_is_refused_before_anything(served: Served, name: str) -> None:
    import json

    document = json.loads(wanted().to_json())
    document["spec"].update(BAD[name])
    body = json.dumps(document).encode()
    headers = ("Content-Type: application/json",)
    answer = await send(served, request("PUT", "/v1/processes/p-1", body, headers))
    assert answer.status == 422
    assert served.agent.calls == []
