"""Packages of npm's registry that tests use, kept in a folder of the cache after the first time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def installed(package: str) -> Path:
    """The folder in which ``name@version`` is installed; skips the test if it cannot be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "sluice-tests" / package
    if shutil.which("npm") is None:
        pytest.skip("npm is missing")
    if not (folder / "node_modules" / package.rpartition("@")[0]).exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), package)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be installed: {done.stderr[-200:]}")
    return folder
