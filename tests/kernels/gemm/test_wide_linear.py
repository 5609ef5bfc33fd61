"""Gemms of many rows with tiles that gate, against float64 and against the library's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, gemm, ops

LIMIT = {torch.bfloat16: 4e-3, torch.float16: 5e-4}
SHAPES = [(16, 64), (48, 192), (512, 256), (1184, 320), (4096, 4096)]
GATED = [(32, 64), (176, 128), (1184, 320), (28672, 4096)]
TOKENS = [1, 64, 100, 128, 129, 256, 300, 1100, 2700]


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    if not torch.cuda.is_available():
        return
    if not gemm.has_wide(torch.device("cuda")):
        pytest.skip("wide products are made for Hopper")
    cuda.load()


def randn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=gen, device="cuda").to(dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    assert error < limit, f"relative error {error:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("width", gemm.WIDE_WIDTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("features", "k"), SHAPES)
def test_linear(features: int, k: int, tokens: int, dtype: torch.dtype, width: int) -> None:
    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = randn(features, k, dtype=dtype, seed=2)
    bias = randn(features, dtype=dtype, seed=3)
    want = x.double() @ weight.double().T
    plain = cuda.native.wide_linear(x, weight, shape=width)
    assert_close(plain, want, LIMIT[dtype])
    with_bias = cuda.native.wide_linear(x, weight, bias, shape=width)
    assert_close(with_bias, want + bias.double(), LIMIT[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("width", gemm.WIDE_WIDTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("features", "k"), GATED)
def test_gated(features: int, k: int, tokens: int, dtype: torch.dtype, width: int) -> None:
    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = (randn(features, k, dtype=dtype, seed=2) * k**-0.5).to(dtype)
    bias = randn(features, dtype=dtype, seed=3)
    gate, up = (x.double() @ weight.double().T + bias.double()).chunk(2, -1)
    out = cuda.native.wide_linear(x, weight, bias, gated=True, shape=width)
    assert_close(out, F.silu(gate) * up, 3 * LIMIT[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("width", gemm.WIDE_WIDTHS)
def test_gating_rounds_where_the_kernel_of_its_own_does(width: int) -> None:
    cuda.register()
    x = randn(300, 512, dtype=torch.bfloat16, seed=1)
    weight = randn(1024, 512, dtype=torch.bfloat16, seed=2)
    apart = ops.silu_mul(cuda.native.wide_linear(x, weight, shape=width))
    gated = cuda.native.wide_linear(x, weight, gated=True, shape=width)
    assert torch.equal(gated, apart)


@pytest.mark.gpu
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [100, 200, 900])
def test_nothing_is_read_or_written_beside_the_rows(tokens: int, gated: bool) -> None:
    both = randn(tokens, 256, dtype=torch.bfloat16, seed=1)
    both[:, 128:] = float("nan")
    x = both[:, :128]
    weight = randn(368, 128, dtype=torch.bfloat16, seed=2)
    outputs = 184 if gated else 368
    around = torch.full((tokens + 2, outputs), float("nan"), device="cuda", dtype=torch.bfloat16)
    cuda.native.wide_linear(x, weight, out=around[1:-1], gated=gated, shape=224)
    want = x.double() @ weight.double().T
    if gated:
        gate, up = want.chunk(2, -1)
        want = F.silu(gate) * up
    assert_close(around[1:-1], want, 3 * LIMIT[torch.bfloat16])
    assert around[0].isnan().all()
    assert around[-1].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("width", gemm.WIDE_WIDTHS)
def test_a_row_does_not_depend_on_its_neighbours(width: int) -> None:
    x = randn(700, 1024, dtype=torch.bfloat16, seed=1)
    weight = randn(2048, 1024, dtype=torch.bfloat16, seed=2)
    whole = cuda.native.wide_linear(x, weight, shape=width)
    for rows in (1, 70, 128, 200, 512):
        some = cuda.native.wide_linear(x[:rows], weight, shape=width)
        assert torch.equal(some, whole[:rows])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [64, 256, 2048])
def test_a_chain_is_the_same_every_time(tokens: int) -> None:
    """Launched right after one another, so that one begins while the last one ends."""
    up = randn(4096, 1024, dtype=torch.bfloat16, seed=1) * 1024**-0.5
    down = randn(1024, 2048, dtype=torch.bfloat16, seed=2) * 2048**-0.5
    ends = []
    for _ in range(3):
        x = randn(tokens, 1024, dtype=torch.bfloat16, seed=3)
        for width in gemm.WIDE_WIDTHS * 2:
            inner = cuda.native.wide_linear(x, up, gated=True, shape=width)
            down_made = cuda.native.wide_linear(inner, down, shape=width)
            x = F.layer_norm(down_made, (1024,))
        ends.append(x)
    assert torch.isfinite(ends[0]).all()
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@pytest.mark.gpu
def test_no_rows_are_no_work() -> None:
    x = randn(0, 64, dtype=torch.bfloat16, seed=1)
    assert cuda.native.wide_linear(x, randn(32, 64, dtype=torch.bfloat16, seed=2)).shape == (0, 32)


@pytest.mark.gpu
def test_what_does_not_fit_is_refused() -> None:
    x, weight = (
        randn(20, 128, dtype=torch.bfloat16, seed=1),
        randn(16, 64, dtype=torch.bfloat16, seed=2),
    )
    with pytest.raises(ValueError, match="shape must be one of 192 224 256, got 128"):
        cuda.native.wide_linear(x[:, :64], weight, shape=128)
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes"):
        cuda.native.wide_linear(x[:, 4:68], weight)
    with pytest.raises(ValueError, match="features must be a multiple of 16 and k of 64"):
        cuda.native.wide_linear(x[:, :64], weight[:8])
    with pytest.raises(ValueError, match="bias must be"):
        cuda.native.wide_linear(x[:, :64], weight, weight[0])


def test_rows_that_the_copy_engine_cannot_read_are_known() -> None:
    x = torch.zeros(4, 128, dtype=torch.bfloat16)
    assert gemm.takes(x)
    assert gemm.takes(x[:, 64:])
    assert not gemm.takes(x[:, 4:68]), "not at a multiple of 16 bytes"
    assert not gemm.takes(x.T), "columns"
    assert not gemm.takes(torch.zeros(4, 100, dtype=torch.bfloat16)), "rows apart by 200 bytes"
    assert not gemm.takes(x[None]), "no matrix"


def test_a_cpu_has_no_wide_products() -> None:
    assert not gemm.has_wide(torch.device("cpu"))


def test_how_full_square_tiles_are() -> None:
    filled = gemm.square_tiles_filled
    assert filled(384 * 66, 192, 132) == 1
    assert filled(384 * 67, 192, 132) == pytest.approx(67 / 132), "one pair has two"
    assert filled(384 * 65 + 1, 192, 132) == pytest.approx((384 * 65 + 1) / (384 * 66))
    assert filled(384 * 66, 96, 132) == 0.5
