"""The gateway under test: on a port, over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.generation import compliance
from tests.gateway import tiny_model
from tests.gateway.engine_double import EngineDouble
from tests.gateway.serving import Gateway, served_double
from tests.postgres import pg_dsn, postgres_server

__all__ = ["pg_dsn", "postgres_server"]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def patient_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a check waits longer for its process, which is nice to others."""
    monkeypatch.setattr(compliance, "CHECK_TIMEOUT_S", 100.0)


@pytest_asyncio.fixture
async def pair(model_dir: Path) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    """A gateway on a port, and the engine double under it."""
    async with served_double(model_dir) as pair:
        yield pair


@pytest.fixture
def gateway(pair: tuple[Gateway, EngineDouble]) -> Gateway:
    return pair[0]


@pytest.fixture
def double(pair: tuple[Gateway, EngineDouble]) -> EngineDouble:
    return pair[1]
