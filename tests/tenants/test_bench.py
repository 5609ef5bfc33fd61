from __future__ import annotations

import pytest

from tenants import bench

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]


async def test_it_measures_what_it_says(pg_dsn: str) -> None:
    results = await bench.run(pg_dsn, num_tenants=5, num_clients=8, num_workers=2, seconds=0.2)
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
