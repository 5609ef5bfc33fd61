from __future__ import annotations

import asyncpg
import pytest

from tenants.bench import fill, requests, scale

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]


async def test_it_measures_what_it_says(pg_dsn: str) -> None:
    results = await requests.run(pg_dsn, num_tenants=5, num_clients=8, num_workers=2, seconds=0.2)
    assert [one.what for one in results] == [
        "authentication from cache",
        "100 requests/s",
        "500 requests/s",
        "5 tenants",
        "one tenant",
        "one tenant, 2 processes",
        "one tenant, 2 processes, settling alone",
    ]
    for one in results:
        assert one.per_s > 0
        assert 0 < one.p50_ms <= one.p99_ms


SMALL = fill.Size(tenants=50, keys=120, rows=6_000, days=scale.DAYS, old_rows=300)


async def _filled(dsn: str, size: fill.Size) -> None:
    """The indexes are as before, and sums are those of single requests."""
    connection = await asyncpg.connect(dsn)
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 'usage_event' ORDER BY 1"
    before = await connection.fetch(indexes)
    await fill.fill(dsn, size)
    assert await connection.fetch(indexes) == before
    assert await connection.fetchval("SELECT count(*) FROM tenant") == size.tenants
    assert await connection.fetchval("SELECT count(*) FROM api_key") == size.keys
    for table in ("usage_event", "usage_seen"):
        num_rows = await connection.fetchval(f"SELECT count(*) FROM {table}")
        assert num_rows == size.rows + size.old_rows
    assert await connection.fetchval("SELECT count(*) FROM usage_event_default") == 0
    for table in ("usage_rollup", "usage_daily", "usage_daily_tenant"):
        assert await connection.fetchval(f"SELECT sum(requests) FROM {table}") == size.rows
    await connection.close()


async def test_it_fills_a_database_as_settlements_do(pg_dsn: str) -> None:
    await _filled(pg_dsn, SMALL)


@pytest.mark.nightly
async def test_at_size_no_lease_is_late_and_no_limit_exceeded(pg_dsn: str) -> None:
    size = fill.Size(tenants=1_000, keys=3_000, rows=300_000, days=scale.DAYS, old_rows=200_000)
    found = await scale.run(pg_dsn, size, per_s=50, seconds=scale.LEASE_S * 2)
    assert found.num_late == 0
    assert found.most_running == scale.MAX_CONCURRENT
    assert all(0 < line.p50_ms <= line.p99_ms <= line.most_ms for line in found.lines)
    connection = await asyncpg.connect(pg_dsn)
    old = "SELECT count(*) FROM usage_seen WHERE created_at < now() - interval '140 days'"
    assert await connection.fetchval(old) == 0
    await connection.close()
