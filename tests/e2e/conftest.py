"""The gateway on a real port over a real engine process with the bundled model.

One for each module: tests run on the module's event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from engine.client import EngineClient
from engine.demo import MODEL_DIR
from tests.gateway.serving import Gateway, make_config, served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    config = make_config(
        MODEL_DIR,
        flush_interval_ms=15,
        engine={"kv_cache_memory_bytes": 64 * 2**20, "num_threads": 1, "max_num_seqs": 64},
    )
    engine = EngineClient(config.engine)
    async with served(config, engine) as gateway:
        yield gateway
