"""The products of few tokens without a GPU: the kernels' own source (``emulated``), against float64
products with what their weights mean."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, reference
from tests.kernels import emulated
from tests.kernels.gemm.test_quantized import LIMIT, draw_int4, randn, relative_error
from tests.pairs import every_pair

SOURCES = ("gemm/quantized_gemv.cu", "gemm/quantized_linear.cu", "gemm/skinny_linear.cu")
PLAIN, FP8, INT4 = "skinny_linear", "skinny_fp8_linear", "skinny_int4_linear"
DTYPES = torch.bfloat16, torch.float16
TOKENS = 1, 8, 9, 16
FEATURES = 32, 48, 64
"""Two, three and four CTAs on the only SM of the emulation, each in a form of its own."""


@pytest.fixture(scope="module")
def library() -> Any:
    return emulated.native(SOURCES, threads=512, together=False)


def multiply(
    library: Any,
    x: torch.Tensor,
    *weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stored: str = PLAIN,
    gated: bool = False,
    **options: int,
) -> torch.Tensor:
    """What nobody wrote is NaN."""
    features = len(weight[0]) // (1 + gated)
    out = torch.full((len(x), features), float("nan"), dtype=x.dtype)
    getattr(library, stored)(x, *weight, bias=bias, out=out, gated=gated, **options)
    return out


def gate(out: torch.Tensor) -> torch.Tensor:
    gates, ups = out.chunk(2, -1)
    return F.silu(gates) * ups


@pytest.mark.parametrize(
    ("shape", "warps", "tokens", "dtype"),
    every_pair([(16, 64), (48, 1152)], cuda.SKINNY_WARPS, TOKENS, DTYPES),
)
def test_plain_weights(
    shape: tuple[int, int], warps: int, tokens: int, dtype: torch.dtype, library: Any
) -> None:
    """Rows of x may lie apart, and the last CTA may have features for half its tiles only."""
    features, k = shape
    x = randn(tokens, k + 8, seed=1).to(dtype)[:, :k]
    weight, bias = randn(features, k, seed=2) * k**-0.5, randn(features, seed=3).to(dtype)
    weight = weight.to(dtype)
    want = x.double() @ weight.double().T + bias.double()
    got = multiply(library, x, weight, bias=bias, shape=warps)
    assert relative_error(got, want) < LIMIT[dtype]
    got = multiply(library, x, weight, bias=bias, gated=True, shape=warps)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]


@pytest.mark.parametrize(
    ("k", "features", "tokens", "dtype"), every_pair([64, 192, 2176], FEATURES, TOKENS, DTYPES)
)
def test_fp8_weights(k: int, features: int, tokens: int, dtype: torch.dtype, library: Any) -> None:
    x = randn(tokens, k, seed=1).to(dtype)
    weight, scale = reference.quantize_rows(randn(features, k, seed=2) * k**-0.5)
    bias = randn(features, seed=3).to(dtype)
    want = x.double() @ reference.dequantize_fp8(weight, scale).double().T
    got = multiply(library, x, weight, scale, bias=bias, stored=FP8)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    got = multiply(library, x, weight, scale, stored=FP8, gated=True)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_fp8_number_is_widened_exactly(dtype: torch.dtype, library: Any) -> None:
    numbers = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = torch.where(numbers.float().isnan(), 0.0, numbers.float()).to(torch.float8_e4m3fn)
    one = torch.ones(16, 1)
    for start in range(0, 256, 16):
        x = torch.zeros(16, 256, dtype=dtype)
        x[torch.arange(16), torch.arange(start, start + 16)] = 1
        got = multiply(library, x, numbers.repeat(16, 1), one, stored=FP8)
        want = numbers[start : start + 16].to(dtype)
        assert torch.equal(got, want[:, None].expand(16, 16))


@pytest.mark.parametrize(
    ("blocks", "features", "tokens", "dtype"),
    every_pair([(384, 32, 128), (320, 16, 64)], FEATURES, TOKENS, DTYPES),
)
def test_fp8_weights_in_blocks(
    blocks: tuple[int, int, int],
    features: int,
    tokens: int,
    dtype: torch.dtype,
    library: Any,
) -> None:
    """The last block of a row of blocks may be cut off."""
    k, rows, columns = blocks
    block, x = (rows, columns), randn(tokens, k, seed=1).to(dtype)
    weight = randn(features, k, seed=2).to(torch.float8_e4m3fn)
    scale = randn(-(-features // rows), -(-k // columns), seed=3).abs() * k**-0.5
    want = x.double() @ reference.dequantize_fp8(weight, scale, block).double().T
    product = partial(multiply, stored=FP8, group_size=columns, block_rows=rows)
    assert relative_error(product(library, x, weight, scale), want) < LIMIT[dtype]
    got = product(library, x, weight, scale, gated=True)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]


@pytest.mark.parametrize(
    ("groups", "features", "tokens", "dtype"),
    every_pair([(128, 32), (1152, 384), (2176, 128), (256, 256)], FEATURES, TOKENS, DTYPES),
)
def test_int4_weights(
    groups: tuple[int, int],
    features: int,
    tokens: int,
    dtype: torch.dtype,
    library: Any,
) -> None:
    k, group_size = groups
    x = (randn(tokens, k, seed=1) * k**-0.5).to(dtype)
    matrix, meant = draw_int4(features, k, group_size, dtype)
    bias = randn(features, seed=3).to(dtype)
    want = x.double() @ meant.T
    product = partial(multiply, stored=INT4)
    got = product(library, x, matrix.packed, matrix.groups, bias=bias)
    assert relative_error(got, want + bias.double()) < LIMIT[dtype]
    got = product(library, x, matrix.packed, matrix.groups, gated=True)
    assert relative_error(got, gate(want)) < 3 * LIMIT[dtype]


@pytest.mark.parametrize("stored", [FP8, INT4])
@pytest.mark.parametrize(("features", "k"), [(64, 16512), (16, 32896)])
def test_one_token_with_long_rows(features: int, k: int, stored: str, library: Any) -> None:
    """Of which x fills the shared memory that four CTAs have, or more than one has."""
    x = randn(1, k, seed=1).to(torch.bfloat16)
    if stored == FP8:
        weight, scales = reference.quantize_rows(randn(features, k, seed=2) * k**-0.5)
        meant = reference.dequantize_fp8(weight, scales).double()
    else:
        matrix, meant = draw_int4(features, k, 128, x.dtype)
        weight, scales = matrix.packed, matrix.groups
    got = multiply(library, x, weight, scales, stored=stored)
    assert relative_error(got, x.double() @ meant.T) < LIMIT[x.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", FEATURES)
def test_one_token_reads_every_fp8_number_exactly(
    features: int, dtype: torch.dtype, library: Any
) -> None:
    numbers = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = torch.where(numbers.float().isnan(), 0.0, numbers.float())
    rows = torch.stack([numbers.roll(-16 * feature) for feature in range(features)])
    for column in range(16):
        x = torch.zeros(1, 256, dtype=dtype)
        x[0, column] = 1
        weight = rows.to(torch.float8_e4m3fn)
        got = multiply(library, x, weight, torch.ones(features, 1), stored=FP8)
        assert torch.equal(got[0], rows[:, column].to(dtype))


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("size", [1e-30, 3e-5, 1.0, 7e4, 1e30])
def test_one_token_of_any_size(size: float, features: int, library: Any) -> None:
    """Beyond what float16 holds: the largest element decides what all are scaled by."""
    x = (randn(1, 192, seed=1) * size).to(torch.bfloat16)
    x[0, 7:190] *= 1e-3
    weight, scale = reference.quantize_rows(randn(features, 192, seed=2))
    want = x.double() @ reference.dequantize_fp8(weight, scale).double().T
    got = multiply(library, x, weight, scale, stored=FP8)
    assert relative_error(got, want) < LIMIT[x.dtype]


@pytest.mark.parametrize("features", FEATURES)
def test_one_token_of_zeros_or_what_is_no_number(features: int, library: Any) -> None:
    weight, scale = reference.quantize_rows(randn(features, 192, seed=2))
    for element, want in ((0.0, 0.0), (float("nan"), None), (float("inf"), None)):
        x = torch.zeros(1, 192, dtype=torch.bfloat16)
        x[0, 50] = element
        got = multiply(library, x, weight, scale, stored=FP8)
        if want is None:
            assert not got.isfinite().any()
        else:
            assert torch.equal(got, torch.full_like(got, want))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weight": None}, "weight must be a tensor"),
        ({"weight": ...}, "weight is missing"),
        ({"bias": torch.zeros(15)}, "bias must be bfloat16, got float32"),
        ({"bias": torch.zeros(15).bfloat16()}, r"bias must be H\[features\] where features = 16"),
        ({"x": torch.zeros(2, 64)}, "x must be bfloat16 or float16, got float32"),
        ({"x": torch.zeros(64).bfloat16()}, r"x must be H\[tokens, k\] rows16.* got sizes \[64\]"),
        ({"x": torch.zeros(64, 2).bfloat16().T}, r"got sizes \[2, 64\] and strides \[1, 2\]"),
        ({"x": torch.zeros(2, 72).bfloat16()[:, 4:68]}, "x must start at a multiple of 16 bytes"),
        ({"x": torch.zeros(2, 66).bfloat16()[:, :64]}, "rows of x must be multiples of 16 bytes"),
        ({"x": torch.zeros(2, 128).bfloat16()}, r"weight must be H\[features, k\] 16 where"),
        ({"out": torch.zeros(2, 32).bfloat16()}, r"out must be H\[tokens, features/gated\] where"),
        ({"shape": 5}, "shape must be one of 4 16 8, got 5"),
        ({"shape": "many"}, "shape must be a number"),
        ({"wraps": 8}, "there is no argument wraps"),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], words: str, library: Any) -> None:
    arguments = {"x": torch.zeros(2, 64).bfloat16(), "weight": torch.zeros(16, 64).bfloat16()}
    arguments = {k: v for k, v in (arguments | given).items() if v is not ...}
    with pytest.raises(ValueError, match=f"^skinny_linear: .*{words}"):
        library.skinny_linear(**arguments)


def test_arguments_may_be_passed_by_position_once(library: Any) -> None:
    x, weight = torch.zeros(2, 64).bfloat16(), torch.zeros(16, 64).bfloat16()
    assert library.skinny_linear(x, weight, None, 8, True).shape == (2, 8)
    with pytest.raises(ValueError, match="two values for x"):
        library.skinny_linear(x, weight, x=x)
    with pytest.raises(ValueError, match="at most 5 arguments, got 6"):
        library.skinny_linear(x, weight, None, 8, True, x)


def test_results_are_made_for_any_number_of_rows(library: Any) -> None:
    weight = torch.zeros(16, 64).bfloat16()
    assert library.skinny_linear(torch.zeros(0, 64).bfloat16(), weight).shape == (0, 16)
