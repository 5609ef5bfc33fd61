"""The ``openai`` package under limits: the real engine, a real PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

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


async def test_nothing_is_generated_that_is_not_reserved(gateway: Gateway, dsn: str) -> None:
    """Several answers at once run into the end of a budget; what the engine has generated is held
    against what the database has reserved, all the while.
    """
    budget, most = 1500, 0
    await limit(gateway, monthly_tokens=budget)
    (engine,) = gateway.app.state.services.engine.engines
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
