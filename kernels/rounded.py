"""Activations in FP8, rounded by the kernels that make them for the products that read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from kernels import cuda, cuda_quantized, ops


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """What ``reference.quantize_rows`` makes of a tensor."""

    values: torch.Tensor
    """[rows, width] float8_e4m3fn"""
    scale: torch.Tensor
    """[rows, 1] float32"""
    dtype: torch.dtype
    """Of the tensor, and of products."""

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


Activations: TypeAlias = torch.Tensor | RoundedRows


def fits(width: int, dtype: torch.dtype) -> bool:
    """Whether rows of such a width can be rounded by what makes them."""
    num_bytes = width * dtype.itemsize
    return num_bytes % 16 == 0 and num_bytes <= cuda_quantized.MAX_ROW_BYTES


def quantize(x: torch.Tensor) -> RoundedRows:
    """x: [rows, width]"""
    if x.dtype in cuda.FLOATS and fits(x.shape[1], x.dtype) and _is_aligned(x):
        return RoundedRows(*cuda_quantized.round_rows(x), x.dtype)
    return RoundedRows(*ops.quantize_rows(x), x.dtype)


def _is_aligned(x: torch.Tensor) -> bool:
    """Whether each row starts where 16 bytes can be read."""
    return x.stride(0) * x.itemsize % 16 == 0 and x.data_ptr() % 16 == 0


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> RoundedRows:
    """``ops.rms_norm``, rounded; x: [rows, width] of a width that ``fits``."""
    return RoundedRows(*cuda_quantized.rms_norm_rounded(x, weight, eps, residual), x.dtype)


def silu_mul(x: torch.Tensor) -> RoundedRows:
    """``ops.silu_mul``, rounded; x: [rows, 2 * width] of a width that ``fits``."""
    return RoundedRows(*cuda_quantized.silu_mul_rounded(x), x.dtype)
