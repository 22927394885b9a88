import asyncio

import pytest

from isolet.base.clock import FixedClock
from isolet.operator.queue import Again, Backoff, Schedule, WorkQueue


def a_schedule(jitter=1.0, **kwargs):
    return Schedule(Backoff(jitter=lambda: jitter, **kwargs))


def test_keys_come_in_order_and_once():
    s = a_schedule()
    for key in "abab":
        s.add(key)
    assert [s.take(0), s.take(0), s.take(0)] == ["a", "b", None]


def test_a_key_in_work_is_not_given_to_a_second_worker_but_again_afterwards():
    s = a_schedule()
    s.add("a")
    assert s.take(0) == "a"
    s.add("a")
    s.add("a")
    assert (s.take(0), s.depth) == (None, 1)
    s.done("a")
    assert s.take(0) == "a"
    s.done("a")
    assert s.take(0) is None


@pytest.mark.parametrize(
    ("wishes", "want"),
    [((5, 9), 5), ((9, 5), 5), ((5, 5), 5)],
)
def test_of_several_delays_the_earliest_holds(wishes, want):
    s = a_schedule()
    for when in wishes:
        s.add_at("a", when)
    assert s.next_due() == want
    assert s.take(want - 0.1) is None
    assert s.take(want) == "a"
    s.done("a")
    assert s.take(100) is None, "a pass makes the later wish void"


def test_a_ring_before_its_time_makes_the_delay_void():
    s = a_schedule()
    s.add_at("a", 50)
    s.add("a")
    assert s.take(1) == "a"
    s.done("a")
    assert (s.next_due(), s.take(60)) == (None, None)


def test_a_delay_that_ends_during_the_pass_brings_another():
    s = a_schedule()
    s.add("a")
    s.take(0)
    s.add_at("a", 5)
    assert s.take(6) is None
    s.done("a")
    assert s.take(6) == "a"


def test_failures_back_off_up_to_the_cap_and_a_success_forgives():
    s = a_schedule(jitter=1.0, base=0.5, cap=60.0)
    now, delays = 0.0, []
    s.add("a")
    for _ in range(10):
        assert s.take(now) == "a"
        delays.append(s.failed("a", now))
        now += delays[-1]
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert s.failing == 1
    s.take(now)
    s.done("a")
    assert s.failing == 0
    s.add("a")
    s.take(now)
    assert s.failed("a", now) == 0.5


@pytest.mark.parametrize(("jitter", "want"), [(0.0, 30.0), (0.5, 45.0), (1.0, 60.0)])
def test_jitter_spreads_over_the_upper_half(jitter, want):
    assert Backoff(jitter=lambda: jitter).delay(10_000) == want


def test_passes_over_what_is_to_go_in_a_day_leave_nothing_behind():
    s = a_schedule()
    s.add_at("sooner", 50_000)
    for turn in range(5000):
        for key in "abc":
            s.add(key)
            assert s.take(turn) == key
            s.done(key)
            s.add_at(key, 86_400 + turn / 10_000)
    assert len(s._heap) < 200
    assert s.next_due() == 50_000
    assert [s.take(86_401) for _ in range(5)] == ["sooner", "a", "b", "c", None]


def test_a_failure_may_ask_for_a_longer_delay():
    s = a_schedule()
    s.add("a")
    s.take(0)
    assert s.failed("a", 0, at_least=7.0) == 7.0


def test_one_failing_key_does_not_hold_up_others():
    s = a_schedule()
    s.add("a")
    s.take(0)
    s.failed("a", 0)
    s.add("b")
    assert s.take(0) == "b"


def test_a_resync_stands_behind_everything_that_was_rung():
    s = a_schedule()
    for key in "abc":
        s.add_idle(key)
    s.add("z")
    s.add("b")
    s.add_idle("z")
    taken = [s.take(0) for _ in range(5)]
    assert taken == ["z", "b", "a", "c", None]
    assert s.depth == 0


def test_a_key_in_work_needs_no_resync():
    s = a_schedule()
    s.add("a")
    s.take(0)
    s.add_idle("a")
    s.done("a")
    assert s.take(0) is None


class Worker:
    """Does passes on command."""

    def __init__(self, clock):
        self.queue = WorkQueue(clock, Backoff(jitter=lambda: 1.0))
        self.passes = []
        self.answers = {}
        self.most = 0
        self.now = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def work(self, key):
        assert key not in self.now
        self.now.add(key)
        self.most = max(self.most, len(self.now))
        self.passes.append(key)
        await self.gate.wait()
        self.now.discard(key)
        answer = self.answers.get(key, Again())
        if isinstance(answer, Exception):
            raise answer
        return answer


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def worker():
    worker = Worker(FixedClock())
    task = asyncio.create_task(worker.queue.run(3, worker.work))
    await settle()
    yield worker
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_workers_share_the_keys_and_one_key_is_never_in_two_passes(worker):
    worker.gate.clear()
    for key in "abcde":
        worker.queue.add(key)
    await settle()
    for key in "abcde":
        worker.queue.add(key)
    await settle()
    assert (worker.passes, worker.most) == (list("abc"), 3)
    worker.gate.set()
    await settle()
    # d and e were only rung before their pass began; a, b and c also during it.
    assert sorted(worker.passes) == sorted("abcde" + "abc")


async def test_a_bug_in_a_pass_backs_off_and_the_workers_live_on(worker):
    worker.answers["a"] = RuntimeError("bug")
    worker.queue.add("a")
    await settle()
    worker.queue.add("b")
    await settle()
    assert worker.passes == ["a", "b"]
    assert worker.queue.schedule.failing == 1


async def test_a_pass_asks_for_another_look(worker):
    worker.answers["a"] = Again(after=30)
    worker.queue.add("a")
    await settle()
    assert worker.queue.schedule.next_due() == pytest.approx(1030.0)


async def test_a_closed_queue_begins_no_pass(worker):
    worker.gate.clear()
    worker.queue.add("a")
    await settle()
    worker.queue.close()
    worker.queue.add("b")
    assert worker.queue.busy == 1
    worker.gate.set()
    await settle()
    assert (worker.passes, worker.queue.busy) == (["a"], 0)
