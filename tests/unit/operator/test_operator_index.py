from datetime import UTC, datetime

import pytest

from isolet.operator.index import Index
from isolet.operator.kube import Key
from isolet.plan.binding import ANNOTATION, Binding

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def a_binding(uid="u"):
    return Binding(uid=uid, epoch="e", bound_at=WHEN)


def an_object(name="a", uid="u", node=None, finished=False, deleting=False, bound=True):
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if node and bound:
        metadata["annotations"] = {ANNOTATION: a_binding(uid).annotation()}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"conditions": [{"type": "Finished", "status": "True"}]} if finished else {}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


KEY = Key("Execution", "ns", "a")


@pytest.fixture
def index():
    return Index()


@pytest.mark.parametrize(
    ("obj", "waits", "holds"),
    [
        (an_object(), True, []),
        (an_object(finished=True), False, []),
        (an_object(deleting=True), False, []),
        (an_object(node="n"), False, ["u"]),
        (an_object(node="n", deleting=True), False, ["u"]),
        (an_object(node="n", finished=True), False, []),
        (an_object(node="n", bound=False), False, []),
    ],
)
def test_where_an_object_is(index, obj, waits, holds):
    index.put(KEY, obj)
    assert (KEY in index.waiting, list(index.unfinished("n"))) == (waits, holds)
    index.put(KEY, None)
    assert (index.waiting, index.unfinished("n"), list(index.on("n"))) == ({}, {}, [])


def test_from_waiting_to_bound_to_finished(index):
    index.put(KEY, an_object())
    index.put(KEY, an_object(node="n"))
    assert (index.waiting, index.remaining("n"), dict(index.in_use())) == ({}, 1, {"ns": 1})
    index.put(KEY, an_object(node="n", finished=True))
    assert (list(index.on("n")), index.remaining("n"), dict(index.in_use())) == ([KEY], 0, {})


def test_what_is_about_to_be_bound_counts_at_once_and_once(index):
    index.put(KEY, an_object())
    index.assume("u", "n", a_binding())
    assert list(index.unfinished("n")) == ["u"]
    index.put(KEY, an_object(node="n"))
    index.unassume("u")
    assert list(index.unfinished("n")) == ["u"]


def test_a_binding_that_failed_gives_its_room_back(index):
    index.assume("u", "n", a_binding())
    index.unassume("u")
    assert index.unfinished("n") == {}


def test_a_namesake_takes_the_place_of_the_old_one(index):
    index.put(KEY, an_object(uid="old", node="n"))
    index.put(KEY, an_object(uid="new"))
    assert (list(index.on("n")), index.waiting[KEY].uid) == ([], "new")
