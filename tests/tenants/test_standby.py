"""What is served while the store is away: what the limits leave, as far as that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.limits import Price
from tenants.quota import Quota
from tenants.standby import WORKER_LEASE_S, Standby
from tenants.types import Principal
from tests.ledger import usage_totals
from tests.tenants.quotas import WatchedStore, make, more, seconds_of, settle, take
from tests.tenants.reserving import put

pytestmark = pytest.mark.asyncio

KEEP_S = 600.0


def worker(store: WatchedStore, name: str = "a", *, allowance_tokens: int = 0) -> Quota:
    clock = seconds_of(store)
    standby = Standby(worker_id=name, allowance_tokens=allowance_tokens, keep_s=KEEP_S, clock=clock)
    return Quota(store, standby=standby, clock=clock)


async def workers(store: WatchedStore, who: Principal, number: int) -> Sequence[Quota]:
    """Workers that have served the principal, and have read what that left."""
    names = [f"worker-{index}" for index in range(number)]
    quotas = [worker(store, name) for name in names]
    for name, quota in zip(names, quotas, strict=True):
        await store.shared.register_worker(name, "unix:/nowhere", timedelta(days=1))
        await quota.release(await take(quota, who))
        store.time.advance(minutes=2)  # what the request took of the rates
    for quota in quotas:
        await quota.refresh()
    return quotas


async def num_served(quotas: Sequence[Quota], who: Principal, tries: int = 15) -> int:
    """How many requests the workers serve, asked in turn."""
    served = 0
    for _ in range(tries):
        for quota in quotas:
            try:
                await take(quota, who, most=10)
            except (QuotaExceeded, StoreUnavailable):
                continue
            served += 1
    return served


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"requests_per_minute": 1}, 1),
        ({"requests_per_minute": 7}, 7),
        ({"max_concurrent": 1}, 1),
        ({"max_concurrent": 4}, 4),
        ({"tokens_per_minute": 240}, 12),
        ({"monthly_tokens": 240}, 12),
    ],
)
async def test_workers_together_serve_a_limit_and_no_more(
    limits: dict[str, int], most: int, number: int
) -> None:
    """Each request is 10 tokens of prompt and 10 of completion."""
    store = WatchedStore()
    who = await make(store, "tenant", **limits)
    quotas = await workers(store, who, number)
    store.away = True
    assert await num_served(quotas, who) == most


@pytest.mark.parametrize("kind", ["tenant", "project", "key"])
async def test_the_limits_of_every_scope_hold(kind: str) -> None:
    store = WatchedStore()
    who = await make(store, kind, requests_per_minute=3)
    (quota,) = await workers(store, who, 1)
    store.away = True
    assert await num_served([quota], who) == 3


async def test_what_was_taken_since_the_last_reading_counts() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=100, requests_per_minute=5)
    (quota,) = await workers(store, who, 1)
    hold = await take(quota, who, prompt=10, most=50)
    store.away = True
    assert await more(hold, 10) == 50, "the most it asked for"
    answer = (await take(quota, who, prompt=10, most=50)).answer
    assert answer.completion_tokens == 30
    assert answer.requests is not None
    assert answer.requests.remaining == 3
    with pytest.raises(QuotaExceeded) as refused:
        await take(quota, who, prompt=1, most=1)
    assert refused.value.answer.refused_by == "monthly_tokens"


async def test_who_was_refused_stays_refused() -> None:
    store = WatchedStore()
    who = await make(store, requests_per_minute=1)
    (quota,) = await workers(store, who, 1)
    await take(quota, who)
    await quota.refresh()
    store.time.advance(seconds=2)  # the refusal itself is remembered for a second
    for is_away in (False, True):
        store.away = is_away
        store.time.advance(seconds=2)
        with pytest.raises(QuotaExceeded) as refused:
            await take(quota, who)
    assert refused.value.answer.wait_us == 54_000_000
    store.time.advance(seconds=55)
    await take(quota, who)


async def test_a_slot_is_free_when_its_request_has_ended() -> None:
    store = WatchedStore()
    who = await make(store, max_concurrent=1)
    (quota,) = await workers(store, who, 1)
    before = await take(quota, who)
    store.away = True
    for hold in (before, None):
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        if hold is not None:
            await hold.close()
            during = await take(quota, who)
    await during.close()
    await take(quota, who)


async def test_a_worker_keeps_the_slots_it_had() -> None:
    store = WatchedStore()
    who = await make(store, max_concurrent=4)
    one, two = await workers(store, who, 2)
    running = [await take(one, who) for _ in range(3)]
    for quota in (one, two):
        await quota.refresh()
    store.away = True
    assert await num_served([two, one], who) == 1
    await running[0].close()
    assert await num_served([two], who) == 0
    assert await num_served([one], who) == 1


async def test_a_share_that_is_used_up_is_no_exhausted_budget() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=100)
    one, two = await workers(store, who, 2)
    store.away = True
    await take(one, who, most=1000)
    with pytest.raises(StoreUnavailable):
        await take(one, who)
    hold = await take(two, who, most=1000)
    assert hold.allowed == 40
    assert await more(hold) == 40
    assert hold.is_last


async def test_an_exhausted_budget_is_told_by_every_worker() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=100)
    one, two = await workers(store, who, 2)
    await take(one, who)
    for quota in (one, two):
        await quota.refresh()
    store.away = True
    for quota in (one, two):
        with pytest.raises(QuotaExceeded):
            await take(quota, who)


async def test_the_cost_of_a_month_holds() -> None:
    store, price = WatchedStore(), Price(prompt=10**6, completion=10**6)
    who = await make(store, monthly_cost_micro=100)
    (quota,) = await workers(store, who, 1)
    await take(quota, who, most=30, price=price)
    store.away = True
    hold = await take(quota, who, price=price)
    assert hold.allowed == 50
    with pytest.raises(QuotaExceeded):
        await take(quota, who, price=price)


async def test_a_new_month_begins_without_the_store() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=20)
    (quota,) = await workers(store, who, 1)
    store.away = True
    assert await num_served([quota], who) == 1
    store.time.advance(days=20)
    assert await num_served([quota], who) == 1


@pytest.mark.parametrize(("allowance", "served"), [(0, 0), (39, 1), (40, 2)])
async def test_of_whom_nothing_is_known_gets_the_allowance(allowance: int, served: int) -> None:
    store = WatchedStore()
    who = await make(store, requests_per_minute=100)
    quota = worker(store, allowance_tokens=allowance)
    store.away = True
    hold = None
    for _ in range(served):
        hold = await take(quota, who, most=10)
    with pytest.raises(StoreUnavailable):
        await take(quota, who, prompt=20, most=10)
    if hold is not None:
        assert await more(hold) == 10


async def test_an_unlimited_tenant_is_served() -> None:
    store = WatchedStore()
    who = await make(store)
    quota = worker(store)
    store.away = True
    assert await num_served([quota], who) == 15


async def test_a_database_that_has_lost_its_workers_makes_no_share_larger() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=100)
    one, _ = await workers(store, who, 2)
    await store.shared.forget_worker("worker-1")
    await one.refresh()
    store.away = True
    assert (await take(one, who, most=1000)).allowed == 40
    store.away = False
    store.time.advance(seconds=WORKER_LEASE_S + 1)
    await one.refresh()
    await one.refresh()
    store.away = True
    assert await more(await take(one, who, most=5)) == 5


async def test_what_was_served_is_reserved_when_the_store_is_back() -> None:
    """Before it decides again, so that nothing is given twice."""
    store = WatchedStore()
    who = await make(store, monthly_tokens=200)
    (quota,) = await workers(store, who, 1)
    before = await take(quota, who, most=1000, prompt=10)
    assert before.allowed == 190
    await before.close()
    await store.release(who.tenant.id, before.request_id)
    await quota.refresh()
    before = await take(quota, who, most=30)
    before._max_tokens = 100
    store.away = True
    during = await take(quota, who, most=20)
    assert await more(before, 20) == 50
    store.away = False
    with pytest.raises(QuotaExceeded):
        await take(quota, who, prompt=120)  # It is not asked yet.
    assert store.num_reserves == 4
    await quota.refresh()
    running = {entry.request_id: entry for entry in await store.list_running()}
    assert running.keys() == {before.request_id, during.request_id}
    (balance,) = await store.balances([who.tenant.id])
    assert balance.month_tokens == 10 + 50 + 10 + 20
    after = await take(quota, who, most=1000)
    assert after.allowed == 100
    for hold, tokens in ((before, 45), (during, 20), (after, 0)):
        hold.watch(lambda tokens=tokens: tokens)  # type: ignore[misc]
        await settle(store, who, hold)
    totals = await usage_totals(store, who.tenant.id)
    (balance,) = await store.balances([who.tenant.id])
    assert balance.month_tokens == totals.prompt_tokens + totals.completion_tokens == 95
    await quota.refresh()
    assert quota._standby.num_claims == 0


async def test_the_store_decides_again_once_settlements_have_reached_it() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=100)
    pending: set[UUID] = set()
    clock = seconds_of(store)
    quota = Quota(store, standby=Standby(is_pending=pending.__contains__, clock=clock), clock=clock)
    await quota.release(await take(quota, who))
    await quota.refresh()
    store.away = True
    hold = await take(quota, who, most=60)
    pending.add(hold.request_id)
    hold.watch(lambda: 60)
    await hold.close()
    store.away = False
    await quota.refresh()
    with pytest.raises(QuotaExceeded):
        await take(quota, who, prompt=40)
    assert (await take(quota, who, prompt=10, most=99)).allowed == 20
    pending.clear()
    await settle(store, who, hold)
    for _ in range(2):
        await quota.refresh()
    with pytest.raises(QuotaExceeded):
        await take(quota, who)
    assert not quota._standby.is_away


async def test_a_request_that_ends_while_it_is_reported_leaves_no_reservation() -> None:
    store = WatchedStore()
    who = await make(store, max_concurrent=2)
    (quota,) = await workers(store, who, 1)
    store.away = True
    hold = await take(quota, who)
    store.away, store.gate = False, asyncio.Event()
    refreshing = asyncio.create_task(quota.refresh())
    async with asyncio.timeout(30):
        while store.num_reserves < 3:  # noqa: ASYNC110 - refused, and now reported
            await asyncio.sleep(0)
    ending = asyncio.create_task(hold.stop())
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(refreshing, ending)
    await settle(store, who, hold)
    await quota.refresh()
    assert await store.list_running() == []
    assert quota.num_held == quota._standby.num_claims == 0


async def test_scopes_nobody_asks_for_are_forgotten() -> None:
    store = WatchedStore()
    who = await make(store, requests_per_minute=9)
    (quota,) = await workers(store, who, 1)
    assert quota._standby._balances.keys() == {who.tenant.id}
    hold = await take(quota, who)
    for is_running in (True, False):
        if not is_running:
            await hold.close()
            await quota.refresh()
        store.time.advance(seconds=KEEP_S + 1)
        await quota.refresh()
        assert bool(quota._standby._balances) == is_running
    assert not quota._standby._balances
    assert not quota._standby._asked_at


async def test_limits_that_change_hold_from_then_on() -> None:
    store = WatchedStore()
    who = await make(store, monthly_tokens=1000)
    (quota,) = await workers(store, who, 1)
    await put(store, who, "tenant", monthly_tokens=100)
    record = await store.find_key(who.key.public_id)
    assert record is not None
    store.away = True
    assert (await take(quota, record.principal, most=1000)).allowed == 90
