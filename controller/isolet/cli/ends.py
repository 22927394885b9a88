"""How a command ends that cannot do its work: one line that says what, where and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from isolet.base import errors

WRONG_CONFIGURATION = 2
FAILED = 1


class _Failed(click.ClickException):
    """One line on stderr, exit code 1."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class _WrongConfiguration(_Failed):
    """One line on stderr, exit code 2."""

    exit_code = WRONG_CONFIGURATION


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn what is raised on purpose, and what the system refuses, into an end."""
    try:
        yield
    except errors.Invalid as error:
        raise _WrongConfiguration(error.message) from error
    except errors.IsoletError as error:
        raise _Failed(error.message) from error
    except OSError as error:
        raise _Failed(_described(error)) from error


def _described(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what
