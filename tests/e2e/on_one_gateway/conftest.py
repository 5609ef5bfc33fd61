"""One gateway for all tests of this folder, each module with a tenant of its own: a real engine
process with the bundled model, which guesses tokens ahead, and a real PostgreSQL.

Tests run on the folder's event loop, and leave the engine alive and idle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.demo import MODEL_DIR
from engine.spec.config import SpeculativeConfig
from gateway.config import TenantsConfig
from tenants.store import Store
from tests.gateway.serving import Gateway, make_config, served, until
from tests.postgres import fresh_database, postgres_server

__all__ = ["postgres_server"]


@pytest.fixture(scope="package")
def dsn(postgres_server: str) -> Iterator[str]:
    yield from fresh_database(postgres_server)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared(dsn: str) -> AsyncIterator[Gateway]:
    config = make_config(
        MODEL_DIR,
        flush_interval_ms=15,
        engine={
            "kv_cache_memory_bytes": 64 * 2**20,
            "num_threads": 1,
            "max_num_seqs": 64,
            "long_prefill_token_threshold": 8,  # the same bits however a prompt is cut
            "speculative_config": SpeculativeConfig(
                method="ngram",
                num_speculative_tokens=4,
                prompt_lookup_min=2,
                prompt_lookup_max=4,
                adaptive=False,
            ),
        },
    )
    config = msgspec.structs.replace(config, tenants=TenantsConfig(dsn=dsn))
    store = await Store.connect(dsn)
    async with served(
        config, Fleet([EngineClient(config.engine)], failover_wait_s=90.0), store=store
    ) as gateway:
        yield gateway


async def with_its_own_tenant(shared: Gateway) -> Gateway:
    """Once the engine has ended what others left."""

    async def idle() -> bool:
        stats = await shared.engine.fetch_stats()
        return stats.num_running == 0 and stats.num_free_blocks == stats.num_total_blocks

    await until(idle, within_s=120)
    tenant = await shared.store.create_tenant(f"tenant {uuid4()}")
    own = dataclasses.replace(shared, tenant=tenant)
    own.api_key = await own.key("chat")
    return own


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def gateway(shared: Gateway) -> Gateway:
    """With a tenant and a key of the module's own."""
    return await with_its_own_tenant(shared)
