# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Activations to FP8, and weights of four bits back to sixteen."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from kernels import ops
from kernels.reference import FP8_MAX, MIN_SCALE

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


def register() -> None:
    """Serve ``ops.quantize_rows`` and ``ops.linear_int4`` on GPUs."""
    ops.register("quantize_rows", "triton", quantize_rows, dtypes=FLOATS)
    ops.register("linear_int4", "triton", linear_int4, dtypes=FLOATS)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.quantize_rows``."""
    rows, width = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = min(4096, triton.next_power_of_2(width))
    _quantize[(rows,)](
        out, scales, x, x.stride(0), width, FP8_MAX, MIN_SCALE, BLOCK=block, num_warps=8
    )
    return out, scales


def linear_int4(x: torch.Tensor, packed: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """See ``reference.linear_int4``: of so many rows that they share the cost of dequantizing."""
    return F.linear(x, dequantize_int4(packed, groups))


def dequantize_int4(packed: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """See ``reference.dequantize_int4``; groups of a multiple of 8 inputs."""
    features, words = packed.shape
    num_groups = groups.shape[1]
    out = torch.empty(features, words * 8, dtype=groups.dtype, device=groups.device)
    grid = (features, triton.cdiv(words, 256))
    _dequantize[grid](out, packed, groups, words, num_groups, words * 8 // num_groups, BLOCK=256)
    return out


@triton.jit
def _quantize(out, scales, x, x_stride, width, fp8_max, min_scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        at = start + column
        piece = tl.load(x + row * x_stride + at, mask=at < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(piece))
    scale = tl.maximum(tl.max(largest, 0) / fp8_max, min_scale)
    tl.store(scales + row, scale)
    for start in range(0, width, BLOCK):
        at = start + column
        piece = tl.load(x + row * x_stride + at, mask=at < width, other=0.0).to(tl.float32)
        scaled = tl.minimum(tl.maximum(piece / scale, -fp8_max), fp8_max)
        tl.store(out + row * width + at, scaled.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def _dequantize(out, packed, groups, words, num_groups, group_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < words
    word = tl.load(packed + row * words + at, mask=inside, other=0)
    # [block, eight, word, half]: the order of the inputs.
    word = tl.reshape(word, (BLOCK // 4, 1, 4, 1))
    shift = 4 * tl.arange(0, 4)[None, :, None, None] + 16 * tl.arange(0, 2)[None, None, None, :]
    nibble = (word >> shift) & 15
    group = groups + (row * num_groups + at * 8 // group_size) * 2  # each eight lies within one
    scale = tl.load(group, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(group + 1, mask=inside, other=0.0).to(tl.float32)
    zero = tl.reshape(zero, (BLOCK // 4, 4, 1, 1))
    value = (nibble.to(tl.float32) - zero) * tl.reshape(scale, (BLOCK // 4, 4, 1, 1))
    column = tl.program_id(1) * 8 * BLOCK + tl.arange(0, 8 * BLOCK)
    to = out + row * words * 8 + column
    value = tl.reshape(value, (8 * BLOCK,)).to(out.dtype.element_ty)
    tl.store(to, value, mask=column < words * 8)
