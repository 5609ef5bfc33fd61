"""The all-reduce over memory that GPUs write into each other: exact on random sizes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch


@pytest.mark.gpu
def test_sums_of_random_sizes_beside_torchs() -> None:
    """``kernels.bench_all_reduce`` compares before it measures."""
    if torch.cuda.device_count() < 2:
        pytest.skip("an all-reduce needs two GPUs")
    command = [sys.executable, "-m", "kernels.bench", "all-reduce"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["checked"] > 0
