import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from isolet.base import errors
from isolet.operator import cluster
from isolet.operator.cluster import Access, KubeCluster
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
        (504, errors.Unavailable),
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


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (409, errors.Conflict),
        (429, errors.Unavailable),
        (500, errors.Unconfirmed),
        (502, errors.Unconfirmed),
        (503, errors.Unavailable),
        (504, errors.Unconfirmed),
    ],
)
def test_a_write_of_which_the_answer_says_nothing_may_have_been_made(status, kind):
    with pytest.raises(kind) as caught:
        cluster._answer(status, {}, b'{"message": "m", "reason": "R"}', write=True)
    assert (type(caught.value), caught.value.reason) == (kind, "R")


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
async def test_what_an_api_server_says_whose_etcd_dies(write):
    async def answer(_request):
        text = "rpc error: code = Unavailable desc = error reading from server: EOF"
        return web.json_response({"message": text}, status=500)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        api = await connected(str(server.make_url("")).rstrip("/"))
        body = {"metadata": {"name": "a"}}
        call = api.create(EXECUTIONS, "ns", body) if write else api.get(EXECUTIONS, "ns", "a")
        with pytest.raises(errors.Unavailable) as caught:
            await call
        await api.close()
    assert isinstance(caught.value, errors.Unconfirmed) is write


async def test_a_token_that_cannot_be_read_just_now_is_a_passing_trouble():
    def torn(_configuration):
        raise ConfigException("Token file exists but empty.")

    api = await connected("http://127.0.0.1:1", hook=torn)
    with pytest.raises(errors.Unavailable, match="exists but empty") as caught:
        await api.create(EXECUTIONS, "ns", {"metadata": {"name": "a"}})
    await api.close()
    assert type(caught.value) is errors.Unavailable, "nothing was sent"


async def connected(host, hook=None):
    settings = Configuration(host=host, api_key={"BearerToken": "bearer t"})
    settings.refresh_api_key_hook = hook
    return KubeCluster(settings, "test", 10.0)


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
