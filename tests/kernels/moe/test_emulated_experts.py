"""The products of few tokens with their experts' matrices without a GPU: the kernels' own source
(``emulated``), against float64 products with what the weights mean."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda_experts, reference
from kernels.experts import ExpertMatrices, Fp8Experts, Int4Experts
from kernels.reference_experts import matrix_of
from tests.kernels import emulated
from tests.kernels.gemm.test_quantized import LIMIT, draw_int4, randn, relative_error

SOURCES = ("moe/expert_linear.cu",)
EXPERTS, TOP_K = 5, 3
KINDS = ["plain", "fp8", "fp8 blocks", "int4"]


@pytest.fixture(scope="module")
def library() -> Any:
    return emulated.native(SOURCES, threads=256)


def draw(kind: str, features: int, k: int, dtype: torch.dtype) -> ExpertMatrices:
    weights = [randn(features, k, seed=seed) * k**-0.5 for seed in range(EXPERTS)]
    match kind:
        case "plain":
            return torch.stack(weights).to(dtype)
        case "fp8":
            rows = [reference.quantize_rows(weight) for weight in weights]
            return Fp8Experts(
                stack_fp8([row[0] for row in rows]), torch.stack([r[1] for r in rows])
            )
        case "fp8 blocks":
            scale = randn(EXPERTS, -(-features // 32), -(-k // 64), seed=9).abs() * k**-0.5
            rounded = [(weight * k**0.5).to(torch.float8_e4m3fn) for weight in weights]
            return Fp8Experts(stack_fp8(rounded), scale, (32, 64))
        case _:
            matrices = [draw_int4(features, k, 64, dtype)[0] for _ in range(EXPERTS)]
            packed = torch.stack([matrix.packed for matrix in matrices])
            packed = packed.roll(1, -1) ^ torch.arange(EXPERTS, dtype=torch.int32)[:, None, None]
            groups = torch.stack([matrix.groups for matrix in matrices])
            groups[..., 0] *= k**-0.5
            return Int4Experts(packed, groups)


def stack_fp8(weights: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([w.view(torch.uint8) for w in weights]).view(torch.float8_e4m3fn)


def meant(matrices: ExpertMatrices, expert: int, dtype: torch.dtype) -> torch.Tensor:
    """float64; weights of four bits are widened to ``dtype``, the others are exact."""
    wide = dtype if isinstance(matrices, Int4Experts) else torch.float32
    return matrix_of(matrices, expert, wide).double()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_served(kind: str) -> None:
    """Few tokens, and matrices of whole chunks and groups."""

    def serves(num_tokens: int, hidden: int, inner: int, chosen: int = 2) -> bool:
        gate_up, down = (
            draw(kind, *shape, torch.bfloat16) for shape in ((2 * inner, hidden), (hidden, inner))
        )
        x, experts = torch.zeros(num_tokens, hidden), torch.zeros(num_tokens, chosen)
        return cuda_experts.serves(x, gate_up, down, experts)

    assert serves(1, 128, 256)
    assert not serves(2, 128, 256), "four pairs of five experts"
    assert serves(2, 128, 256, chosen=1)
    assert serves(1, 192, 256) == (kind != "int4")
    assert serves(1, 128, 320) == (kind != "int4")


def test_groups_that_end_within_a_chunk_are_not_served() -> None:
    blocks = Fp8Experts(
        torch.zeros(1, 16, 128).to(torch.float8_e4m3fn), torch.ones(1, 1, 4), (16, 32)
    )
    assert not cuda_experts._is_whole(blocks, 128)
    groups = Int4Experts(torch.zeros(1, 16, 16, dtype=torch.int32), torch.ones(1, 16, 8, 2))
    assert not cuda_experts._is_whole(groups, 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("features", "k"), [(16, 128), (48, 1152)])
def test_each_pair_is_multiplied_with_its_expert(
    features: int, k: int, kind: str, dtype: torch.dtype, library: Any
) -> None:
    """That of a pair without an expert is left alone."""
    matrices, x = draw(kind, features, k, dtype), randn(2, k, seed=1).to(dtype)
    experts = torch.tensor([[4, 0, EXPERTS], [2, 4, 1]])
    out = torch.full((6, features), 7.0, dtype=dtype)
    weight, scales = cuda_experts._stored(matrices)
    call = partial(library.expert_linear, x, weight, experts=experts, pairs_per_row=TOP_K, **scales)
    call(out=out)
    gated = torch.full((6, features // 2), 7.0, dtype=dtype)
    call(out=gated, gated=True)
    for pair, expert in enumerate(experts.flatten().tolist()):
        if expert == EXPERTS:
            assert (out[pair] == 7).all()
            assert (gated[pair] == 7).all()
            continue
        want = x[pair // TOP_K].double() @ meant(matrices, expert, dtype).T
        assert relative_error(out[pair], want) < 2 * LIMIT[dtype]
        gate, up = want.chunk(2)
        assert relative_error(gated[pair], F.silu(gate) * up) < 4 * LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("features", "k"), [(16, 128), (48, 640)])
def test_what_a_tokens_experts_make_is_added_up(
    features: int, k: int, kind: str, dtype: torch.dtype, library: Any
) -> None:
    matrices, x = draw(kind, features, k, dtype), randn(6, k, seed=1).to(dtype)
    experts = torch.tensor([[4, 0, EXPERTS], [2, 4, 1]])
    shares = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    out = torch.full((2, features), float("nan"), dtype=dtype)
    weight, scales = cuda_experts._stored(matrices)
    library.expert_sum(x, weight, experts=experts, shares=shares, out=out, **scales)
    want = torch.zeros(2, features, dtype=torch.float64)
    for pair, expert in enumerate(experts.flatten().tolist()):
        if expert < EXPERTS:
            made = x[pair].double() @ meant(matrices, expert, dtype).T
            want[pair // TOP_K] += shares.flatten()[pair].double() * made
    assert relative_error(out, want) < 2 * LIMIT[dtype]
