"""What tests of the engine share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that what is left there is the test's; a short path, for a socket's sake."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield
