"""Activations in FP8, rounded by the kernel that computes them for the GEMM that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from kernels import cuda, ops
from kernels.cuda import native

MAX_ROW_BYTES = 65536
"""The longest row that can be rounded."""


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """A tensor as ``reference.quantize_rows`` rounds it."""

    values: torch.Tensor
    """[rows, width] float8_e4m3fn"""
    scale: torch.Tensor
    """[rows, 1] float32"""
    dtype: torch.dtype
    """The dtype of the tensor, and of GEMMs with it."""

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


Activations: TypeAlias = torch.Tensor | RoundedRows
"""The input of a linear layer. It is rounded only for a layer that asks for that."""


def fits(width: int, dtype: torch.dtype) -> bool:
    """Whether the kernels below can round rows of this width."""
    num_bytes = width * dtype.itemsize
    return num_bytes % 16 == 0 and num_bytes <= MAX_ROW_BYTES


def quantize(x: torch.Tensor) -> RoundedRows:
    """Round x: [rows, width], by the fastest kernel that serves it."""
    if x.dtype in cuda.FLOATS and fits(x.shape[1], x.dtype) and _is_aligned(x):
        values, scale = native.round_rows(x if x.stride(1) == 1 else x.contiguous())
    else:
        values, scale = ops.quantize_rows(x)
    return RoundedRows(values, scale, x.dtype)


def _is_aligned(x: torch.Tensor) -> bool:
    """Whether each row starts where 16 bytes can be read."""
    return x.stride(0) * x.itemsize % 16 == 0 and x.data_ptr() % 16 == 0


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> RoundedRows:
    """``ops.rms_norm``, rounded; x: [rows, width] of a width that ``fits``."""
    values, scale = native.rms_norm_rounded(x, weight, eps, residual)
    return RoundedRows(values, scale, x.dtype)


def silu_mul(x: torch.Tensor) -> RoundedRows:
    """``ops.silu_mul``, rounded; x: [rows, 2 * width] of a width that ``fits``."""
    values, scale = native.silu_mul_rounded(x)
    return RoundedRows(values, scale, x.dtype)
