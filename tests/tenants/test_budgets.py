"""What scopes have used of their limits: the contract, on both twins."""

from __future__ import annotations

import pytest

from tenants.limits import Limits
from tenants.store import Store
from tests.tenants.samples import make_event, make_key

pytestmark = pytest.mark.asyncio


async def test_the_greatest_shares_come_first(store: Store) -> None:
    names = {}
    for name, limits in {
        "none": Limits(max_queued=5),
        "half": Limits(monthly_tokens=40, requests_per_minute=100),
        "over": Limits(monthly_tokens=10, max_concurrent=4),
        "idle": Limits(monthly_cost_micro=0),
    }.items():
        _, who = await make_key(store, name)
        tenant_id = who.tenant.id
        names[name] = tenant_id
        await store.put_limits(tenant_id, "tenant", tenant_id, limits)
        if name in ("half", "over"):
            event = make_event(who.key, prompt_tokens=15, cached_tokens=0, completion_tokens=5)
            await store.record_usage(event)
    found = await store.list_budgets(None, limit=9)
    assert [one.tenant_name for one in found] == ["over", "half", "idle"]
    assert found[0].used == {"max_concurrent": 0, "monthly_tokens": 20}
    assert found[1].used == {"requests_per_minute": 1, "monthly_tokens": 20}
    assert found[2].used == {"monthly_cost_micro": 0}
    assert found[1].policy.limits.monthly_tokens == 40
    assert [one.share for one in found[::2]] == [2.0, 0.0]
    assert await store.list_budgets(None, limit=1) == found[:1]
    assert [one.tenant_name for one in await store.list_budgets(names["half"], limit=9)] == ["half"]
    assert await store.list_budgets(names["none"], limit=9) == []
