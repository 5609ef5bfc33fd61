"""The Makefile's targets, as ``make -n`` would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-n", f"PYTHON={sys.executable}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("demo", "sluice demo --port 8001"),
        ("serve", "sluice serve --port 8001"),
        ("test", "--durations 10 --port 8001"),
        ("test-all", '--durations 10 -m "" --port 8001'),
        ("test-gpu", "pytest -m gpu --port 8001"),
    ],
)
def test_options_go_through(target: str, command: str) -> None:
    assert f"{command}\n" in dry_run(target, "ARGS=--port 8001").stdout


def test_an_old_python_is_refused_by_name(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    run = dry_run("install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert run.returncode != 0
    assert f'"{old}" is not; name one that is: make PYTHON=python3.12' in run.stderr
