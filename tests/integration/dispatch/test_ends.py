"""Every way in which a runner or a document can be bad: its own reason, and a clean node."""

import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from isolet.agent.host import ExecutionHost
from isolet.base import names
from isolet.plan import dispatch_document, reasons
from isolet.plan.dispatch_document import Defect
from isolet.wire.dispatch import MAX_DOCUMENT_BYTES, Budgets, ReserveRequest, RunnerContract
from isolet.wire.execution import ExecRequest, ExecutionWanted, Step
from isolet.wire.process import StagedFile
from tests.integration.dispatch.desk import Desk, pool, refused, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

VIOLATED = reasons.PROTOCOL_VIOLATED
HANGS = Budgets(startup_seconds=60, execution_seconds=2)
LINGERS = Budgets(startup_seconds=60, finalization_seconds=1)
RESULT = {"complete": {}}
ENDS = {
    "says what is no event": ([{"raw": "all is well\n"}], VIOLATED),
    "numbers its events itself": ([{"raw": '{"event_type":"x","sequence":1}\n'}], VIOLATED),
    "says heartbeats": ([{"raw": '{"event_type":"heartbeat"}\n'}], VIOLATED),
    "gives a result that is no object": ([{"complete": 7}], VIOLATED),
    "goes on after its result": ([RESULT, {"say": 1}], VIOLATED),
    "gives a second result": ([RESULT, RESULT], VIOLATED),
    "cuts its last line off": ([{"raw": '{"event_type":"x"'}, {"exit": 0}], VIOLATED),
    "gives a result and another code": ([RESULT, {"exit": 3}], reasons.NON_ZERO_EXIT),
    "dies": ([{"say": 1}, {"exit": 7}], reasons.NON_ZERO_EXIT),
    "is killed": ([{"die": 9}], reasons.NON_ZERO_EXIT),
    "eats": ([{"eat": 512}], reasons.OOM_KILLED),
    "gives no result": ([{"say": 1}, {"exit": 0}], reasons.RESULT_MISSING),
    "hangs": ([{"fork": 600}, {"sleep": 600}], reasons.DEADLINE_EXCEEDED),
    "hangs after its result": ([RESULT, {"sleep": 600}], reasons.FINALIZATION_TIMEOUT),
    "floods": ([{"flood": 70}], reasons.OUTPUT_LIMIT_EXCEEDED),
    "never ends its line": ([{"endless": 2 << 20}, {"sleep": 600}], reasons.EVENT_TOO_LARGE),
}
BUDGETS = {reasons.DEADLINE_EXCEEDED: HANGS, reasons.FINALIZATION_TIMEOUT: LINGERS}


@pytest.mark.parametrize(("steps", "reason"), ENDS.values(), ids=ENDS)
async def test_a_bad_runner_ends_with_its_own_reason(desk: Desk, steps, reason) -> None:
    uid = await desk.begin(*steps, budgets=BUDGETS.get(reason, Budgets()))
    outcome = await desk.ended(uid)
    assert (outcome.succeeded, outcome.reason) == (False, reason)


WELL = {
    "leaves a child that holds its streams": [{"fork": 600}],
    "is loud on the stream that is thrown away": [{"noise": 80}],
    "says a line of 1 MiB": [{"raw": '{"event_type":"x","a":"' + "a" * ((1 << 20) - 25) + '"}\n'}],
}


@pytest.mark.parametrize("steps", WELL.values(), ids=WELL)
async def test_what_is_allowed_succeeds(desk: Desk, steps) -> None:
    assert (await desk.ended(await desk.begin(*steps))).succeeded


async def test_a_runner_that_does_not_take_its_document(desk: Desk) -> None:
    """Its pipe is full, and it reads nothing."""
    deaf = RunnerContract(command=("sh", "-c", "echo ready; exec sleep 600"))
    await desk.serve(pool("deaf", runner=deaf))
    uid = desk.uid()
    budgets = Budgets(startup_seconds=2)
    document, wanted = desk.asked(uid=uid, budgets=budgets, filler="a" * (4 << 20))
    wanted = wanted.model_copy(update={"class_name": "deaf"})
    kept = await desk.runs.reserve(ReserveRequest(class_name="deaf"))
    await desk.runs.begin(kept, wanted, document)
    assert (await desk.ended(uid)).reason == reasons.HANDOVER_TIMEOUT


def sized(total: int) -> bytes:
    return b'{"run_id":"' + b"a" * (total - 13) + b'"}'


DOCUMENTS = {
    "no JSON": (b"{'run_id':1}", Defect.NOT_JSON),
    "cut off": (b'{"run_id":', Defect.NOT_JSON),
    "no object": (b"[]", Defect.NOT_OBJECT),
    "two documents": (b"{}{}", Defect.NOT_ALONE),
    "two documents on two lines": (b"{}\n{}\n", Defect.NOT_ALONE),
    "a key twice": (b'{"a":1,"a":2}', Defect.DUPLICATE_KEY),
    "8 MiB + 1": (sized(MAX_DOCUMENT_BYTES + 1), Defect.TOO_LARGE),
    "8 MiB, and no room for its envelope": (sized(MAX_DOCUMENT_BYTES), Defect.TOO_LARGE),
}


async def test_a_bad_document_spends_no_slot(desk: Desk) -> None:
    before = await desk.slots()
    for raw, defect in DOCUMENTS.values():
        _, wanted = desk.asked(uid=desk.uid())
        said = {"payload_digest": names.digest(raw), "payload_bytes": len(raw)}
        kept = await desk.runs.reserve(ReserveRequest(class_name=wanted.class_name))
        work = desk.runs.begin(kept, wanted.model_copy(update=said), raw)
        assert (await refused(work)).reason == defect
    assert await desk.slots() == before
    assert (await desk.ended(await desk.begin())).succeeded  # the very slot


ENVELOPE = b'{"mode":"stream","payload":{}}'
ENVELOPES = {
    "no newline": (ENVELOPE, "no newline at the end"),
    "a second document": (ENVELOPE + ENVELOPE + b"\n", "not one JSON document"),
    "a second line": (ENVELOPE + b"\n" + ENVELOPE + b"\n", "more than one line"),
    "half of it": (ENVELOPE[:12], "no newline at the end"),
    "more than 8 MiB": (b'{"a":"' + b"a" * MAX_DOCUMENT_BYTES + b'"}\n', "more than 8 MiB"),
    "no JSON": (b"hello\n", "not one JSON document"),
}


async def test_48_the_runner_itself_refuses_what_is_no_envelope(desk: Desk) -> None:
    """In a session of its image: an agent never sends such a thing, and a runner relies on none."""
    wanted = ExecutionWanted(
        uid=desk.uid(), name="s", spec=pool().spec(), active_deadline_seconds=600
    )
    host = ExecutionHost(desk.node.service)
    await desk.node.service.put(wanted, None)
    await until(lambda: running(desk, wanted.uid))
    said = {}
    for name, (raw, _) in ENVELOPES.items():
        ask = ExecRequest(command=("/app/runtime", "--once", "warm"), stdin=raw)
        found = await desk.node.service.exec(wanted.uid, ask)
        first, event = found.stdout.splitlines()
        message = json.loads(event)["payload"]["message"]
        said[name] = (first, json.loads(event)["event_type"], message, found.exit_code)
    assert said == {name: (b"ready", "error", why, 65) for name, (_, why) in ENVELOPES.items()}
    whole = ExecRequest(command=("/app/runtime", "--once", "warm"), stdin=ENVELOPE + b"\n")
    assert (await desk.node.service.exec(wanted.uid, whole)).exit_code == 0
    await host.reclaim(wanted.uid)


async def test_the_example_runner_takes_only_what_was_signed_for_its_run(desk: Desk) -> None:
    """In its slots, with the key as a file of the class, whatever others have checked."""
    key, another = (ed25519.Ed25519PrivateKey.generate() for _ in range(2))
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    runner = RunnerContract(
        command=("/app/runtime", "--once", "warm", "--binding-key", "binding.pem"),
        files=(StagedFile(path="binding.pem", content=pem),),
    )
    await desk.serve(pool("bound", runner=runner))
    said = {}
    for name, signer, run, lasts in (
        ("its own", key, None, 300),
        ("of another key", another, None, 300),
        ("for another run", key, "somebody-elses", 300),
        ("expired", key, None, -1),
    ):
        uid = desk.uid()
        claims = {"exp": int(time.time()) + lasts, "run_id": run or uid}
        token = jwt.encode(claims, signer, algorithm="EdDSA")
        document, wanted = desk.asked({"echo": 1}, uid=uid, executor_jwt=token)
        await desk.ready()
        await desk.runs.begin(None, wanted.model_copy(update={"class_name": "bound"}), document)
        *_, last, end = await desk.lines(uid)
        assert last.event is not None
        assert end.ended is not None
        said[name] = (end.ended.reason, last.event.event["payload"])
    lost = reasons.NON_ZERO_EXIT
    assert said == {
        "its own": (reasons.SUCCEEDED, {"mode": "stream", "result": 1}),
        "of another key": (lost, {"message": "executor_jwt is not valid: InvalidSignatureError"}),
        "for another run": (lost, {"message": "executor_jwt is not for this run_id"}),
        "expired": (lost, {"message": "executor_jwt is not valid: ExpiredSignatureError"}),
    }


async def running(desk: Desk, uid: str) -> bool:
    return (await desk.node.service.get(uid)).step is Step.RUNNING


NO_LINE = {"no newline": ENVELOPE, "two lines": 2 * (ENVELOPE + b"\n"), "half of it": ENVELOPE[:12]}


@pytest.mark.parametrize("raw", NO_LINE.values(), ids=NO_LINE)
async def test_an_agent_sends_nothing_but_one_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    monkeypatch.setattr(dispatch_document, "envelope", lambda mode, document: raw)
    uid = await desk.begin({"say": 1}, budgets=Budgets(startup_seconds=1))
    (end,) = await desk.lines(uid)
    assert end.ended is not None
    assert end.ended.reason == reasons.HANDOVER_TIMEOUT


async def test_8_mib_arrive_whole(desk: Desk) -> None:
    uid = desk.uid()
    document, wanted = desk.asked(uid=uid, filler="a" * (MAX_DOCUMENT_BYTES - 200))
    kept = await desk.runs.reserve(ReserveRequest(class_name=wanted.class_name))
    await desk.runs.begin(kept, wanted, document)
    *_, result, end = await desk.lines(uid)
    assert end.ended is not None
    assert end.ended.succeeded
    assert result.event is not None
    sent = dispatch_document.envelope(wanted.mode, document)
    digest = names.digest(sent).removeprefix("sha256:")
    assert result.event.event["payload"] == {"bytes": len(sent), "digest": digest, "mode": "stream"}
    assert MAX_DOCUMENT_BYTES - 200 < len(sent) <= MAX_DOCUMENT_BYTES
    assert json.loads(sent)["payload"]["run_id"] == uid
