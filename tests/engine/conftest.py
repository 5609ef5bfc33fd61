"""What tests of the engine share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that what is left there is the test's; a short path, for a socket's sake."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(autouse=True, scope="module")
def _small_caches() -> Iterator[None]:
    """Engines in this process that say nothing about their KV cache have a small one: to clear the
    usual one and to check its blocks takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        if "engine.runner.memory" in sys.modules:  # which imports torch
            patch.setattr("engine.runner.memory.CPU_KV_CACHE_BYTES", 32 * 2**20)
        yield
