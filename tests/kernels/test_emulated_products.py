"""The products of few tokens without a GPU: the kernels' own source (``emulated``), against float64
products with what their weights mean."""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from kernels import reference
from tests.kernels import emulated
from tests.kernels.test_quantized import LIMIT, draw_int4, randn, relative_error

KERNELS = (
    *("quantized_linear.cu", "skinny_linear.cu"),
    *("quantized_linear.cuh", "skinny_linear.cuh", "skinny_output.cuh", "widen.cuh"),
)
POINTERS = ("out", "x", "weight", "scales", "bias")
INTS = (
    *("tokens", "features", "k", "x_stride", "group_size", "block_rows"),
    *("gated", "bf16", "format"),
)
PLAIN, FP8, INT4 = range(3)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
TOKENS = pytest.mark.parametrize("tokens", [1, 8, 9, 16])


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int) for name in INTS),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("products")
    return emulated.library(folder, "products", KERNELS, threads=256)


def multiply(
    library: ctypes.CDLL,
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    stored: int = PLAIN,
    group_size: int = 0,
    block_rows: int = 0,
    gated: bool = False,
) -> torch.Tensor:
    """What nobody wrote is NaN."""
    (tokens, k), features = x.shape, weight.shape[0]
    out = torch.full((tokens, features // (1 + gated)), float("nan"), dtype=x.dtype)
    tensors = {"out": out, "x": x, "weight": weight, "scales": scales, "bias": bias}
    call = Call(
        **{name: None if t is None else t.data_ptr() for name, t in tensors.items()},
        tokens=tokens,
        features=features,
        k=k,
        x_stride=x.stride(0),
        group_size=group_size,
        block_rows=block_rows,
        gated=gated,
        bf16=x.dtype == torch.bfloat16,
        format=stored,
    )
    assert library.multiply(ctypes.byref(call)) == 0
    return out


def gate(out: torch.Tensor) -> torch.Tensor:
    gates, ups = out.chunk(2, -1)
    return F.silu(gates) * ups


@DTYPES
@TOKENS
@pytest.mark.parametrize("k", [64, 1152])
def test_plain_weights(k: int, tokens: int, dtype: torch.dtype, library: ctypes.CDLL) -> None:
    """Rows of x may lie apart from each other."""
    x = randn(tokens, k + 8, seed=1).to(dtype)[:, :k]
    weight, bias = (randn(32, k, seed=2) * k**-0.5).to(dtype), randn(32, seed=3).to(dtype)
    want = x.double() @ weight.double().T
    got = multiply(library, x, weight, bias=bias)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    assert relative_error(multiply(library, x, weight, gated=True), gate(want)) < 3 * LIMIT[dtype]


@DTYPES
@TOKENS
@pytest.mark.parametrize("k", [64, 192, 2176])
def test_fp8_weights(k: int, tokens: int, dtype: torch.dtype, library: ctypes.CDLL) -> None:
    x = randn(tokens, k, seed=1).to(dtype)
    weight, scale = reference.quantize_rows(randn(32, k, seed=2) * k**-0.5)
    bias = randn(32, seed=3).to(dtype)
    want = x.double() @ reference.dequantize_fp8(weight, scale).double().T
    got = multiply(library, x, weight, scale, bias, stored=FP8)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    got = multiply(library, x, weight, scale, stored=FP8, gated=True)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_fp8_number_is_widened_exactly(dtype: torch.dtype, library: ctypes.CDLL) -> None:
    numbers = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = torch.where(numbers.float().isnan(), 0.0, numbers.float()).to(torch.float8_e4m3fn)
    one = torch.ones(16, 1)
    for start in range(0, 256, 16):
        x = torch.zeros(16, 256, dtype=dtype)
        x[torch.arange(16), torch.arange(start, start + 16)] = 1
        got = multiply(library, x, numbers.repeat(16, 1), one, stored=FP8)
        want = numbers[start : start + 16].to(dtype)
        assert torch.equal(got, want[:, None].expand(16, 16))


@DTYPES
@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(("features", "k", "block"), [(48, 384, (32, 128)), (32, 320, (16, 64))])
def test_fp8_weights_in_blocks(
    features: int,
    k: int,
    block: tuple[int, int],
    tokens: int,
    dtype: torch.dtype,
    library: ctypes.CDLL,
) -> None:
    """The last block of a row of blocks may be cut off."""
    (rows, columns), x = block, randn(tokens, k, seed=1).to(dtype)
    weight = randn(features, k, seed=2).to(torch.float8_e4m3fn)
    scale = randn(-(-features // rows), -(-k // columns), seed=3).abs() * k**-0.5
    want = x.double() @ reference.dequantize_fp8(weight, scale, block).double().T
    product = partial(multiply, stored=FP8, group_size=columns, block_rows=rows)
    assert relative_error(product(library, x, weight, scale), want) < LIMIT[dtype]
    got = product(library, x, weight, scale, gated=True)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]


@DTYPES
@TOKENS
@pytest.mark.parametrize(("k", "group_size"), [(128, 32), (1152, 384), (2176, 128), (256, 256)])
def test_int4_weights(
    k: int, group_size: int, tokens: int, dtype: torch.dtype, library: ctypes.CDLL
) -> None:
    x = (randn(tokens, k, seed=1) * k**-0.5).to(dtype)
    matrix, meant = draw_int4(32, k, group_size, dtype)
    bias = randn(32, seed=3).to(dtype)
    want = x.double() @ meant.T
    product = partial(multiply, stored=INT4, group_size=group_size)
    got = product(library, x, matrix.packed, matrix.groups, bias)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    got = product(library, x, matrix.packed, matrix.groups, gated=True)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]
