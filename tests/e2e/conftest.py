"""Running servers for the end-to-end tests: a gateway in this process, and a whole demo."""

from __future__ import annotations

import tempfile
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
    """A folder for PostgreSQL, which as root runs under another account.

    Not pytest's own: every session of pytest shuts the folder above those to others again.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def demo_process() -> Iterator[DemoProcess]:
    """``sluice demo``, ready. Who kills a part of it waits until it is whole again."""
    if reason := missing("pg"):
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-test-") as folder,
        DemoProcess(Path(folder) / "data") as demo,
    ):
        demo.wait_ready()
        yield demo


@pytest.fixture(scope="session")
def demo(demo_process: DemoProcess) -> dict[str, Any]:
    """The ready file of a running demo: ``url, ws_url, api_key, admin_key, pid``."""
    return demo_process.wait_ready()
