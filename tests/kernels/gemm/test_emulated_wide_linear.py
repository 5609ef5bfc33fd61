"""The wide GEMM's own source without a GPU (``emulated``), cluster after cluster, against
float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernels import gemm
from tests.kernels import emulated
from tests.pairs import each_value

SOURCES = ("gemm/wide_linear.cu",)
BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def library() -> Any:
    return emulated.native(SOURCES, threads=512, ctas=2)


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def multiply(
    gemm_op: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    **options: int,
) -> torch.Tensor:
    """What nobody wrote is NaN; rows around the result, which nobody may write, are checked."""
    features, tokens = len(weight), len(x)
    around = torch.full((tokens + 2, features // 2 if gated else features), float("nan")).to(BF16)
    out = around[1:-1]
    gemm_op(x, weight, bias, out=out, gated=gated, **options)
    assert around[0].isnan().all()
    assert around[-1].isnan().all()
    return out


def assert_close(got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    assert error < limit, f"relative error {error:.2e}"


@pytest.mark.parametrize(
    ("shape", "width"),
    each_value(
        [
            (1, 16),
            (64, 560),
            (100, 304),
            (129, 560),
            (256, 272),
            (300, 48),
            (1200, 288),
            (2200, 272),
        ],
        gemm.WIDE_WIDTHS,
    ),
)
def test_linear(library: Any, shape: tuple[int, int], width: int) -> None:
    """Pairs that share the weight and pairs that share the tokens; more tiles than pairs; tiles of
    192 tokens."""
    tokens, features = shape
    x, weight = randn(tokens, 192, seed=1), randn(features, 192, seed=2)
    bias = randn(features, seed=3)
    out = multiply(library.wide_linear, x, weight, bias, shape=width)
    assert_close(out, x.double() @ weight.double().T + bias.double(), 4e-3)


@pytest.mark.parametrize(
    ("shape", "width"),
    each_value([(40, 176), (70, 176), (256, 608), (1100, 240)], gemm.WIDE_WIDTHS),
)
def test_gated(library: Any, shape: tuple[int, int], width: int) -> None:
    tokens, features = shape
    x, weight = randn(tokens, 128, seed=1), randn(features, 128, seed=2) * 0.1
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    out = multiply(library.wide_linear, x, weight, gated=True, shape=width)
    assert_close(out, F.silu(gate) * up, 12e-3)


def test_strided_rows_and_what_lies_between_them(library: Any) -> None:
    both = randn(140, 256, seed=1)
    both[:, 128:] = float("nan")
    weight = randn(48, 128, seed=2)
    want = both[:, :128].double() @ weight.double().T
    assert_close(multiply(library.wide_linear, both[:, :128], weight), want, 4e-3)
