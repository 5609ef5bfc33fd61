# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Products of a few dozen rows with weights of four bits, dequantized on their way to the product.

More rows share the cost of dequantizing the whole weight first, and the library's product is the
faster one then.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from kernels import ops
from kernels.triton.quantize import FLOATS, dequantize_int4

MAX_ROWS = 256


def register() -> None:
    """Serve ``ops.linear_int4`` on GPUs."""
    ops.register("linear_int4", "triton", linear_int4, dtypes=FLOATS)


def linear_int4(x: torch.Tensor, packed: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """See ``reference.linear_int4``."""
    (rows, k), (features, num_groups, _) = x.shape, groups.shape
    group_size = k // num_groups
    if rows > MAX_ROWS or group_size % 32:
        return F.linear(x, dequantize_int4(packed, groups))
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    tile_rows, tile_features = (32 if rows <= 32 else 64), 32
    _product[(triton.cdiv(features, tile_features), triton.cdiv(rows, tile_rows))](
        out,
        x,
        packed,
        groups,
        rows,
        features,
        k,
        x.stride(0),
        num_groups,
        group_size,
        ROWS=tile_rows,
        FEATURES=tile_features,
        K=64 if group_size % 64 == 0 else 32,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=4,
    )
    return out


@triton.jit
def _product(
    out,
    x,
    packed,
    groups,
    rows,
    features,
    k,
    x_stride,
    num_groups,
    group_size,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real_feature, real_row = feature < features, row < rows
    place = tl.arange(0, 8)
    shift = (place % 2 * 16 + place // 2 * 4)[None, None, :]
    word, column = tl.arange(0, K // 8), tl.arange(0, K)
    words_at = packed + feature.to(tl.int64)[:, None] * (k // 8) + word[None, :]
    groups_at = groups + feature.to(tl.int64) * num_groups * 2
    x_at = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    total = tl.zeros([ROWS, FEATURES], tl.float32)
    for start in range(0, k, K):  # within one group
        words = tl.load(words_at + start // 8, mask=real_feature[:, None], other=0)
        nibbles = tl.reshape((words[:, :, None] >> shift) & 15, (FEATURES, K))
        group = start // group_size * 2
        scale = tl.load(groups_at + group, mask=real_feature, other=0.0).to(tl.float32)
        zero = tl.load(groups_at + group + 1, mask=real_feature, other=0.0).to(tl.float32)
        weight = (nibbles.to(tl.float32) - zero[:, None]) * scale[:, None]
        piece = tl.load(x_at + start, mask=real_row[:, None], other=0.0)
        weight = tl.trans(weight.to(piece.dtype))
        total = tl.dot(piece, weight, total, input_precision=PRECISION)
    at = row.to(tl.int64)[:, None] * features + feature[None, :]
    real = real_row[:, None] & real_feature[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real)
