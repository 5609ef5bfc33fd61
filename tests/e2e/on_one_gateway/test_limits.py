"""The ``openai`` package under limits: the real engine, a real PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from openai import APIError, RateLimitError

from tenants.limits import Limits
from tests.e2e.on_one_gateway.conftest import with_its_own_tenant
from tests.gateway.serving import MODEL, Gateway, until

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.pg]

HELLO: Any = [{"role": "user", "content": "Hello! What can you do?"}]


@pytest_asyncio.fixture(loop_scope="package")
async def gateway(shared: Gateway) -> Gateway:
    """With a tenant and a key of the test's own."""
    return await with_its_own_tenant(shared)


async def limit(gateway: Gateway, **limits: Any) -> None:
    tenant_id = gateway.tenant.id
    await gateway.store.put_limits(tenant_id, "tenant", tenant_id, Limits(**limits))

    async def is_known() -> bool:
        principal = await gateway.authenticator.authenticate(gateway.api_key)
        return bool(principal.policies)

    await until(is_known)


async def test_limits_as_the_openai_package_meets_them(gateway: Gateway) -> None:
    # 60 a minute is a burst of 60 and one more each second: the burst is used up at once.
    await limit(gateway, requests_per_minute=60)
    async with gateway.openai() as client:
        outcomes = await asyncio.gather(
            *(
                client.chat.completions.with_raw_response.create(
                    model=MODEL, messages=HELLO, max_tokens=1
                )
                for _ in range(75)
            ),
            return_exceptions=True,
        )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, RateLimitError)]
    answers = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert len(refusals) + len(answers) == 75
    assert len(answers) >= 60
    assert refusals
    for headers in (
        *(answer.headers for answer in answers),
        *(refusal.response.headers for refusal in refusals),
    ):
        assert headers["x-ratelimit-limit-requests"] == "60"
    assert all(0 < int(each.response.headers["retry-after-ms"]) <= 1000 for each in refusals)
    async with gateway.openai(max_retries=2) as patient:
        again = await patient.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
        assert again.usage is not None
    await limit(gateway, monthly_tokens=1)

    async def is_spent() -> bool:
        async with gateway.openai() as client:
            try:
                await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
            except RateLimitError as error:
                return error.code == "insufficient_quota"
            return False

    await until(is_spent)


async def test_nothing_is_generated_that_is_not_reserved(gateway: Gateway, dsn: str) -> None:
    """Several answers at once run into the end of a budget; what the engine has generated is held
    against what the database has reserved, all the while.
    """
    budget, most = 1500, 0
    await limit(gateway, monthly_tokens=budget)
    engine = gateway.app.state.services.engine
    before = (await engine.fetch_stats()).generation_tokens
    aside = await asyncpg.connect(dsn)
    state = "SELECT month_tokens FROM limit_state WHERE scope_id = $1"

    async def watch() -> None:
        nonlocal most
        while True:
            generated = (await engine.fetch_stats()).generation_tokens - before
            # Later than the count: it may only have grown.
            reserved = await aside.fetchval(state, gateway.tenant.id) or 0
            assert generated <= reserved <= budget
            most = max(most, generated)

    async with gateway.openai() as client:
        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=MODEL,
                    messages=HELLO,
                    max_tokens=480,
                    n=n,
                    extra_body={"ignore_eos": True},
                )
                for n in (1, 2, 1)
            )
        )
        watching.cancel()
    assert most > 256 * 3, "they were granted more than their first slices"
    ends = [choice.finish_reason for answer in answers for choice in answer.choices]
    assert ends == ["length"] * 4
    totals = await gateway.usage(3)
    assert totals.prompt_tokens + totals.completion_tokens <= budget
    told = [answer.usage.completion_tokens for answer in answers if answer.usage]
    assert len(told) == len(answers)
    assert totals.completion_tokens == sum(told)
    assert totals.completion_tokens == (await engine.fetch_stats()).generation_tokens - before
    assert totals.completion_tokens < 4 * 480
    spent = await aside.fetchval(state, gateway.tenant.id)
    assert spent == totals.prompt_tokens + totals.completion_tokens
    await aside.close()


async def test_a_revoked_key_ends_a_running_stream(gateway: Gateway) -> None:
    (key,) = await gateway.store.list_keys(gateway.tenant.id)
    async with gateway.openai() as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=1800,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        await gateway.store.revoke_key(key.public_id)
        with pytest.raises(APIError) as ended:
            async for _ in stream:
                pass
        assert ended.value.code == "invalid_api_key"
    totals = await gateway.usage()
    assert 0 < totals.completion_tokens < 1800
