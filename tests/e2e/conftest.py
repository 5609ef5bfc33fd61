"""What the end-to-end tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run_folder import make_folder


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder for PostgreSQL, which as root runs under another account."""
    folder = make_folder()
    yield folder
    shutil.rmtree(folder)
