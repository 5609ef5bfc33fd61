"""The run's PostgreSQL ends with the run, even if nobody of it can stop the server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
TEST = """
import os, signal
from tests.postgres import postgres_server

def test_killed(postgres_server: str) -> None:
    print("server", postgres_server, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.pg
def test_a_killed_run_leaves_neither_server_nor_folder(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    run = subprocess.run(
        [*command, "test_killed.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "host=" in run.stdout, run.stdout + run.stderr
    folder = Path(run.stdout.partition("host=")[2].partition("&")[0]).parent
    deadline = time.monotonic() + 60
    while folder.exists() or any(str(folder) in line for line in _commands()):
        assert time.monotonic() < deadline, folder
        time.sleep(0.1)


def _commands() -> list[str]:
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
