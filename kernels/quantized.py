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
_COLUMNS = 128
"""Of a block of FP8 weights that share a scale."""
_FEW_ROWS = 64
"""Up to so many, Triton's product with FP8 weights is faster than the library's."""


def serves(tensor: torch.Tensor) -> bool:
    """Whether there are products for weights where ``tensor`` is."""
    return tensor.is_cuda


def serves_fp8_blocks(weight: torch.Tensor, block: tuple[int, int]) -> bool:
    """Whether there are products for weights of this layout where ``weight`` is."""
    return serves(weight) and block[1] == _COLUMNS and weight.shape[1] % _COLUMNS == 0


def fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    block: tuple[int, int] | None = None,
    round_x: bool = True,
) -> torch.Tensor:
    """``x @ reference.dequantize_fp8(weight, scale, block).T + bias``; x: [rows, k].

    With blocks of a layout that is served. round_x: more rows than a few may be rounded to FP8.
    """
    (rows, k), features = x.shape, weight.shape[0]
    if _is_skinny(x, features, k, 64):
        return cuda.skinny_fp8_linear(x, weight, scale, bias, block=block)
    scaled = round_x and block is None and features % 16 == 0 == k % 16
    if scaled and rows > _FEW_ROWS and _multiplies_fp8(x.device):
        return _scaled_product(x, weight, scale, bias)
    if k % _COLUMNS == 0:
        out = ops.linear_fp8(x, weight, scale, block, round_x=round_x)
        return out if bias is None else out.add_(bias)
    return F.linear(x, reference.dequantize_fp8(weight, scale).to(x.dtype), bias)


def fp8_gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    block: tuple[int, int] | None = None,
    round_x: bool = True,
) -> torch.Tensor:
    """``silu_mul`` of ``fp8_linear``: the features are [gate | up]."""
    if _is_skinny(x, weight.shape[0], x.shape[1], 64):
        return cuda.skinny_fp8_linear(x, weight, scale, bias, gated=True, block=block)
    return ops.silu_mul(fp8_linear(x, weight, scale, bias, block=block, round_x=round_x))


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
        return _skinny_int4(x, matrix, bias)
    out = ops.linear_int4(x, matrix.packed, matrix.groups)
    return out if bias is None else out.add_(bias)


def int4_gated_linear(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None
) -> torch.Tensor:
    """``silu_mul`` of ``int4_linear``: the features are [gate | up]."""
    if _serves_int4(x, matrix):
        return _skinny_int4(_ordered(x, matrix), matrix, bias, gated=True)
    return ops.silu_mul(int4_linear(x, matrix, bias))


def _ordered(x: torch.Tensor, matrix: Int4Matrix) -> torch.Tensor:
    return x if matrix.order is None else x.index_select(1, matrix.order)


def _skinny_int4(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None, *, gated: bool = False
) -> torch.Tensor:
    made = [
        cuda.skinny_int4_linear(part, matrix.packed, matrix.groups, bias, gated=gated)
        for part in torch.split(x, cuda.MAX_SKINNY_TOKENS)
    ]
    return made[0] if len(made) == 1 else torch.cat(made)


def _serves_int4(x: torch.Tensor, matrix: Int4Matrix) -> bool:
    features, num_groups, _ = matrix.groups.shape
    whole = x.shape[1] // num_groups % 32 == 0
    # Reading four bits twice takes less time than widening them all once.
    return whole and _is_skinny(x, features, x.shape[1], 128, 2 * cuda.MAX_SKINNY_TOKENS)


def _is_skinny(
    x: torch.Tensor,
    features: int,
    k: int,
    k_multiple: int,
    max_rows: int = cuda.MAX_SKINNY_TOKENS,
) -> bool:
    return (
        0 < x.shape[0] <= max_rows
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
