import signal

import pytest

from isolet.base.steps import Trap


class Sent(list):
    def __call__(self, number):
        self.append(number)


def a_trap(at, action="kill", file=None):
    return Trap(at, action, file, send=Sent())


def test_nothing_is_asked_for_by_default():
    assert Trap.from_environment({}) is None


def test_an_unknown_action_is_an_error():
    with pytest.raises(ValueError, match="kill, stop, note"):
        Trap.from_environment({"ISOLET_STOP_AT": "a", "ISOLET_STOP_ACTION": "maim"})


@pytest.mark.parametrize(
    ("action", "want"), [("kill", [signal.SIGKILL]), ("stop", [signal.SIGSTOP]), ("note", [])]
)
def test_the_step_acts_once_and_others_do_not(tmp_path, action, want):
    trap = a_trap("op.bind.before", action, tmp_path / "noted")
    for step in ("op.other", "op.bind.before", "op.bind.before"):
        trap.reach(step)
    assert trap.send == want
    noted = (tmp_path / "noted").read_text()
    assert noted == "op.bind.before\n" * (2 if action == "note" else 1)


def test_the_nth_time():
    trap = a_trap("a#3")
    trap.reach("a")
    trap.reach("a")
    assert trap.send == []
    trap.reach("a")
    assert trap.send == [signal.SIGKILL]


def test_any_step():
    trap = a_trap("*", "stop")
    trap.reach("whatever")
    assert trap.send == [signal.SIGSTOP]


def test_a_file_arms_it_later_and_is_spent(tmp_path):
    armed = tmp_path / "armed"
    trap = a_trap(f"@{armed}")
    trap.reach("a")
    armed.write_text("a\n")
    trap.reach("a")
    assert trap.send == [signal.SIGKILL]
    assert not armed.exists()
