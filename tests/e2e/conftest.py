"""Running servers for the end-to-end tests: a gateway in this process, and a whole demo."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.client.client import EngineClient
from engine.demo import MODEL_DIR
from tests.conftest import missing
from tests.e2e.demo_process import DemoProcess
from tests.gateway.serving import Gateway, make_config, served
from tests.run_folder import make_folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    """The gateway on a real port over a real engine process with the bundled model.

    One for each module: tests run on the module's event loop.
    """
    config = make_config(
        MODEL_DIR,
        flush_interval_ms=15,
        engine={"kv_cache_memory_bytes": 64 * 2**20, "num_threads": 1, "max_num_seqs": 64},
    )
    engine = EngineClient(config.engine)
    async with served(config, engine) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder for PostgreSQL, which as root runs under another account."""
    folder = make_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def demo_process() -> Iterator[DemoProcess]:
    """``sluice demo``, ready. Who kills a part of it waits until it is whole again."""
    if reason := missing("pg"):
        pytest.skip(reason)
    folder = make_folder()
    with DemoProcess(folder / "data") as demo:
        demo.wait_ready()
        yield demo
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def demo(demo_process: DemoProcess) -> dict[str, Any]:
    """The ready file of a running demo: ``url, ws_url, api_key, admin_key, pid``."""
    return demo_process.wait_ready()
