"""GEMMs of dozens of rows with weights of 16 bits, against float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, gemm
from tests.kernels.gemm.test_wide_linear import LIMIT, assert_close, randn

SHAPE = pytest.mark.parametrize("shape", gemm.TILED_FEATURES)


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    if not torch.cuda.is_available():
        return
    if not gemm.has_wide(torch.device("cuda")):
        pytest.skip("tiled GEMMs are made for Hopper")
    cuda.load()


@pytest.mark.gpu
@SHAPE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 16, 17, 33, 64, 100, 200])
@pytest.mark.parametrize(("features", "k"), [(16, 64), (176, 320), (6144, 4096), (4096, 14336)])
def test_linear(features: int, k: int, tokens: int, dtype: torch.dtype, shape: int) -> None:
    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = (randn(features, k, dtype=dtype, seed=2) * k**-0.5).to(dtype)
    bias = randn(features, dtype=dtype, seed=3)
    want = x.double() @ weight.double().T + bias.double()
    got = cuda.native.tiled_linear(x, weight, bias, shape=shape)
    assert_close(got, want, LIMIT[dtype])
    gate, up = want.chunk(2, -1)
    out = cuda.native.tiled_linear(x, weight, bias, shape=shape, gated=True)
    assert_close(out, F.silu(gate) * up, 3 * LIMIT[dtype])


@pytest.mark.gpu
@SHAPE
@pytest.mark.parametrize("split", [1, 2, 3, 5, 8])
def test_any_number_of_ctas_may_share_a_sum(split: int, shape: int) -> None:
    x = randn(50, 2048, dtype=torch.bfloat16, seed=1)
    weight = randn(1040, 2048, dtype=torch.bfloat16, seed=2)
    got = cuda.native.tiled_linear(x, weight, shape=shape, split=split)
    assert_close(got, x.double() @ weight.double().T, LIMIT[torch.bfloat16])


@pytest.mark.gpu
@SHAPE
def test_a_chain_is_the_same_every_time(shape: int) -> None:
    """Launched right after one another, so that one begins while the last one ends."""
    up = randn(4096, 1024, dtype=torch.bfloat16, seed=1) * 1024**-0.5
    down = randn(1024, 2048, dtype=torch.bfloat16, seed=2) * 2048**-0.5
    ends = []
    for _ in range(3):
        x = randn(64, 1024, dtype=torch.bfloat16, seed=3)
        for _ in range(6):
            inner = cuda.native.tiled_linear(x, up, gated=True, shape=shape)
            x = F.layer_norm(cuda.native.tiled_linear(inner, down, shape=shape), (1024,))
        ends.append(x)
    assert torch.isfinite(ends[0]).all()
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@pytest.mark.gpu
def test_what_does_not_fit_is_refused() -> None:
    x = randn(20, 128, dtype=torch.bfloat16, seed=1)
    weight = randn(16, 128, dtype=torch.bfloat16, seed=2)
    with pytest.raises(ValueError, match="shape must be one of 256 128, got 192"):
        cuda.native.tiled_linear(x, weight, shape=192)
    with pytest.raises(ValueError, match="split must be 0 to 8 and at most 2, got 3"):
        cuda.native.tiled_linear(x, weight, split=3)
    assert cuda.native.tiled_linear(x[:0], weight).shape == (0, 16)
