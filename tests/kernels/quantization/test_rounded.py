"""Rows rounded to FP8 by the kernels that make them, against rounding what those kernels leave."""

from __future__ import annotations

import pytest
import torch

from kernels import cuda, reference, rounded
from tests.kernels.gemm.test_quantized import randn

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [(1, 64), (300, 288), (7, 4096), (40, 4104), (5, 14336), (2, 16384)]
"""(rows, width)"""


def test_rows_of_whole_vectors_fit_up_to_64_kib() -> None:
    assert rounded.fits(4096, torch.bfloat16)
    assert rounded.fits(32768, torch.bfloat16)
    assert not rounded.fits(32776, torch.bfloat16)
    assert not rounded.fits(100, torch.bfloat16)


def assert_rounded(got: tuple[torch.Tensor, torch.Tensor], made: torch.Tensor) -> None:
    want, scale = reference.quantize_rows(made)
    torch.testing.assert_close(got[1], scale)
    # A quotient between two numbers may go either way.
    assert (got[0].float() == want.float()).float().mean() > 0.999
    torch.testing.assert_close(got[0].float() * got[1], made.float(), rtol=2**-4, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
class TestOnAGpu:
    def test_given_rows(self, rows: int, width: int, dtype: torch.dtype) -> None:
        cuda.load()
        x = randn(rows, 2 * width, seed=1, device="cuda").to(dtype)[:, :width]
        x[0] = 0
        assert_rounded(cuda.native.round_rows(x), x)

    @pytest.mark.parametrize("has_residual", [False, True])
    def test_norms(self, rows: int, width: int, dtype: torch.dtype, has_residual: bool) -> None:
        cuda.load()
        x, weight = (randn(n, width, seed=n, device="cuda").to(dtype) for n in (rows, 1))
        residual = randn(rows, width, seed=9, device="cuda").to(dtype) if has_residual else None
        kept = None if residual is None else residual.clone()
        made = cuda.native.rms_norm(x, weight[0], 1e-5, kept)
        assert_rounded(cuda.native.rms_norm_rounded(x, weight[0], 1e-5, residual), made)
        if residual is not None and kept is not None:
            assert torch.equal(residual, kept)

    def test_gating(self, rows: int, width: int, dtype: torch.dtype) -> None:
        cuda.load()
        x = randn(rows, 2 * width, seed=3, device="cuda").to(dtype)
        assert_rounded(cuda.native.silu_mul_rounded(x), cuda.native.silu_mul(x))


@pytest.mark.gpu
def test_a_row_too_wide_is_refused_by_the_kernel_and_rounded_all_the_same() -> None:
    cuda.load()
    x = randn(2, 40000, seed=1, device="cuda").to(torch.bfloat16)
    with pytest.raises(ValueError, match="at most 64 KiB"):
        cuda.native.round_rows(x)
    made = rounded.quantize(x)
    assert_rounded((made.values, made.scale), x)


@pytest.mark.gpu
def test_rows_between_vectors_are_refused_by_the_kernel_and_rounded_all_the_same() -> None:
    cuda.load()
    x = randn(1, 3 * 64 + 1, seed=1, device="cuda").to(torch.bfloat16)[0, 1:].view(3, 64)
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes"):
        cuda.native.round_rows(x)
    made = rounded.quantize(x)
    assert_rounded((made.values, made.scale), x)


def test_rows_are_aligned_where_each_of_them_is() -> None:
    memory = torch.zeros(4 * 24 + 8, dtype=torch.bfloat16)
    start = -memory.data_ptr() // 2 % 8  # of 16 bytes
    rows = memory[start : start + 4 * 24].view(4, 24)
    assert rounded._is_aligned(rows)
    assert rounded._is_aligned(rows[:, 8:])
    assert not rounded._is_aligned(rows[:, 4:])
    assert not rounded._is_aligned(memory[start : start + 80].view(4, 20))
