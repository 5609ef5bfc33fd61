"""The product of a lone token with quantized weights on a GPU, in each of its forms."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, quantized, reference
from tests.kernels.gemm.test_quantized import LIMIT, draw_int4, randn, relative_error

pytestmark = pytest.mark.gpu

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
SHAPES = pytest.mark.parametrize(
    ("features", "k"), [(16, 128), (4096, 4096), (4096, 14336), (6144, 1152), (28672, 4096)]
)
"""Up to two CTAs an SM, up to three, and more."""


@pytest.fixture(autouse=True)
def _kernels() -> None:
    assert cuda.available()


@DTYPES
@SHAPES
def test_fp8(features: int, k: int, dtype: torch.dtype) -> None:
    x = randn(1, k, seed=1, device="cuda").to(dtype)
    bias = randn(features, seed=3, device="cuda").to(dtype)
    weight, scale = reference.quantize_rows(randn(features, k, seed=2, device="cuda") * k**-0.5)
    want = x.double() @ (weight.double() * scale).T
    got = cuda.native.skinny_fp8_linear(x, weight, scale, bias)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    gates, ups = want.chunk(2, -1)
    got = cuda.native.skinny_fp8_linear(x, weight, scale, gated=True)
    assert relative_error(got, F.silu(gates) * ups) < 3 * LIMIT[dtype]


@DTYPES
@SHAPES
@pytest.mark.parametrize("block", [(128, 128), (48, 64)])
def test_fp8_in_blocks(features: int, k: int, block: tuple[int, int], dtype: torch.dtype) -> None:
    x = randn(1, k, seed=1, device="cuda").to(dtype)
    weight = randn(features, k, seed=2, device="cuda").to(torch.float8_e4m3fn)
    shape = (-(-features // block[0]), -(-k // block[1]))
    scale = randn(*shape, seed=3, device="cuda").abs() * k**-0.5
    want = x.double() @ reference.dequantize_fp8(weight, scale, block).double().T
    got = quantized._skinny_fp8(x, weight, scale, None, block)
    assert relative_error(got, want) < LIMIT[dtype]
    gates, ups = want.chunk(2, -1)
    got = quantized._skinny_fp8(x, weight, scale, None, block, gated=True)
    assert relative_error(got, F.silu(gates) * ups) < 3 * LIMIT[dtype]


@DTYPES
@SHAPES
@pytest.mark.parametrize("group_size", [32, 128])
def test_int4(features: int, k: int, group_size: int, dtype: torch.dtype) -> None:
    x = (randn(1, k, seed=1, device="cuda") * k**-0.5).to(dtype)
    matrix, meant = draw_int4(features, k, group_size, dtype, "cuda")
    bias, want = randn(features, seed=3, device="cuda").to(dtype), x.double() @ meant.T
    got = cuda.native.skinny_int4_linear(x, matrix.packed, matrix.groups, bias)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    gates, ups = want.chunk(2, -1)
    got = cuda.native.skinny_int4_linear(x, matrix.packed, matrix.groups, gated=True)
    assert relative_error(got, F.silu(gates) * ups) < 3 * LIMIT[dtype]


@pytest.mark.parametrize(("features", "k"), [(8192, 28672), (16, 32768), (16, 32896)])
def test_long_rows(features: int, k: int) -> None:
    """Of which x needs more shared memory than a kernel gets unasked, or more than there is."""
    x = randn(1, k, seed=1, device="cuda").to(torch.bfloat16)
    weight, scale = reference.quantize_rows(randn(features, k, seed=2, device="cuda") * k**-0.5)
    got = cuda.native.skinny_fp8_linear(x, weight, scale)
    assert relative_error(got, x.double() @ (weight.double() * scale).T) < LIMIT[x.dtype]
    matrix, meant = draw_int4(features, k, 128, x.dtype, "cuda")
    got = cuda.native.skinny_int4_linear(x, matrix.packed, matrix.groups)
    assert relative_error(got, x.double() @ meant.T) < LIMIT[x.dtype]


@DTYPES
@pytest.mark.parametrize("features", [16, 6144, 28672])
def test_every_fp8_number_is_read_exactly(features: int, dtype: torch.dtype) -> None:
    """One of them times one, in each of the 256 columns."""
    numbers = torch.arange(256, device="cuda").to(torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = torch.where(numbers.isnan(), 0.0, numbers)
    rows = torch.stack([numbers.roll(-16 * i) for i in range(16)]).repeat(features // 16, 1)
    weight, one = rows.to(torch.float8_e4m3fn), torch.ones(features, 1, device="cuda")
    for column in range(16):
        x = torch.zeros(1, 256, device="cuda", dtype=dtype)
        x[0, column] = 1
        got = cuda.native.skinny_fp8_linear(x, weight, one)
        assert torch.equal(got[0], rows[:, column].to(dtype))


@pytest.mark.parametrize("features", [16, 6144, 28672])
@pytest.mark.parametrize("size", [1e-30, 3e-5, 7e4, 1e30])
def test_any_size(size: float, features: int) -> None:
    """Beyond what float16 holds: the largest element decides what all are scaled by."""
    x = (randn(1, 512, seed=1, device="cuda") * size).to(torch.bfloat16)
    x[0, 7:500] *= 1e-3
    weight, scale = reference.quantize_rows(randn(features, 512, seed=2, device="cuda"))
    want = x.double() @ (weight.double() * scale).T
    got = cuda.native.skinny_fp8_linear(x, weight, scale)
    assert relative_error(got, want) < LIMIT[x.dtype]


def test_what_is_no_number_shows() -> None:
    weight, scale = reference.quantize_rows(randn(4096, 512, seed=2, device="cuda"))
    x = torch.zeros(1, 512, device="cuda", dtype=torch.bfloat16)
    assert not cuda.native.skinny_fp8_linear(x, weight, scale).any()
    for element in (float("nan"), float("inf")):
        x[0, 50] = element
        assert not cuda.native.skinny_fp8_linear(x, weight, scale).isfinite().any()


def test_a_graph_of_products_that_follow_each_other() -> None:
    """Each starts before the one ahead of it has ended."""
    x = randn(1, 4096, seed=1, device="cuda").to(torch.bfloat16)
    weights = [
        reference.quantize_rows(randn(4096, 4096, seed=seed, device="cuda") / 64)
        for seed in range(6)
    ]
    matrix, _ = draw_int4(4096, 4096, 128, x.dtype, "cuda")

    def run() -> torch.Tensor:
        out = x
        for weight, scale in weights:
            out = cuda.native.skinny_fp8_linear(out, weight, scale)
        for _ in range(3):
            out = cuda.native.skinny_int4_linear(out, matrix.packed, matrix.groups)
        return out

    want = run()
    assert want.isfinite().all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    for _ in range(5):
        got.zero_()
        graph.replay()
        assert torch.equal(got, want)
