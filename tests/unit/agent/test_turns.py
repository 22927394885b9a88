"""Turns in a session: commands together, a Checkpoint alone, first come first served."""

import asyncio

import pytest

from isolet.agent.service.turns import Turns
from isolet.base import errors
from isolet.plan import reasons


async def test_commands_run_together_and_a_checkpoint_waits_for_all_of_them() -> None:
    woken: list[str] = []
    turns = Turns(woken.append)
    with turns.begun("s"):
        with turns.begun("s"):
            assert not turns.claim("s", "c")
        assert woken == []
        assert not turns.claim("s", "c")
    assert woken == ["c"]
    assert turns.claim("s", "c")


async def test_what_comes_after_a_checkpoint_waits_for_it() -> None:
    turns = Turns(lambda _: None)
    assert turns.claim("s", "c")
    began = asyncio.Event()

    async def command() -> None:
        async with turns.command("s"):
            began.set()

    waiting = asyncio.create_task(command())
    await asyncio.sleep(0)
    async with turns.command("another"):
        assert not began.is_set()
    await turns.release("s", "c")
    await waiting
    assert began.is_set()


async def test_a_command_waits_no_longer_than_its_own_time_and_never_begins_then() -> None:
    turns = Turns(lambda _: None)
    turns.claim("s", "c")
    with pytest.raises(errors.Conflict) as caught:
        async with turns.command("s", 0.01):
            raise AssertionError
    assert caught.value.reason == reasons.CHECKPOINTING
    with pytest.raises(errors.Conflict), turns.begun("s"):
        raise AssertionError
    assert turns.claim("s", "c")


async def test_checkpoints_of_one_session_go_one_after_the_other() -> None:
    woken: list[str] = []
    turns = Turns(woken.append)
    assert turns.claim("s", "one")
    assert not turns.claim("s", "two")
    await turns.release("s", "never")
    await turns.release("s", "one")
    assert woken == ["two"]
    assert turns.claim("s", "two")
    await turns.release("s", "two")
    assert not turns.is_claimed("s")


async def test_a_command_that_is_aborted_while_it_waits_leaves_no_trace() -> None:
    turns = Turns(lambda _: None)
    turns.claim("s", "c")

    async def command() -> None:
        async with turns.command("s"):
            raise AssertionError

    waiting = asyncio.create_task(command())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await turns.release("s", "c")
    assert turns.claim("s", "d")
