"""The class that a front door serves, as it was read last."""

from dataclasses import dataclass, field
from pathlib import Path

from isolet.api.executionclass import ExecutionClass
from isolet.apiserver.binding import BindingKey
from isolet.base import errors
from isolet.operator.kube import Object
from isolet.wire.dispatch import Budgets


@dataclass(slots=True)
class Served:
    """How long its runs may take, where they work, and with which key they are checked."""

    name: str
    own_key: BindingKey | None = None
    """Over that of the class."""
    budgets: Budgets = field(default_factory=Budgets)
    medium: str = "Memory"
    closed: str = "the class was not read yet"
    """Why nothing can be served; empty: it can."""
    _key: tuple[str, BindingKey] | None = None

    @property
    def key(self) -> BindingKey | None:
        """The key that documents must be bound with."""
        return self.own_key or (self._key[1] if self._key else None)

    def take_in(self, found: Object) -> None:
        """What was read just now.

        Raises:
            Invalid: its key is none. Nothing is served then, for nothing could be checked.
            pydantic.ValidationError: it is none of this version's.
        """
        self.closed = f"ExecutionClass {self.name} cannot be read"
        spec = ExecutionClass.model_validate(found).spec
        runner, pool = spec.runner, spec.warm_pool
        self.medium = (pool.medium if pool else spec.workspace.media[0]).value
        if runner is None:
            self.closed = f"ExecutionClass {self.name} has no spec.runner"
            return
        self.budgets = Budgets.model_validate(runner.budgets.model_dump())
        pem = runner.binding_key
        if pem is None:
            self._key = None
        elif self._key is None or self._key[0] != pem:
            self._key = (pem, BindingKey(pem.encode()))
        poolless = f"ExecutionClass {self.name} has no spec.warmPool for its runner"
        self.closed = poolless if pool is None else ""

    def gone(self) -> None:
        """There is none."""
        self.closed = f"there is no ExecutionClass {self.name}"


def key_in(path: Path) -> BindingKey:
    """The key in a file.

    Raises:
        Invalid: the file cannot be read, or holds none.
    """
    try:
        return BindingKey(path.read_bytes())
    except OSError as error:
        raise errors.Invalid(f"{path}: {error.strerror}", reason="InvalidConfig") from None
    except errors.Invalid as error:
        raise errors.Invalid(f"{path}: {error.message}", reason="InvalidConfig") from None
