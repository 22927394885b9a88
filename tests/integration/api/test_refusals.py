"""A real API server refuses every wrong object and says which field breaks which rule."""

import pytest

from tests.integration.kube import Kube
from tests.unit.api import refusals
from tests.unit.api.objects import a_process, an_execution

CASES = refusals.CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_object(installed: Kube, namespace: str, case: refusals.Case) -> None:
    answer = installed.create(case.object, namespace, dry=True)
    assert answer.code == 422, answer
    assert any(field == case.field and case.words in text for field, text in answer.causes), (
        answer.causes
    )


@pytest.mark.parametrize("name", refusals.HARMLESS)
def test_harmless_name(installed: Kube, namespace: str, name: str) -> None:
    env = [{"name": name, "value": "x"}]
    installed.create(an_execution(env=env), namespace, dry=True).must()


@pytest.mark.parametrize("name", refusals.CREDENTIALS)
def test_credential_name(installed: Kube, namespace: str, name: str) -> None:
    env = [{"name": name, "value": "canary-4711"}]
    for obj in (an_execution(env=env), a_process(env=env)):
        answer = installed.create(obj, namespace, dry=True)
        assert answer.code == 422
        assert f"the name {name} looks like a credential" in answer.message
        assert "canary" not in answer.message
    from_secret = [{"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    installed.create(an_execution(env=from_secret), namespace, dry=True).must()


@pytest.mark.parametrize(
    ("name", "where"), [("activeDeadlineSecond", "spec"), ("cpus", "spec.resources")]
)
def test_unknown_field(installed: Kube, namespace: str, name: str, where: str) -> None:
    """kubectl asks for strict decoding: a typo is an error, not a silent loss."""
    obj = an_execution(resources={})
    place = obj["spec"] if where == "spec" else obj["spec"]["resources"]
    place[name] = 1
    answer = installed.create(obj, namespace, dry=True)
    assert answer.code == 400
    assert f'unknown field "{where}.{name}"' in answer.message
