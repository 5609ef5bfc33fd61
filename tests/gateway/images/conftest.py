from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import seeing


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that sees, for the gateway's fixtures."""
    folder = tmp_path_factory.mktemp("seeing")
    return seeing.write_processor(seeing.QWEN3_VL, folder)
