from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.images.drawing import write_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that sees, for the gateway's fixtures."""
    return write_model(tmp_path_factory.mktemp("seeing"))
