import asyncio
import threading

from isolet.operator.handlers import Backoffs, Event, Inbox, NoDiff, settings
from isolet.operator.kube import EXECUTIONS


async def test_events_of_another_thread_arrive_in_order_and_the_loop_stays_alive():
    taken, turns = [], 0
    inbox = Inbox(asyncio.get_running_loop(), lambda event: taken.append(event.obj["n"]))

    def produce():
        for n in range(5000):
            inbox.put(Event(EXECUTIONS, False, {"n": n}))

    thread = threading.Thread(target=produce)
    thread.start()
    while len(taken) < 5000:
        turns += 1
        await asyncio.sleep(0)
    thread.join()
    assert taken == list(range(5000))
    assert turns >= 10


async def test_an_event_that_cannot_be_taken_in_stands_in_front_of_no_other():
    taken, told = [], []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))

    def take(event):
        if event.obj["n"] == 1:
            raise ValueError("no such thing")
        taken.append(event.obj["n"])

    inbox = Inbox(loop, take)
    for n in range(1000):
        inbox.put(Event(EXECUTIONS, False, {"n": n}))
    for _ in range(20):
        await asyncio.sleep(0)
    inbox.put(Event(EXECUTIONS, False, {"n": 1000}))
    for _ in range(3):
        await asyncio.sleep(0)
    assert taken == [0, *range(2, 1001)]
    assert [type(error) for error in told] == [ValueError]


def test_kopf_is_set_up_to_write_nothing_and_to_give_up_never():
    chosen = settings()
    assert chosen.posting.enabled is False
    assert isinstance(chosen.watching.server_timeout, int)
    assert chosen.process.ultimate_exiting_timeout is None
    assert chosen.queueing.worker_limit is None
    delays = iter(Backoffs())
    assert all(0 < next(delays) <= 30 for _ in range(1000))
    assert NoDiff().build(body={}) == {}
    assert NoDiff().fetch(body={}) is None
