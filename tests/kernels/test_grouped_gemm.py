"""Grouped products against the reference: on a GPU, and in Triton's interpreter on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kernels import reference

pytest.importorskip("triton")
from kernels.triton import grouped_gemm


def draw(
    num_tokens: int, num_experts: int, top_k: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, ...]:
    """hidden 40, inner 24: no multiples of a tile."""
    gen = torch.Generator().manual_seed(num_tokens)
    experts = torch.stack(
        [torch.randperm(num_experts, generator=gen)[:top_k] for _ in range(num_tokens)]
    )
    floats = (
        torch.randn(num_tokens, 40, generator=gen),
        torch.randn(num_experts, 48, 40, generator=gen) * 0.2,
        torch.randn(num_experts, 40, 24, generator=gen) * 0.2,
    )
    weights = torch.rand(num_tokens, top_k, generator=gen)
    x, gate_up, down = (tensor.to(device, dtype) for tensor in floats)
    return x, gate_up, down, experts.to(device), weights.to(device)


SHAPES = [(1, 4, 2), (7, 5, 3), (40, 3, 1), (5, 64, 2)]
"""(tokens, experts, top_k)"""


def check(num_tokens: int, num_experts: int, top_k: int, dtype: torch.dtype, device: str) -> None:
    case = draw(num_tokens, num_experts, top_k, dtype, device)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(
        grouped_gemm.apply_experts(*case),
        reference.apply_experts(*case),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
def test_interpreted_it_equals_the_reference() -> None:
    """In a process of its own: Triton decides when it is imported."""
    code = (
        "import torch\n"
        "from tests.kernels.test_grouped_gemm import SHAPES, check\n"
        "for shape in SHAPES:\n"
        "    check(*shape, torch.float32, 'cpu')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_every_pair_is_in_one_tile_of_its_expert() -> None:
    _, _, _, experts, _ = draw(60, 6, 2, torch.float32, "cpu")
    experts[experts == 4] = 3  # one expert of nobody
    groups = grouped_gemm.Groups.of(experts, 6)
    seen = []
    for expert, first, end in groups.tiles.T.tolist():
        if expert < 6:
            pairs = groups.order[first : min(first + groups.rows, end)]
            assert len(pairs) > 0
            assert (experts.view(-1)[pairs] == expert).all()
            seen += pairs.tolist()
    assert sorted(seen) == list(range(120))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [*SHAPES, (700, 8, 2)])
def test_on_a_gpu_it_equals_the_reference(
    num_tokens: int, num_experts: int, top_k: int, dtype: torch.dtype
) -> None:
    check(num_tokens, num_experts, top_k, dtype, "cuda")
