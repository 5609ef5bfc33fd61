from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tenants.store import Store
from tests.memory_store.store import MemoryStore
from tests.postgres import empty_pg_dsn, own_pg_dsn, pg_dsn, pg_folder, postgres_server
from tests.tenants.reserving import Clock

__all__ = ["empty_pg_dsn", "own_pg_dsn", "pg_dsn", "pg_folder", "postgres_server"]


@pytest_asyncio.fixture
async def pg_store(pg_dsn: str) -> AsyncIterator[Store]:
    store = await Store.connect(pg_dsn)
    yield store
    await store.close()


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.pg)])
def store(request: pytest.FixtureRequest) -> Store:
    """Both twins: whatever is asked of one is asked of the other."""
    if request.param == "memory":
        return MemoryStore()
    found: Store = request.getfixturevalue("pg_store")
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.pg)])
async def timed(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Store]:
    """Both twins on the same clock."""
    if request.param == "memory":
        yield MemoryStore(now=clock)
        return
    store = await Store.connect(request.getfixturevalue("pg_dsn"), now=clock)
    yield store
    await store.close()
