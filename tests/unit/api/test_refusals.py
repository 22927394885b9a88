"""The Python types refuse what they claim to refuse, and say which field is wrong."""

import pydantic
import pytest

from isolet.api import crd
from isolet.base import envnames
from tests.unit.api import refusals
from tests.unit.api.objects import an_execution

MODELS = {kind.name: kind.model for kind in crd.KINDS}


@pytest.mark.parametrize("case", refusals.CASES, ids=lambda case: case.name)
def test_wrong_object(case: refusals.Case) -> None:
    model = MODELS[case.object["kind"]]
    if not case.python:
        model.model_validate(case.object)
        return
    with pytest.raises(pydantic.ValidationError) as caught:
        model.model_validate(case.object)
    where = {_place(error["loc"]) for error in caught.value.errors()}
    assert any(case.field == place or place.startswith(case.field) for place in where) or any(
        case.field.startswith(place) for place in where
    ), where


def _place(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)[1:]


@pytest.mark.parametrize("name", refusals.HARMLESS)
def test_harmless_name(name: str) -> None:
    assert envnames.is_name(name)
    assert not envnames.looks_like_credential(name)


@pytest.mark.parametrize("name", refusals.CREDENTIALS)
def test_credential_name(name: str) -> None:
    assert envnames.looks_like_credential(name)
    with pytest.raises(pydantic.ValidationError, match=f"the name {name} looks like a credential"):
        MODELS["Execution"].model_validate(an_execution(env=[{"name": name, "value": "canary"}]))


@pytest.mark.parametrize("name", ["API-KEY", "api.key", "Client Secret"])
def test_credential_name_of_an_image(name: str) -> None:
    """An image's own environment may hold names that no one could ask for."""
    assert not envnames.is_name(name)
    assert envnames.looks_like_credential(name)
