from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from gateway.services import Services
from tenants.limits import Limits
from tenants.usage import Ledger
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, chat, exchange, get, post
from tests.gateway.serving import Gateway, chat_body, encode, until

pytestmark = pytest.mark.asyncio

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


async def use_up(gateway: Gateway) -> Answer:
    """The refusal after which the worker knows of it."""
    tenant_id = gateway.tenant.id
    await gateway.store.put_limits(tenant_id, "tenant", tenant_id, Limits(requests_per_minute=1))
    gateway.authenticator.forget()
    assert (await chat(gateway, chat_body())).status == 200
    return await chat(gateway, chat_body())


async def test_it_answers_as_admission_does(gateway: Gateway) -> None:
    first = await use_up(gateway)
    again = await chat(gateway, chat_body())
    assert (first.status, again.status) == (429, 429)
    changing = (
        "date",
        "x-request-id",
        "x-sluice-request-id",
        "retry-after-ms",
        "x-ratelimit-reset-requests",
    )
    assert first.headers.keys() == again.headers.keys()
    for name, value in first.headers.items():
        if name not in changing and not name.startswith("content-length"):
            assert again.headers[name] == value, name
    before, after = first.json()["error"], again.json()["error"]
    assert (before["type"], before["code"]) == (after["type"], after["code"])
    assert int(again.headers["retry-after-ms"]) <= int(first.headers["retry-after-ms"])


async def test_nothing_of_the_body_is_looked_at(gateway: Gateway) -> None:
    await use_up(gateway)
    for path in PATHS:
        answer = await exchange(gateway, post(gateway, b"{not json", path=path))
        assert answer.status == 429, path


async def test_a_month_that_is_used_up_is_known_as_well(gateway: Gateway) -> None:
    tenant_id = gateway.tenant.id
    await gateway.store.put_limits(tenant_id, "tenant", tenant_id, Limits(monthly_tokens=0))
    gateway.authenticator.forget()
    first = await chat(gateway, chat_body())
    again = await exchange(gateway, post(gateway, b"{not json"))
    assert (first.status, again.status) == (429, 429)
    assert again.body == first.body
    assert again.error["code"] == "insufficient_quota"
    await gateway.store.put_limits(tenant_id, "tenant", tenant_id, Limits(monthly_tokens=1_000))
    gateway.authenticator.forget()
    assert (await chat(gateway, chat_body())).status == 200


async def test_the_refusals_are_counted_under_their_route(gateway: Gateway) -> None:
    await use_up(gateway)
    services: Services = gateway.app.state.services

    def num_refused() -> list[bytes]:
        lines = services.metrics.render().splitlines()
        return [line for line in lines if b'"429"' in line and b"/v1/completions" in line]

    assert not num_refused()
    await exchange(gateway, post(gateway, encode({}), path="/v1/completions"))
    await until(num_refused)


async def test_other_routes_and_the_keys_of_others_pass(gateway: Gateway) -> None:
    await use_up(gateway)
    own = f"Bearer {gateway.api_key}"
    assert (await get(gateway, "/v1/models", authorization=own)).status == 200
    body = encode({"model": "tiny", "prompt": "hi"})
    assert (await exchange(gateway, post(gateway, body, path="/v1/tokenize"))).status == 200
    assert (await exchange(gateway, post(gateway, b"{}", key="sk-slc-x"))).status == 401


async def test_keys_that_nobody_has_claim_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use_up(gateway)
    claims: list[object] = []
    monkeypatch.setattr(gateway.store.shared, "claim", claims.append)
    for path in PATHS:
        request = post(gateway, b"{not json", path=path, idempotency_key=str(uuid4()))
        answer = await exchange(gateway, request)
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded"), path
    assert not claims


async def test_a_server_that_shuts_down_says_so_before_all_else(gateway: Gateway) -> None:
    key, body = str(uuid4()), encode(chat_body())
    first = await exchange(gateway, post(gateway, body, idempotency_key=key))
    await use_up(gateway)
    services: Services = gateway.app.state.services
    services.admission.drain()
    for again in ({}, {"idempotency_key": str(uuid4())}):
        answer = await exchange(gateway, post(gateway, b"{not json", **again))
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"] == "1"
    replayed = await exchange(gateway, post(gateway, body, idempotency_key=key))
    assert (replayed.status, replayed.body) == (200, first.body)


async def test_a_ledger_that_is_full_comes_before_a_limit(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use_up(gateway)
    monkeypatch.setattr(Ledger, "has_room", False)
    answer = await chat(gateway, chat_body())
    assert (answer.status, answer.error["code"]) == (503, "overloaded")


async def test_an_answer_that_is_there_is_given_again(gateway: Gateway) -> None:
    key, body = str(uuid4()), encode(chat_body())
    first = await exchange(gateway, post(gateway, body, idempotency_key=key))
    await use_up(gateway)
    again = await exchange(gateway, post(gateway, body, idempotency_key=key))
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotent-replayed"] == "true"
    other = await exchange(gateway, post(gateway, body, idempotency_key=str(uuid4())))
    assert other.status == 429


async def limit(gateway: Gateway, **limits: int) -> None:
    tenant_id = gateway.tenant.id
    await gateway.store.put_limits(tenant_id, "tenant", tenant_id, Limits(**limits))
    gateway.authenticator.forget()


BAD = {
    "unknown": {"x" * 10_000: 1},
    "model": {"model": "nobody's"},
    "range": {"temperature": 9},
    "too long": {"messages": [{"role": "user", "content": "x" * 100_000}]},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
async def test_a_refused_request_counts(gateway: Gateway, fields: dict[str, Any]) -> None:
    await limit(gateway, requests_per_minute=3)
    for _ in range(3):
        assert (await chat(gateway, chat_body(**fields))).status in (400, 404)
    for path in (*PATHS, "/v1/tokenize", "/v1/responses/input_tokens"):
        answer = await exchange(gateway, post(gateway, b"{not json", path=path))
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded"), path
        assert 19 <= int(answer.headers["retry-after"]) <= 20
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
    own = f"Bearer {gateway.api_key}"
    assert (await get(gateway, "/v1/models", authorization=own)).status == 200


async def test_refused_requests_at_the_same_time_count_before_they_are_read(
    gateway: Gateway,
) -> None:
    await limit(gateway, requests_per_minute=2)
    many = await asyncio.gather(*(exchange(gateway, post(gateway, b"{")) for _ in range(20)))
    assert Counter(answer.status for answer in many) == {400: 2, 429: 18}


async def test_no_request_counts_twice(gateway: Gateway) -> None:
    await limit(gateway, requests_per_minute=4)
    assert (await chat(gateway, chat_body(n=99))).status == 400
    for left in ("3", "2", "1"):  # the store's: the refused one leaves no less
        answer = await chat(gateway, chat_body())
        assert (answer.status, answer.headers["x-ratelimit-remaining-requests"]) == (200, left)
    assert (await chat(gateway, chat_body())).headers["x-ratelimit-remaining-requests"] == "0"
    assert (await chat(gateway, chat_body())).status == 429
    # Refused by the rate, it is no attempt.
    assert (await chat(gateway, chat_body())).status == 429
    attempts = gateway.app.state.services.quota.attempts
    principal = await gateway.authenticator.authenticate(gateway.api_key)
    assert attempts.window(principal).remaining == 3


async def test_what_succeeds_without_the_store_does_not_count(gateway: Gateway) -> None:
    await limit(gateway, requests_per_minute=1)
    body = encode({"model": "tiny", "prompt": "hi"})
    for _ in range(3):
        assert (await exchange(gateway, post(gateway, body, path="/v1/tokenize"))).status == 200
    key = str(uuid4())
    for _ in range(3):
        answer = await exchange(gateway, post(gateway, encode(chat_body()), idempotency_key=key))
        assert answer.status == 200


async def test_refused_requests_with_idempotency_keys_count(gateway: Gateway) -> None:
    await limit(gateway, requests_per_minute=2)
    statuses = [
        (await exchange(gateway, post(gateway, b"{", idempotency_key=str(uuid4())))).status
        for _ in range(5)
    ]
    assert statuses == [400, 400, 429, 429, 429]


async def test_a_long_answer_is_counted_by_the_store_alone(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 40, interval_s=0.05)
    await limit(gateway, requests_per_minute=2)
    running = asyncio.create_task(chat(gateway, chat_body()))
    await until(lambda: double.requests)
    assert (await chat(gateway, chat_body(n=99))).status == 400
    assert (await chat(gateway, chat_body(n=99))).status == 400
    assert (await running).status == 200


async def test_a_limit_that_is_no_rate_says_when_another_attempt_may_come(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 40, interval_s=0.05)
    await limit(gateway, requests_per_minute=3, max_concurrent=1)
    running = asyncio.create_task(chat(gateway, chat_body()))
    await until(lambda: double.requests)
    waits = [int((await chat(gateway, chat_body())).headers["retry-after"]) for _ in range(3)]
    assert waits[:2] == [1, 1]
    assert waits[2] > 10
    assert (await running).status == 200


async def test_a_fault_of_ours_does_not_count(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(gateway, requests_per_minute=1)
    with monkeypatch.context() as patch:
        patch.setattr("gateway.admission.field_checks.num_choices", None)
        for _ in range(3):
            assert (await chat(gateway, chat_body())).status == 500
    assert (await chat(gateway, chat_body())).status == 200
