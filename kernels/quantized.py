"""GEMMs with quantized weights on a GPU.

Few rows (decode steps) go through our *skinny* kernels, which read the weights as they are stored
and compute in 16 bits. Some dozens to hundreds of rows go through our *tiled* kernels on Hopper;
with FP8 weights, these round x to FP8. More rows go through the library's GEMMs, in FP8 or with
dequantized weights. Triton's kernels serve the remaining cases."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kernels import cuda, ops, reference, rounded
from kernels.cuda import native
from kernels.rounded import Activations, RoundedRows

INT4_INPUTS = 32
"""Inputs whose INT4 weights are packed together, into four words; see
``reference.dequantize_int4``."""
_COLUMNS = 128
"""Columns of a block of FP8 weights that share a scale."""
_FEW_ROWS = 64
"""Up to this many rows, Triton's FP8 GEMM is faster than the library's."""
_TILED_FP8_ROWS = 128
"""Up to this many rows, our tiled FP8 GEMM is the fastest."""
_TILED_BLOCKS_ROWS = 128
"""The same for weights with a scale for each block."""
_SKINNY_INT4_ROWS = 8
"""Up to this many rows, the skinny INT4 GEMM is faster than the tiled one."""
_TILED_INT4_ROWS = 2048
"""Up to this many rows, the tiled INT4 GEMM is the fastest. For more, it pays to dequantize the
weights once, before the library's GEMM."""


def serves(tensor: torch.Tensor) -> bool:
    """Whether there are GEMMs for weights where ``tensor`` is."""
    return tensor.is_cuda


def serves_fp8_blocks(weight: torch.Tensor, block: tuple[int, int]) -> bool:
    """Whether there are GEMMs for weights of this layout where ``weight`` is."""
    return serves(weight) and block[1] == _COLUMNS and weight.shape[1] % _COLUMNS == 0


def rounds(rows: int, weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether ``fp8_linear`` rounds x to FP8, if allowed, for this number of rows. dtype: of x."""
    features, k = weight.shape
    if rows <= cuda.MAX_SKINNY_TOKENS or not cuda.available():
        return False
    if _is_tiled(rows, weight, dtype, _TILED_FP8_ROWS):
        return True
    return rows > _FEW_ROWS and features % 16 == 0 == k % 16 and _multiplies_fp8(weight.device)


def fp8_linear(
    x: Activations,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    block: tuple[int, int] | None = None,
    round_x: bool = True,
) -> torch.Tensor:
    """``x @ reference.dequantize_fp8(weight, scale, block).T + bias``; x: [rows, k].

    block: of a layout that is served. round_x: allows rounding x to FP8, if there are more than a
    few rows. x may be rounded already if ``rounds`` is True.
    """
    if isinstance(x, torch.Tensor):
        (rows, k), features = x.shape, weight.shape[0]
        if _is_served(rows, features, k, x.dtype, 64):
            return _skinny_fp8(x, weight, scale, bias, block)
        if block is not None and round_x and _is_tiled(rows, weight, x.dtype, _TILED_BLOCKS_ROWS):
            return _tiled_blocks(x, weight, scale, bias, block[0])
        if not round_x or block is not None or not rounds(rows, weight, x.dtype):
            return _widening_linear(x, weight, scale, bias, block, round_x=round_x)
        x = rounded.quantize(x)
    if _is_tiled(x.shape[0], weight, x.dtype, _TILED_FP8_ROWS):
        return _tiled_fp8(x, weight, scale, bias)
    return _scaled_linear(x, weight, scale, bias)


def fp8_gated_linear(
    x: Activations,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    block: tuple[int, int] | None = None,
    round_x: bool = True,
    round_out: bool = False,
) -> Activations:
    """``silu_mul`` of ``fp8_linear``: the features are [gate | up].

    round_out: allows a rounded result, where that takes no additional kernel.
    """
    rows, k = x.shape
    if isinstance(x, torch.Tensor) and _is_served(rows, weight.shape[0], k, x.dtype, 64):
        return _skinny_fp8(x, weight, scale, bias, block, gated=True)
    if block is None and round_x and _is_tiled(rows, weight, x.dtype, _TILED_FP8_ROWS):
        x = rounded.quantize(x) if isinstance(x, torch.Tensor) else x
        return _tiled_fp8(x, weight, scale, bias, gated=True)
    if block is not None and round_x and _is_tiled(rows, weight, x.dtype, _TILED_BLOCKS_ROWS):
        assert isinstance(x, torch.Tensor), "rounded by rows for a GEMM with blocks"
        return _tiled_blocks(x, weight, scale, bias, block[0], gated=True)
    out = fp8_linear(x, weight, scale, bias, block=block, round_x=round_x)
    return rounded.silu_mul(out) if round_out else ops.silu_mul(out)


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """An INT4 weight in the form that the kernels read."""

    packed: torch.Tensor
    """[features, k / 8] int32, see ``reference.dequantize_int4``."""
    groups: torch.Tensor
    """[features, num_groups, 2] of the activations' dtype: scale, zero."""
    order: torch.Tensor | None = None
    """[k] int64: the input that each column belongs to (GPTQ's desc_act); None: in their order."""

    @classmethod
    def of(
        cls,
        nibbles: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        order: torch.Tensor | None,
    ) -> Int4Matrix:
        """nibbles: [features, k] uint8 below 16, k a multiple of ``INT4_INPUTS``; scales, zeros:
        [features, num_groups]; order: as the field."""
        features, k = nibbles.shape
        packed = torch.zeros(features, k // 8, dtype=torch.int32, device=nibbles.device)
        pairs = nibbles.reshape(features, -1, 4, 4, 2)  # by block, eight of it, word, half
        words = packed.view(features, -1, 4)
        for eight in range(4):
            for half in range(2):
                shift = 16 * half + 4 * eight
                words |= pairs[:, :, eight, :, half].to(torch.int32) << shift
        groups = torch.stack((scales, zeros.to(scales.dtype)), -1).contiguous()
        return cls(packed, groups, order)

    def dequantize(self) -> torch.Tensor:
        """[features, k] of the activations' dtype, the inputs in their own order."""
        weight = reference.dequantize_int4(self.packed, self.groups)
        return weight if self.order is None else weight[:, self.order.argsort()]


def int4_linear(x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None) -> torch.Tensor:
    """``ops.linear_int4`` plus ``bias``; x: [rows, k]."""
    return _int4(x, matrix, bias, gated=False)


def int4_gated_linear(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None
) -> torch.Tensor:
    """``silu_mul`` of ``int4_linear``: the features are [gate | up]."""
    return _int4(x, matrix, bias, gated=True)


def _int4(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None, *, gated: bool
) -> torch.Tensor:
    x = x if matrix.order is None else x.index_select(1, matrix.order)
    features, num_groups, _ = matrix.groups.shape
    (rows, k), weight = x.shape, (matrix.packed, matrix.groups)
    group_size = k // num_groups
    serves = functools.partial(_is_served, rows, features, k, x.dtype, 128)
    tiled = _has_tiled(x.device) and (group_size in (32, 64) or group_size % 128 == 0)
    # Without the tiled kernel, two passes of the skinny one take less time than to dequantize.
    few = _SKINNY_INT4_ROWS if tiled else 2 * cuda.MAX_SKINNY_TOKENS
    if group_size % 32 == 0 and serves(few):
        parts = [
            native.skinny_int4_linear(part, *weight, bias, gated=gated)
            for part in torch.split(x, cuda.MAX_SKINNY_TOKENS)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    if tiled and serves(_TILED_INT4_ROWS):
        made: torch.Tensor = native.tiled_int4_linear(x, *weight, bias, gated=gated)
        return made
    out = ops.linear_int4(x, *weight)
    out = out if bias is None else out.add_(bias)
    return ops.silu_mul(out) if gated else out


def _is_served(
    rows: int,
    features: int,
    k: int,
    dtype: torch.dtype,
    k_multiple: int,
    max_rows: int = cuda.MAX_SKINNY_TOKENS,
) -> bool:
    return (
        0 < rows <= max_rows
        and dtype in cuda.DECODE_DTYPES
        and features % 16 == 0 == k % k_multiple
        and cuda.available()
    )


def _is_tiled(rows: int, weight: torch.Tensor, dtype: torch.dtype, max_rows: int) -> bool:
    """weight: [features, k] in FP8."""
    features, k = weight.shape
    return _has_tiled(weight.device) and _is_served(rows, features, k, dtype, 128, max_rows)


@functools.cache
def _has_tiled(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def _multiplies_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _widening_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    block: tuple[int, int] | None,
    *,
    round_x: bool,
) -> torch.Tensor:
    """Triton's GEMM, which converts the weights if x must not be rounded. Weights that it does
    not serve are dequantized before the library's GEMM."""
    if weight.shape[1] % _COLUMNS == 0:
        out = ops.linear_fp8(x, weight, scale, block, round_x=round_x)
        return out if bias is None else out.add_(bias)
    return F.linear(x, reference.dequantize_fp8(weight, scale).to(x.dtype), bias)


def _skinny_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    block: tuple[int, int] | None,
    *,
    gated: bool = False,
) -> torch.Tensor:
    rows, columns = block or (0, 0)
    out: torch.Tensor = native.skinny_fp8_linear(
        x, weight, scale, bias, gated=gated, block_rows=rows, group_size=columns
    )
    return out


def _tiled_fp8(
    x: RoundedRows,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool = False,
) -> torch.Tensor:
    return tiled_fp8_linear(x.values, x.scale, weight, scale, bias, dtype=x.dtype, gated=gated)


def _tiled_blocks(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    block_rows: int,
    *,
    gated: bool = False,
) -> torch.Tensor:
    from kernels.triton.fp8_linear import quantize_pieces  # Triton is there where GPUs are.

    values, x_scale = quantize_pieces(x)
    return tiled_fp8_linear(
        values, x_scale, weight, scale, bias, dtype=x.dtype, gated=gated, block_rows=block_rows
    )


def tiled_fp8_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
    gated: bool = False,
    **options: int,
) -> torch.Tensor:
    """``(x * x_scale) @ (weight * scale).T + bias`` in ``dtype``; gated: ``silu_mul`` of that.

    options: ``block_rows`` and ``split`` of ``native.tiled_fp8_linear``.
    """
    out = x.new_empty(len(x), len(weight) // (1 + gated), dtype=dtype)
    native.tiled_fp8_linear(x, weight, scale, bias, x_scale, out=out, gated=gated, **options)
    return out


def _scaled_linear(
    x: RoundedRows, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The library's GEMM of FP8 numbers."""
    if x.dtype == torch.bfloat16:
        out: torch.Tensor = torch._scaled_mm(
            x.values,
            weight.T,
            scale_a=x.scale,
            scale_b=scale.T,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return out if bias is None else out.add_(bias)
    # The library takes scales for each row only if the result is bfloat16.
    one = torch.ones((), device=weight.device)
    wide = torch._scaled_mm(
        x.values, weight.T, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=True
    )
    wide.mul_(x.scale).mul_(scale.T)
    return (wide if bias is None else wide.add_(bias)).to(x.dtype)
