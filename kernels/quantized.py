"""Products with quantized weights on a GPU.

Few rows go through our own kernels, which read the weights as they are stored and compute in 16
bits; more rows through the library's, in FP8 or with dequantized weights, or Triton's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kernels import cuda, ops, reference

_NIBBLE_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours is in each nibble of a word, from the lowest."""


def serves(tensor: torch.Tensor) -> bool:
    """Whether there are products for weights where ``tensor`` is."""
    return tensor.is_cuda


def fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    round_x: bool = True,
) -> torch.Tensor:
    """``x @ (weight * scale).T + bias``.

    x: [rows, k]; weight: [features, k] float8_e4m3fn; scale: [features, 1] float32. round_x: many
    rows may be rounded to FP8, each scaled by its largest element.
    """
    if _is_skinny(x, weight.shape[0], x.shape[1], 64):
        return cuda.skinny_fp8_linear(x, weight, scale, bias)
    if round_x and _multiplies_fp8(x.device) and weight.shape[0] % 16 == 0 == x.shape[1] % 16:
        return _scaled_product(x, weight, scale, bias)
    return F.linear(x, (weight.float() * scale).to(x.dtype), bias)


def fp8_gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    round_x: bool = True,
) -> torch.Tensor:
    """``silu_mul`` of ``fp8_linear``: the features are [gate | up]."""
    if _is_skinny(x, weight.shape[0], x.shape[1], 64):
        return cuda.skinny_fp8_linear(x, weight, scale, bias, gated=True)
    return ops.silu_mul(fp8_linear(x, weight, scale, bias, round_x=round_x))


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    packed: torch.Tensor
    """[features, k / 8] int32, see ``reference.dequantize_int4``."""
    groups: torch.Tensor
    """[features, num_groups, 2] of the activations' dtype: scale, zero."""
    order: torch.Tensor | None = None
    """[k] int64: which of the inputs each column is for; None: its own."""

    @classmethod
    def of(
        cls,
        nibbles: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        order: torch.Tensor | None,
    ) -> Int4Matrix:
        """nibbles: [features, k] uint8; scales, zeros: [features, num_groups]."""
        packed = torch.zeros(
            len(nibbles), nibbles.shape[1] // 8, dtype=torch.int32, device=nibbles.device
        )
        eights = nibbles.reshape(len(nibbles), -1, 8)
        for nibble, neighbour in enumerate(_NIBBLE_ORDER):
            packed |= eights[..., neighbour].to(torch.int32) << 4 * nibble
        groups = torch.stack((scales, zeros.to(scales.dtype)), -1).contiguous()
        return cls(packed, groups, order)

    def dequantize(self) -> torch.Tensor:
        """[features, k] of the activations' dtype, the inputs in their own order."""
        weight = reference.dequantize_int4(self.packed, self.groups)
        return weight if self.order is None else weight[:, self.order.argsort()]


def int4_linear(x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None) -> torch.Tensor:
    """``ops.linear_int4`` plus ``bias``; x: [rows, k]."""
    x = _ordered(x, matrix)
    if _serves_int4(x, matrix):
        return cuda.skinny_int4_linear(x, matrix.packed, matrix.groups, bias)
    out = ops.linear_int4(x, matrix.packed, matrix.groups)
    return out if bias is None else out.add_(bias)


def int4_gated_linear(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None
) -> torch.Tensor:
    """``silu_mul`` of ``int4_linear``: the features are [gate | up]."""
    if _serves_int4(x, matrix):
        x = _ordered(x, matrix)
        return cuda.skinny_int4_linear(x, matrix.packed, matrix.groups, bias, gated=True)
    return ops.silu_mul(int4_linear(x, matrix, bias))


def _ordered(x: torch.Tensor, matrix: Int4Matrix) -> torch.Tensor:
    return x if matrix.order is None else x.index_select(1, matrix.order)


def _serves_int4(x: torch.Tensor, matrix: Int4Matrix) -> bool:
    features, num_groups, _ = matrix.groups.shape
    whole = x.shape[1] // num_groups % 32 == 0
    return whole and _is_skinny(x, features, x.shape[1], 128)


def _is_skinny(x: torch.Tensor, features: int, k: int, k_multiple: int) -> bool:
    return (
        x.shape[0] <= cuda.MAX_SKINNY_TOKENS
        and x.dtype in cuda.DECODE_DTYPES
        and features % 16 == 0 == k % k_multiple
        and cuda.available()
    )


@functools.cache
def _multiplies_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _scaled_product(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    rounded, x_scale = ops.quantize_rows(x)
    if x.dtype == torch.bfloat16:
        out: torch.Tensor = torch._scaled_mm(
            rounded,
            weight.T,
            scale_a=x_scale,
            scale_b=scale.T,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return out if bias is None else out.add_(bias)
    # Scales by row exist for bfloat16 only.
    one = torch.ones((), device=x.device)
    wide = torch._scaled_mm(
        rounded, weight.T, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=True
    )
    wide.mul_(x_scale).mul_(scale.T)
    return (wide if bias is None else wide.add_(bias)).to(x.dtype)
