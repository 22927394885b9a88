import pytest

from isolet.base import errors
from isolet.operator import cluster
from isolet.operator.cluster import Access
from isolet.operator.kube import CRDS, EVENTS, EXECUTIONS, LEASES


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (
            (EXECUTIONS, "ns", "a", "status"),
            "/apis/isolet.dev/v1alpha1/namespaces/ns/executions/a/status",
        ),
        ((EXECUTIONS, "", ""), "/apis/isolet.dev/v1alpha1/executions"),
        ((EVENTS, "ns"), "/api/v1/namespaces/ns/events"),
        ((LEASES, "n", "l"), "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"),
        (
            (CRDS, "", "x.y"),
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x.y",
        ),
        ((EVENTS, "ns", "a/b?c"), "/api/v1/namespaces/ns/events/a%2Fb%3Fc"),
    ],
)
def test_paths(arguments, want):
    assert cluster._path(*arguments) == want


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Conflict),
        (400, errors.Invalid),
        (422, errors.Invalid),
        (401, errors.Refused),
        (403, errors.Refused),
        (429, errors.Unavailable),
        (500, errors.Unavailable),
        (503, errors.Unavailable),
        (504, errors.Unconfirmed),
        (302, errors.Unavailable),
    ],
)
def test_errors_are_told_apart_by_code(status, kind):
    with pytest.raises(kind) as caught:
        cluster._answer(status, {"Retry-After": "7"}, b'{"message": "m", "reason": "R"}')
    assert type(caught.value) is kind
    assert caught.value.message == "m"
    if kind is errors.Unavailable:
        assert caught.value.retry_after == 7.0


def test_an_answer_that_is_no_json():
    with pytest.raises(errors.Unavailable, match="<html>"):
        cluster._answer(502, {}, b"<html>bad gateway")


async def test_no_access_is_an_error_that_a_person_can_read(tmp_path):
    absent, odd = tmp_path / "absent", tmp_path / "odd"
    odd.write_text("kind: Config")
    for access, why in (
        (Access(kubeconfig=absent), f"there is no kubeconfig {absent}"),
        (Access(kubeconfig=odd), f"kubeconfig {odd}: "),
        (Access(), "give --kubeconfig"),
    ):
        with pytest.raises(errors.Invalid, match="no access to the API server: ") as caught:
            await access.configuration()
        assert why in caught.value.message


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({}, None),
        ({"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "api.example"}, None),
    ],
)
def test_the_proxy_of_the_environment(monkeypatch, environment, want):
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cluster._environment_proxy("https://api.example:6443") == want
