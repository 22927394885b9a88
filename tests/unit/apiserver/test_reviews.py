"""Callers with a token of Kubernetes: it says who they are and whether they may."""

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from isolet.apiserver.auth import Door, KubernetesReviewer, TokenFile, Unauthenticated
from isolet.base import errors


class FakeReviews:
    """The part of an API server that reviews."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.users = {"good": {"username": "jane", "groups": ["dev"]}}
        self.may = {("jane", "create")}

    async def create(self, kind, namespace, body):
        self.asked.append(body)
        if kind.kind == "TokenReview":
            user = self.users.get(body["spec"]["token"])
            return {"status": {"authenticated": user is not None, "user": user or {}}}
        spec = body["spec"]
        allowed = (spec["user"], spec["resourceAttributes"]["verb"]) in self.may
        return {"status": {"allowed": allowed}}


@pytest.fixture
def reviews() -> FakeReviews:
    return FakeReviews()


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def door(reviews: FakeReviews, now=lambda: 0.0) -> Door:
    return Door(None, KubernetesReviewer(reviews, "runs", now))


async def test_who_kubernetes_knows_and_allows_gets_in(reviews: FakeReviews) -> None:
    await door(reviews).demand(headers(("Authorization", "Bearer good")), "create")
    attributes = reviews.asked[1]["spec"]["resourceAttributes"]
    assert attributes == {
        "namespace": "runs",
        "verb": "create",
        "group": "isolet.dev",
        "resource": "executions",
        "subresource": "dispatch",
    }
    assert reviews.asked[1]["spec"]["groups"] == ["dev"]


async def test_others_do_not(reviews: FakeReviews) -> None:
    with pytest.raises(Unauthenticated):
        await door(reviews).demand(headers(("Authorization", "Bearer bad")), "create")
    with pytest.raises(errors.Refused) as found:
        await door(reviews).demand(headers(("Authorization", "Bearer good")), "delete")
    assert not isinstance(found.value, Unauthenticated)
    for value in ("Basic good", "Bearer", "Bearer ", "good", "Bearer " + "a" * 20_000):
        with pytest.raises(Unauthenticated):
            await door(reviews).demand(headers(("Authorization", value)), "create")
    two = headers(("Authorization", "Bearer good"), ("Authorization", "Bearer good"))
    with pytest.raises(Unauthenticated):
        await door(reviews).demand(two, "create")


async def test_an_answer_is_kept_for_half_a_minute_and_no_longer(reviews: FakeReviews) -> None:
    time = [0.0]
    found = door(reviews, lambda: time[0])
    for at in (0.0, 29.0):
        time[0] = at
        await found.demand(headers(("Authorization", "Bearer good")), "create")
    assert len(reviews.asked) == 2
    reviews.may.clear()
    time[0] = 31.0
    with pytest.raises(errors.Refused):
        await found.demand(headers(("Authorization", "Bearer good")), "create")


@pytest.mark.parametrize("error", [errors.Refused("a secret"), errors.Invalid("a secret")])
async def test_that_we_may_not_ask_is_nothing_about_the_caller(
    reviews: FakeReviews, error: errors.IsoletError
) -> None:
    async def create(*_):
        raise error

    reviews.create = create
    with pytest.raises(errors.Unavailable):
        await door(reviews).demand(headers(("Authorization", "Bearer good")), "create")


async def test_a_token_file_has_at_least_32_characters(tmp_path) -> None:
    path = tmp_path / "token"
    for content in ("", "a" * 31, " " * 40 + "a" * 31):
        path.write_text(content)
        with pytest.raises(errors.Invalid):
            TokenFile(path)
    with pytest.raises(errors.Invalid):
        TokenFile(tmp_path / "missing")
    path.write_text("a" * 32)
    assert TokenFile(path).matches("a" * 32)
    assert not TokenFile(path).matches("a" * 33)
