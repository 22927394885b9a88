from datetime import UTC, datetime

import pytest

from fakes.cluster import FakeCluster, merge
from isolet.api.execution import ExecutionStatus
from isolet.base import errors
from isolet.operator.cache import ObjectCache
from isolet.operator.kube import EXECUTIONS, Key
from isolet.operator.publish import difference, publish, status_patch

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ({}, {}),
        ({}, {"a": 1}),
        ({"a": 1}, {}),
        ({"a": 1}, {"a": 2, "b": 3}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}),
        ({"a": {"b": {"c": 1}}, "x": 0}, {"a": {"b": {"c": 2, "d": 3}}, "x": 0}),
        ({"a": [1, 2]}, {"a": [2]}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}),
        ({"a": {"b": 1}}, {"a": 5}),
        ({"a": 5}, {"a": {"b": 1}}),
        ({"a": 0}, {"a": False}),
    ],
)
def test_the_difference_applied_gives_what_is_wanted_and_is_empty_for_equals(stored, wanted):
    patch = difference(stored, wanted)
    assert merge(stored, patch) == wanted
    assert difference(wanted, wanted) == {}


def an_execution(status=None):
    metadata = {"namespace": "ns", "name": "a", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {}, **({"status": status} if status else {})}


def test_an_equal_status_is_not_written():
    status = ExecutionStatus(observed_generation=1, start_time=NOW)
    obj = an_execution({"observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z"})
    assert status_patch(obj, status) is None


def test_only_the_difference_is_written_at_the_version_that_was_read():
    status = ExecutionStatus(observed_generation=2, exit_code=0)
    obj = an_execution({"observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z"})
    assert status_patch(obj, status) == {
        "metadata": {"resourceVersion": "7"},
        "status": {"observedGeneration": 2, "exitCode": 0, "startTime": None},
    }


def test_fields_of_a_newer_version_are_left():
    assert status_patch(an_execution({"fromTheFuture": 1}), ExecutionStatus()) is None


@pytest.fixture
def world():
    cluster = FakeCluster()
    stored = cluster.seed(EXECUTIONS, an_execution())
    cache = ObjectCache((EXECUTIONS,))
    cache.put(EXECUTIONS, stored)
    return cluster, cache, stored


async def test_the_answer_goes_into_the_cache(world):
    cluster, cache, stored = world
    assert await publish(cluster, cache, EXECUTIONS, stored, ExecutionStatus(exit_code=3))
    cached = cache.get(Key("Execution", "ns", "a"))
    assert cached["status"] == {"exitCode": 3}
    assert not await publish(cluster, cache, EXECUTIONS, cached, ExecutionStatus(exit_code=3))
    assert len(cluster.writes) == 1


async def test_a_changed_object_is_a_conflict(world):
    cluster, cache, stored = world
    cluster.seed(EXECUTIONS, stored)
    with pytest.raises(errors.Conflict):
        await publish(cluster, cache, EXECUTIONS, stored, ExecutionStatus(exit_code=3))


async def test_a_namesake_made_meanwhile_is_not_written_to(world):
    cluster, cache, stored = world
    cluster.vanish(EXECUTIONS, "ns", "a")
    cluster.seed(EXECUTIONS, {**an_execution(), "metadata": {"namespace": "ns", "name": "a"}})
    with pytest.raises(errors.Conflict):
        await publish(cluster, cache, EXECUTIONS, stored, ExecutionStatus(exit_code=3))


async def test_an_object_that_is_gone_needs_no_status(world):
    cluster, cache, stored = world
    cluster.vanish(EXECUTIONS, "ns", "a")
    assert not await publish(cluster, cache, EXECUTIONS, stored, ExecutionStatus(exit_code=3))
