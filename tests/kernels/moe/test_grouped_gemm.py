"""Grouped products against the reference: on a GPU, and in Triton's interpreter on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import reference_experts
from kernels.experts import BiasedSwiglu, ExpertMatrices, Fp8Experts, Int4Experts, Mxfp4Experts
from tests.kernels.interpreter import interpret

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


KINDS = ["plain", "fp8", "fp8 blocks", "int4", "mixed", "mxfp4"]
"""The last with the biases and the activation of gpt-oss."""


def draw_quantized(
    kind: str, num_tokens: int, num_experts: int, top_k: int, dtype: torch.dtype, device: str
) -> tuple[ExpertMatrices, ExpertMatrices, torch.Tensor]:
    """Matrices of 96 hidden and 64 inner, and an x."""
    gen = torch.Generator().manual_seed(num_tokens)

    def matrices(quantized: str, features: int, k: int) -> ExpertMatrices:
        shape = num_experts, features, k
        if quantized == "fp8 blocks":
            numbers = torch.randn(*shape, generator=gen).to(torch.float8_e4m3fn)
            scale = torch.rand(num_experts, -(-features // 48), -(-k // 64), generator=gen) * 0.2
            return Fp8Experts(numbers.to(device), scale.to(device), (48, 64))
        if quantized == "fp8":
            numbers = torch.randn(*shape, generator=gen).to(torch.float8_e4m3fn)
            scale = torch.rand(num_experts, features, 1, generator=gen) * 0.2
            return Fp8Experts(numbers.to(device), scale.to(device))
        if quantized == "mxfp4":
            packed = torch.randint(256, (*shape[:2], k // 2), generator=gen)
            powers = torch.randint(122, 126, (*shape[:2], k // 32), generator=gen)
            return Mxfp4Experts(*(each.to(device, torch.uint8) for each in (packed, powers)))
        words = torch.randint(-(2**31), 2**31, (*shape[:2], k // 8), generator=gen)
        groups = torch.rand(*shape[:2], k // 32, 2, generator=gen)
        groups = groups * torch.tensor([0.05, 15.0])
        return Int4Experts(words.to(device, torch.int32), groups.to(device, dtype))

    down = "int4" if kind == "mixed" else kind
    gate_up = matrices("fp8" if kind == "mixed" else kind, 128, 96)
    x = torch.randn(num_tokens, 96, generator=gen).to(device, dtype)
    return gate_up, matrices(down, 96, 64), x


def check(
    num_tokens: int,
    num_experts: int,
    top_k: int,
    dtype: torch.dtype,
    device: str,
    kind: str = "plain",
) -> None:
    case: tuple[Any, ...] = draw(num_tokens, num_experts, top_k, dtype, device)
    if kind != "plain":
        gate_up, down, x = draw_quantized(kind, num_tokens, num_experts, top_k, dtype, device)
        case = x, gate_up, down, *case[3:]
    if kind == "mxfp4":
        first, second = (torch.randn(num_experts, n).to(device, dtype) for n in (128, 96))
        case = *case, BiasedSwiglu(first, second, 1.7, 4.0)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    got, want = grouped_gemm.apply_experts(*case), reference_experts.apply_experts(*case)
    atol = tolerance * max(1.0, float(want.abs().max()) / 4)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=atol)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
@pytest.mark.parametrize(
    "cases",
    [
        "zip(itertools.cycle(SHAPES), KINDS)",
        pytest.param("itertools.product(SHAPES, KINDS)", marks=pytest.mark.nightly),
    ],
    ids=["each kind", "each kind and shape"],
)
def test_interpreted_it_equals_the_reference(cases: str) -> None:
    code = (
        "import itertools\n"
        "import torch\n"
        "from tests.kernels.moe.test_grouped_gemm import KINDS, SHAPES, check\n"
        f"for shape, kind in {cases}:\n"
        "    check(*shape, torch.float32, 'cpu', kind)\n"
    )
    interpret(code)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [*SHAPES, (700, 8, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_it_equals_the_reference(
    num_tokens: int, num_experts: int, top_k: int, dtype: torch.dtype, kind: str
) -> None:
    check(num_tokens, num_experts, top_k, dtype, "cuda", kind)
