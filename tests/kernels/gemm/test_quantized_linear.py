"""Products by tiles with quantized weights, against float64 products with what the weights mean."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, ops, quantized, reference
from tests.kernels.gemm.test_quantized import LIMIT, draw_int4, randn, relative_error

pytest.importorskip("triton")
from kernels.triton import fp8_linear

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("triton_products")]

SHAPES = [(16, 128), (48, 384), (272, 1152), (4096, 4096), (28672, 4096), (4096, 14336)]
"""(features, k): fewer than a tile has, a little more, many."""


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if not (cuda.available() and quantized._has_tiled(torch.device("cuda"))):
        pytest.skip("the products by tiles need a Hopper GPU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 16, 19, 33, 64, 100, 128, 300])
@pytest.mark.parametrize("group_size", [32, 64, 128, 384, -1])
@pytest.mark.parametrize(("features", "k"), SHAPES)
def test_int4(features: int, k: int, group_size: int, tokens: int, dtype: torch.dtype) -> None:
    group_size = k if group_size == -1 else group_size
    if k % group_size:
        pytest.skip("no whole groups")
    matrix, meant = draw_int4(features, k, group_size, dtype, "cuda")
    x = (randn(tokens, k, seed=1, device="cuda") * k**-0.5).to(dtype)
    bias = randn(features, seed=3, device="cuda").to(dtype)
    want = x.double() @ meant.T + bias.double()
    got = cuda.native.tiled_int4_linear(x, matrix.packed, matrix.groups, bias)
    assert relative_error(got, want) < LIMIT[dtype]
    gate, up = want.chunk(2, -1)
    gated = cuda.native.tiled_int4_linear(x, matrix.packed, matrix.groups, bias, gated=True)
    assert relative_error(gated, F.silu(gate) * up) < 3 * LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 16, 19, 33, 64, 100, 128, 300])
@pytest.mark.parametrize(("features", "k"), SHAPES)
def test_fp8(features: int, k: int, tokens: int, dtype: torch.dtype) -> None:
    x, x_scale = ops.quantize_rows(randn(tokens, k, seed=1, device="cuda"))
    weight, scale = ops.quantize_rows(randn(features, k, seed=2, device="cuda") * k**-0.5)
    bias = randn(features, seed=3, device="cuda").to(dtype)
    want = (x.double() * x_scale) @ (weight.double() * scale).T + bias.double()
    got = quantized.tiled_fp8_linear(x, x_scale, weight, scale, bias, dtype=dtype)
    # The sums of these tensor cores keep some 14 bits.
    assert relative_error(got, want) < LIMIT[dtype] + 1e-3
    gate, up = want.chunk(2, -1)
    gated = quantized.tiled_fp8_linear(x, x_scale, weight, scale, bias, dtype=dtype, gated=True)
    assert relative_error(gated, F.silu(gate) * up) < 3 * LIMIT[dtype] + 2e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 16, 19, 64, 130])
@pytest.mark.parametrize("block_rows", [16, 128])
@pytest.mark.parametrize(("features", "k"), SHAPES)
def test_fp8_in_blocks(
    features: int, k: int, block_rows: int, tokens: int, dtype: torch.dtype
) -> None:
    x, x_scale = fp8_linear.quantize_pieces(randn(tokens, k, seed=1, device="cuda"))
    assert x_scale.shape == (k // 128, tokens)
    weight, _ = ops.quantize_rows(randn(features, k, seed=2, device="cuda") * k**-0.5)
    blocks = randn(-(-features // block_rows), k // 128, seed=4, device="cuda").abs()
    scale = blocks * 0.005 * k**-0.5
    bias = randn(features, seed=3, device="cuda").to(dtype)
    x_meant = x.double() * x_scale.T.double().repeat_interleave(128, 1)
    meant = reference.dequantize_fp8(weight, scale, (block_rows, 128)).double()
    want = x_meant @ meant.T + bias.double()
    got = quantized.tiled_fp8_linear(
        x, x_scale, weight, scale, bias, dtype=dtype, block_rows=block_rows
    )
    assert relative_error(got, want) < LIMIT[dtype] + 1e-3
    gate, up = want.chunk(2, -1)
    gated = quantized.tiled_fp8_linear(
        x, x_scale, weight, scale, bias, dtype=dtype, block_rows=block_rows, gated=True
    )
    assert relative_error(gated, F.silu(gate) * up) < 3 * LIMIT[dtype] + 2e-3


@pytest.mark.parametrize("split", [1, 2, 3, 5, 8])
def test_any_number_of_ctas_may_share_a_sum(split: int) -> None:
    matrix, meant = draw_int4(528, 1280, 128, torch.bfloat16, "cuda")
    x = randn(40, 1280, seed=1, device="cuda").to(torch.bfloat16)
    got = cuda.native.tiled_int4_linear(x, matrix.packed, matrix.groups, split=split)
    assert relative_error(got, x.double() @ meant.T) < LIMIT[torch.bfloat16]
    rounded, x_scale = ops.quantize_rows(x)
    weight, scale = ops.quantize_rows(meant.float())
    got = quantized.tiled_fp8_linear(
        rounded, x_scale, weight, scale, dtype=torch.bfloat16, split=split
    )
    want = (rounded.double() * x_scale) @ (weight.double() * scale).T
    assert relative_error(got, want) < LIMIT[torch.bfloat16] + 1e-3


def test_rows_apart_and_rows_that_are_not_there() -> None:
    """x is part of a wider tensor; what lies beside and below it is not read."""
    matrix, meant = draw_int4(256, 512, 128, torch.bfloat16, "cuda")
    wide = torch.full((64, 1024), float("nan"), dtype=torch.bfloat16, device="cuda")
    wide[:37, 256:768] = randn(37, 512, seed=1, device="cuda").to(torch.bfloat16)
    x = wide[:37, 256:768]
    got = cuda.native.tiled_int4_linear(x, matrix.packed, matrix.groups)
    assert relative_error(got, x.double() @ meant.T) < LIMIT[torch.bfloat16]


def test_in_a_graph_one_product_after_the_other() -> None:
    """Each reads what the one before has written, as early as it may start."""
    matrix, meant = draw_int4(512, 512, 128, torch.bfloat16, "cuda")
    x = (randn(64, 512, seed=1, device="cuda") * 0.01).to(torch.bfloat16)
    want = x.double()
    for _ in range(6):
        want = (want @ (meant / 512).T).to(torch.bfloat16).double()
    scaled = matrix.groups / torch.tensor([512, 1], device="cuda", dtype=torch.bfloat16)

    def six() -> torch.Tensor:
        out = x
        for _ in range(6):
            out = cuda.native.tiled_int4_linear(out, matrix.packed, scaled)
        return out

    six()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = six()
    for _ in range(20):
        got.zero_()
        graph.replay()
        assert relative_error(got, want) < 4 * LIMIT[torch.bfloat16]


def test_what_starts_between_vectors_is_refused() -> None:
    x = torch.zeros(16 * 128 + 1, device="cuda", dtype=torch.bfloat16)
    weight, scale = ops.quantize_rows(randn(16, 128, seed=2, device="cuda"))
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes"):
        cuda.native.skinny_fp8_linear(x[1:].view(16, 128), weight, scale)
    shifted = torch.zeros(16 * 128 + 1, device="cuda", dtype=torch.uint8)[1:].view(16, 128)
    with pytest.raises(ValueError, match="weight must start at a multiple of 16 bytes"):
        cuda.native.skinny_fp8_linear(
            x[:-1].view(16, 128), shifted.view(torch.float8_e4m3fn), scale
        )
