"""Many workers on one PostgreSQL: each has connections of its own, all share the limits."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants import buckets
from tenants.errors import StoreUnavailable
from tenants.limits import Limits, Price
from tenants.store import Store
from tenants.types import Principal
from tests.ledger import usage_totals
from tests.tenants.reserving import Clock, ask, put, settle
from tests.tenants.samples import make_key

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

LEASE = timedelta(seconds=30)
SETTINGS = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


async def start(dsn: str, num_workers: int, clock: Clock | None = None) -> list[Store]:
    """Workers, and their clock: the server's own unless told."""
    options = {} if clock is None else {"now": clock}
    return [
        await Store.connect(dsn, max_size=2, **options)  # type: ignore[arg-type]
        for _ in range(num_workers)
    ]


async def stop(workers: list[Store]) -> None:
    for worker in workers:
        await worker.close()


@SETTINGS
@given(
    num_workers=st.integers(2, 4),
    requests=st.integers(1, 25),
    tokens=st.integers(30, 600),
    bursts=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 20_000_000)), min_size=1, max_size=4
    ),
)
async def test_bursts_of_all_workers_get_the_limit_exactly(
    pg_dsn: str,
    num_workers: int,
    requests: int,
    tokens: int,
    bursts: list[tuple[int, int]],
) -> None:
    """Never above the limit, and nothing refused below it.

    All requests of a burst are alike, so how many are admitted does not depend on their order: it
    must be the number that one worker alone would admit, by the arithmetic on its own.
    """
    clock = Clock()
    workers = await start(pg_dsn, num_workers, clock)
    try:
        _, who = await make_key(workers[0], str(uuid4()))
        await put(workers[0], who, "tenant", requests_per_minute=requests)
        await put(workers[0], who, "key", tokens_per_minute=tokens)
        requests_used = tokens_used = 0
        for size, pause_us in bursts:
            answers = await asyncio.gather(
                *(
                    workers[number % num_workers].reserve(ask(who.key, 10, 20))
                    for number in range(size)
                )
            )
            expected = min(
                size,
                buckets.remaining(requests_used, requests),
                buckets.remaining(tokens_used, tokens) // 30,
            )
            assert sum(answer.state == "running" for answer in answers) == expected
            requests_used = buckets.charged(requests_used, expected)
            tokens_used = buckets.charged(tokens_used, 30 * expected)
            clock.advance(microseconds=pause_us)
            requests_used = buckets.refilled(requests_used, requests, pause_us)
            tokens_used = buckets.refilled(tokens_used, tokens, pause_us)
    finally:
        await stop(workers)


@SETTINGS
@given(num_workers=st.integers(2, 4), max_concurrent=st.integers(1, 5), seed=st.integers())
async def test_slots_are_never_oversold_and_all_come_back(
    pg_dsn: str, num_workers: int, max_concurrent: int, seed: int
) -> None:
    """Forty clients reserve, hold, settle or release; a count beside the database watches."""
    workers = await start(pg_dsn, num_workers)
    draw = random.Random(seed)
    try:
        _, who = await make_key(workers[0], str(uuid4()))
        await put(workers[0], who, "project", max_concurrent=max_concurrent, monthly_tokens=10**6)
        num_running = most = num_settled = 0

        async def client(worker: Store) -> None:
            nonlocal num_running, most, num_settled
            request = ask(who.key, 1, 9)
            while (await worker.reserve(request)).state != "running":  # noqa: ASYNC110 - polled
                await asyncio.sleep(draw.uniform(0, 0.01))
            num_running += 1
            most = max(most, num_running)
            await asyncio.sleep(draw.uniform(0, 0.004))
            num_running -= 1
            if draw.random() < 0.5:
                await worker.release(who.tenant.id, request.request_id)
                return
            num_settled += 1
            assert sorted(
                await asyncio.gather(
                    *(settle(other, request, completion=4) for other in workers[:2])
                )
            ) == [False, True]

        async with asyncio.timeout(100):
            await asyncio.gather(*(client(workers[i % num_workers]) for i in range(24)))
        assert most <= max_concurrent
        totals = await usage_totals(workers[0], who.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (num_settled, 4 * num_settled)
        last = await workers[0].reserve(ask(who.key, 1, 9))
        assert last.state == "running"
        connection = await asyncpg.connect(pg_dsn)
        used = await connection.fetchrow(
            "SELECT num_running, month_tokens FROM limit_state WHERE tenant_id = $1", who.tenant.id
        )
        await connection.close()
        assert tuple(used) == (1, 5 * num_settled + 10)
    finally:
        await stop(workers)


async def test_budget_is_never_overspent(pg_dsn: str) -> None:
    """Ledger plus live reservations stay within the budget at every moment."""
    workers = await start(pg_dsn, 3)
    watcher = await asyncpg.connect(pg_dsn)
    price = Price(prompt=333_333, completion=777_777)
    budget = 1000
    try:
        _, who = await make_key(workers[0])
        await put(workers[0], who, "tenant", monthly_cost_micro=budget)
        done = False
        seen: list[int] = []

        async def watch() -> None:
            while not done:
                spent = await watcher.fetchval(
                    "SELECT (SELECT coalesce(sum(cost_micro), 0) FROM usage_event) + "
                    "(SELECT coalesce(sum(limit_cost(prompt_tokens, completion_tokens, "
                    "prompt_price, completion_price)), 0) FROM reservation)"
                )
                seen.append(int(spent))

        async def client(worker: Store, number: int) -> None:
            request = ask(who.key, 5, 20, price=price)
            answer = await worker.reserve(request)
            if answer.state != "running":
                assert answer.refused_by == "monthly_cost"
                return
            allowed = answer.completion_tokens
            more = await worker.extend(
                who.tenant.id, request.request_id, tokens=20, generated=allowed, lease=LEASE
            )
            used = random.Random(number).randint(0, allowed + (more or 0))
            await settle(worker, request, used, cost_micro=price.cost(5, 0, used))

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client(workers[i % 3], i) for i in range(150)))
        done = True
        await watching
        assert max(seen) <= budget
        # And it can be used up: until not even one more request of the smallest size fits.
        while (
            await workers[0].reserve(last := ask(who.key, 5, 20, price=price))
        ).state != "refused":
            held = (await workers[0].reserve(last)).completion_tokens
            await settle(workers[0], last, held, cost_micro=price.cost(5, 0, held))
        totals = await usage_totals(workers[0], who.tenant.id)
        assert totals.cost_micro <= budget
        assert budget - totals.cost_micro < price.cost(5, 0, 1)
    finally:
        await watcher.close()
        await stop(workers)


async def test_reapers_of_all_workers_settle_each_request_once(pg_dsn: str) -> None:
    clock = Clock()
    workers = await start(pg_dsn, 4, clock)
    try:
        principals = [(await make_key(workers[0], f"tenant {i}"))[1] for i in range(3)]
        for who in principals:
            await put(workers[0], who, "tenant", max_concurrent=10)
            for _ in range(10):
                request = ask(who.key, 3, 5)
                await workers[0].reserve(request)
                await workers[0].renew(request.owner, {request.request_id: 2}, LEASE)
        clock.advance(minutes=1)

        async def reap(worker: Store) -> list[UUID]:
            found = []
            while (request_id := await worker.reap()) is not None:
                found.append(request_id)
            return found

        found = await asyncio.gather(*(reap(worker) for worker in workers))
        reaped = [request_id for part in found for request_id in part]
        assert len(reaped) == len(set(reaped)) == 30
        for who in principals:
            totals = await usage_totals(workers[0], who.tenant.id)
            assert (totals.requests, totals.prompt_tokens, totals.completion_tokens) == (10, 30, 20)
            for _ in range(10):
                assert (await workers[0].reserve(ask(who.key))).state == "running"
    finally:
        await stop(workers)


async def test_requests_of_crossing_scopes_do_not_deadlock(pg_dsn: str) -> None:
    """Keys and projects in all combinations, reserving, extending and settling at once."""
    workers = await start(pg_dsn, 4)
    try:
        _, who = await make_key(workers[0])
        tenant_id = who.tenant.id
        keys = [who.key]
        for number in range(5):
            project = await workers[0].create_project(tenant_id, f"project {number}")
            keys.append(
                await workers[0].create_key(
                    tenant_id,
                    public_id=f"{number:012d}",
                    key_hash=bytes(32),
                    name="x",
                    scopes=["chat"],
                    project_id=project.id,
                )
            )
        for key in keys:
            await put(workers[0], Principal(tenant=who.tenant, key=key), "key", max_concurrent=50)
            await put(
                workers[0],
                Principal(tenant=who.tenant, key=key),
                "project",
                tokens_per_minute=10**6,
            )
        await workers[0].put_limits(tenant_id, "tenant", tenant_id, Limits(max_concurrent=500))

        async def client(number: int) -> None:
            worker, request = workers[number % 4], ask(keys[number % 6], 2, 3)
            assert (await worker.reserve(request)).state == "running"
            await worker.extend(tenant_id, request.request_id, tokens=2, generated=3, lease=LEASE)
            await worker.renew(request.owner, {request.request_id: 4}, LEASE)
            assert await settle(worker, request, 4)

        async with asyncio.timeout(100):
            await asyncio.gather(*(client(number) for number in range(120)))
        totals = await usage_totals(workers[0], tenant_id)
        assert (totals.requests, totals.completion_tokens) == (120, 480)
    finally:
        await stop(workers)


async def test_failed_settlement_leaves_everything_as_it_was(pg_dsn: str) -> None:
    """Ledger, sums, limits and reservation are one transaction: nothing of it without the rest."""
    (worker,) = await start(pg_dsn, 1)
    connection = await asyncpg.connect(pg_dsn)
    try:
        _, who = await make_key(worker)
        await put(worker, who, "tenant", max_concurrent=1)
        request = ask(who.key)
        await worker.reserve(request)
        await connection.execute("ALTER TABLE limit_state RENAME TO limit_state_away")
        with pytest.raises((asyncpg.UndefinedTableError, StoreUnavailable)):
            await settle(worker, request, 5)
        await connection.execute("ALTER TABLE limit_state_away RENAME TO limit_state")
        assert (await usage_totals(worker, who.tenant.id)).requests == 0
        assert await connection.fetchval("SELECT count(*) FROM usage_seen") == 0
        assert (await worker.reserve(ask(who.key))).state == "refused"
        assert await settle(worker, request, 5)
        assert (await worker.reserve(ask(who.key))).state == "running"
    finally:
        await connection.close()
        await stop([worker])


async def test_the_server_s_clock_counts_unless_told(pg_dsn: str) -> None:
    (worker,) = await start(pg_dsn, 1)
    try:
        _, who = await make_key(worker)
        await put(worker, who, "tenant", requests_per_minute=600)
        for _ in range(600):
            if (await worker.reserve(ask(who.key))).state == "refused":
                break
        before = datetime.now(UTC)
        answer = await worker.reserve(ask(who.key))
        assert answer.requests is not None
        await asyncio.sleep(0.5)
        later = await worker.reserve(ask(who.key))
        passed = (datetime.now(UTC) - before).total_seconds()
        assert later.requests is not None
        gained = later.requests.remaining - answer.requests.remaining
        assert 5 - 2 <= gained <= passed * 10 + 1
    finally:
        await stop([worker])
