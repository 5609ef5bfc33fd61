"""GEMMs of few rows against float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda

pytestmark = pytest.mark.gpu
WARPS = pytest.mark.parametrize("warps", cuda.SKINNY_WARPS)
LIMIT = {torch.bfloat16: 4e-3, torch.float16: 5e-4}


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    cuda.load()


def randn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=gen, device="cuda").to(dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    assert error < limit, f"relative error {error:.2e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 16])
@WARPS
@pytest.mark.parametrize(
    ("features", "k"), [(16, 64), (48, 192), (4096, 4096), (6144, 4096), (4096, 14336)]
)
def test_linear(features: int, k: int, warps: int, tokens: int, dtype: torch.dtype) -> None:
    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = randn(features, k, dtype=dtype, seed=2)
    bias = randn(features, dtype=dtype, seed=3)
    want = x.double() @ weight.double().T
    assert_close(cuda.native.skinny_linear(x, weight, shape=warps), want, LIMIT[dtype])
    got = cuda.native.skinny_linear(x, weight, bias, shape=warps)
    assert_close(got, want + bias.double(), LIMIT[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 5, 16])
@WARPS
@pytest.mark.parametrize(("features", "k"), [(16, 64), (176, 256), (28672, 4096)])
def test_gated(features: int, k: int, warps: int, tokens: int, dtype: torch.dtype) -> None:
    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = randn(features, k, dtype=dtype, seed=2) * k**-0.5
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    out = cuda.native.skinny_linear(x, weight, gated=True, shape=warps)
    assert_close(out, F.silu(gate) * up, 3 * LIMIT[dtype])


def test_strided_rows_and_what_lies_between_them() -> None:
    both = randn(8, 256, dtype=torch.bfloat16, seed=1)
    both[:, 128:] = float("nan")
    weight = randn(32, 128, dtype=torch.bfloat16, seed=2)
    want = both[:, :128].double() @ weight.double().T
    assert_close(cuda.native.skinny_linear(both[:, :128], weight), want, LIMIT[torch.bfloat16])


@WARPS
def test_a_row_does_not_depend_on_its_neighbours(warps: int) -> None:
    x = randn(16, 4096, dtype=torch.bfloat16, seed=1)
    weight = randn(4096, 4096, dtype=torch.bfloat16, seed=2)
    whole = cuda.native.skinny_linear(x, weight, shape=warps)
    for rows in (1, 3, 8, 11):
        assert torch.equal(cuda.native.skinny_linear(x[:rows], weight, shape=warps), whole[:rows])


def test_what_starts_between_vectors_is_refused() -> None:
    """Views may; in a kernel they would be the end of the process."""
    x, weight = (torch.zeros(16 * 64 + 1, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    aligned, shifted = x[:-1].view(16, 64), x[1:].view(16, 64)
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes"):
        cuda.native.skinny_linear(shifted, weight[:-1].view(16, 64))
    with pytest.raises(ValueError, match="weight must start at a multiple of 16 bytes"):
        cuda.native.skinny_linear(aligned, weight[1:].view(16, 64))


def test_other_numbers_of_warps_are_refused() -> None:
    x, weight = (torch.zeros(16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(ValueError, match="shape must be one of 4 16 8, got 5"):
        cuda.native.skinny_linear(x, weight, shape=5)
