"""The all-reduce over memory that GPUs write into each other: exact on random sizes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels import emulated
from tests.kernels.collectives import rank as ranks


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_on_a_cpu(size: int, tmp_path: Path) -> None:
    """In processes that share memory, many times with other shapes: no sum meets a stale slot."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    emulated.native(ranks.SOURCES, threads=ranks.THREADS)  # built once
    for rank in range(size):
        with (tmp_path / f"rank{rank}").open("wb") as file:
            file.truncate(ranks.CONTROL + ranks.CTAS * 2 * size * ranks.SLOT)
    command = [sys.executable, "-m", "tests.kernels.collectives.rank"]
    started = [
        subprocess.Popen([*command, str(rank), str(size), str(tmp_path)]) for rank in range(size)
    ]
    try:
        assert [process.wait(250) for process in started] == [0] * size
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.gpu
def test_sums_of_random_sizes_beside_torchs() -> None:
    """``kernels.bench_all_reduce`` compares before it measures."""
    if torch.cuda.device_count() < 2:
        pytest.skip("an all-reduce needs two GPUs")
    command = [sys.executable, "-m", "kernels.bench", "all-reduce"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["checked"] > 0
