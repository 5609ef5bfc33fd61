"""What the face of the CUDA kernels says of them, against their source."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels import build, cuda


@pytest.mark.nightly
def test_as_many_ctas_share_an_sm_as_the_launcher_says(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    lines = ['#include "attention/decode_launch.cuh"', "using namespace sluice;"]
    for fp8, dim, rows in itertools.product((False, True), cuda.DECODE_HEAD_DIMS, (8, 16, 32)):
        tile = f"{'Fp8Tile' if fp8 else 'PlainTile'}<__half, {dim}>"
        ctas = cuda.decode_ctas_per_sm(dim, rows, fp8=fp8)
        lines.append(f"static_assert(kSharers<{tile}, {dim}, {rows // 8}> == {ctas});")
    source = tmp_path / "sharers.cu"
    source.write_text("\n".join(lines))
    command = build.nvcc_command(source, tmp_path / "sharers.o", "90a", build.find_nvcc())
    subprocess.run(command, check=True)
