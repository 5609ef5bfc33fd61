# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""GEMMs with FP8 weights, one scale for each row or for each block of rows and columns.

x is rounded to FP8 as well, so that tensor cores multiply FP8. With blocks it is rounded in pieces
of as many columns, and the sum over a piece is scaled and added up in float32 (arXiv 2412.19437,
3.3.2). Where x is to stay as it is, or on GPUs without such tensor cores, the weights are widened.

The weight stands left: tensor cores take 64 rows at least there, and few columns. Where a GEMM
has few tiles, several CTAs share the sum over k of each, and the last of them adds up the parts, in
their order.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from kernels import ops
from kernels.reference import FP8_MAX, MIN_SCALE
from kernels.triton.fp8 import from_fp8

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
COLUMNS = 128
"""Of a block, and what k is a multiple of."""
MAX_ROWS = 256
"""More rows share the cost of widening the whole weight first."""
SCALE_ROWS = 64
_FEW_ROWS = 128
_MAX_TILES = 256
"""More need no sharing of their sums."""
_MIN_SHARE = 2048
"""Of the sum over k, for one CTA."""


def register() -> None:
    """Serve ``ops.linear_fp8`` on GPUs."""
    ops.register("linear_fp8", "triton", linear_fp8, dtypes=FLOATS)


def linear_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int] | None = None,
    *,
    round_x: bool = True,
) -> torch.Tensor:
    """See ``reference.linear_fp8``. k a multiple of ``COLUMNS``, which a block has."""
    (rows, k), features = x.shape, weight.shape[0]
    assert k % COLUMNS == 0, k
    assert block is None or block[1] == COLUMNS, block
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    if rows > MAX_ROWS:
        return F.linear(x, dequantize(weight, scale, block, x.dtype))
    x = x if x.stride(1) == 1 else x.contiguous()
    x_scales: torch.Tensor | None = None
    if round_x and _multiplies_fp8(x.device):
        x, x_scales = ops.quantize_rows(x) if block is None else quantize_pieces(x)
    tile_features, tile_rows = 64, min(_FEW_ROWS, max(16, triton.next_power_of_2(rows)))
    stages = 5
    if x_scales is None:  # then x and the widened weights need twice the room
        stages = 5 if tile_rows <= 32 else 4 if tile_rows == 64 else 3
    tiles = triton.cdiv(features, tile_features), triton.cdiv(rows, tile_rows)
    shares = _num_shares(tiles[0] * tiles[1], k) if rows <= _FEW_ROWS else 1
    _linear[(*tiles, shares)](
        out,
        _partial_sums(x.device, tiles[0] * tiles[1] * shares * tile_features * tile_rows, shares),
        _counters(x.device),
        x,
        x_scales,
        weight.view(torch.uint8) if x_scales is None else weight,
        scale,
        rows,
        features,
        k,
        x.stride(0),
        0 if x_scales is None else x_scales.stride(0),
        1 if block is None else block[0],
        FEATURES=tile_features,
        ROWS=tile_rows,
        K=COLUMNS,
        SHARES=shares,
        ROUNDED=x_scales is not None,
        IN_BLOCKS=block is not None,
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=4 if tile_rows <= 64 else 8,
        num_stages=stages,
    )
    return out


def dequantize(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None, dtype: torch.dtype
) -> torch.Tensor:
    """``reference.dequantize_fp8``, rounded to ``dtype``."""
    features, k = weight.shape
    out = torch.empty(features, k, dtype=dtype, device=weight.device)
    block_rows, columns = block or (1, k)
    _dequantize[(features, triton.cdiv(k, 2048))](
        out, weight.view(torch.uint8), scale, k, block_rows, columns, scale.shape[1], BLOCK=2048
    )
    return out


def quantize_pieces(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``reference.quantize_rows`` of each ``COLUMNS`` neighbours in a row, rows with stride 1.

    Returns [rows, k] float8_e4m3fn and [k / COLUMNS, rows] float32, in memory for multiples of
    ``SCALE_ROWS`` rows.
    """
    rows, k = x.shape
    num_pieces, room = k // COLUMNS, triton.cdiv(rows, SCALE_ROWS) * SCALE_ROWS
    out = torch.empty(rows, k, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_pieces, room, dtype=torch.float32, device=x.device)
    _quantize[(rows, triton.cdiv(num_pieces, 8))](
        out, scales, x, x.stride(0), room, num_pieces, FP8_MAX, MIN_SCALE, PIECES=8, COLUMNS=COLUMNS
    )
    return out, scales[:, :rows]


def _num_shares(num_tiles: int, k: int) -> int:
    """Of each sum over k: enough for all SMs to have work, none too small."""
    return max(1, min(k // _MIN_SHARE, _MAX_TILES // num_tiles))


def _partial_sums(device: torch.device, size: int, shares: int) -> torch.Tensor:
    return torch.empty(size if shares > 1 else 1, dtype=torch.float32, device=device)


@functools.cache
def _counters(device: torch.device) -> torch.Tensor:
    """Of the CTAs that have left their part of a tile; zeros before and after each GEMM."""
    return torch.zeros(_MAX_TILES, dtype=torch.int32, device=device)


@functools.cache
def _multiplies_fp8(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


@triton.jit
def _dequantize(out, weight, scales, k, block_rows, columns, scales_each, BLOCK: tl.constexpr):
    feature = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < k
    stored = tl.load(weight + feature * k + column, mask=real, other=0)
    at = scales + feature // block_rows * scales_each + column // columns
    value = from_fp8(stored, tl.float32) * tl.load(at, mask=real, other=0.0)
    tl.store(out + feature * k + column, value.to(out.dtype.element_ty), mask=real)


@triton.jit
def _quantize(
    out,
    scales,
    x,
    x_stride,
    scale_stride,
    num_pieces,
    fp8_max,
    min_scale,
    PIECES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1) * PIECES + tl.arange(0, PIECES)
    real = piece < num_pieces
    at = piece[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    values = tl.load(x + row * x_stride + at, mask=real[:, None], other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 1) / fp8_max, min_scale)
    scaled = tl.minimum(tl.maximum(values / scale[:, None], -fp8_max), fp8_max)
    to = out + row * num_pieces * COLUMNS + at
    tl.store(to, scaled.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(scales + piece * scale_stride + row, scale, mask=real)


@triton.jit
def _linear(
    out,
    partial,
    counters,
    x,
    x_scales,
    weight,
    scales,
    rows,
    features,
    k,
    x_stride,
    x_scale_stride,
    block_rows,
    FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    SHARES: tl.constexpr,
    ROUNDED: tl.constexpr,
    IN_BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    share = tl.program_id(2)
    column = tl.arange(0, K)
    real_feature, real_row = feature < features, row < rows
    weight_at = weight + feature.to(tl.int64)[:, None] * k + column[None, :]
    x_at = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    num_pieces = k // K
    each = tl.cdiv(num_pieces, SHARES)
    scales_at = scales + feature // block_rows * num_pieces
    total = tl.zeros([FEATURES, ROWS], tl.float32)
    for piece in tl.range(share * each, tl.minimum((share + 1) * each, num_pieces)):
        w = tl.load(weight_at + piece * K, mask=real_feature[:, None])
        v = tl.load(x_at + piece * K, mask=real_row[:, None], other=0.0)
        if not ROUNDED:
            w = from_fp8(w, v.dtype)
        if IN_BLOCKS:
            factor = tl.load(scales_at + piece, mask=real_feature, other=0.0)[:, None]
            if ROUNDED:
                of_x = tl.load(x_scales + piece * x_scale_stride + row, mask=real_row, other=0.0)
                factor = factor * of_x[None, :]
            total += tl.dot(w, tl.trans(v), input_precision=PRECISION) * factor
        else:
            total = tl.dot(w, tl.trans(v), total, input_precision=PRECISION)

    is_last = True
    if SHARES > 1:
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        inside = tl.arange(0, FEATURES)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        part_at = partial + tile.to(tl.int64) * SHARES * FEATURES * ROWS + inside
        tl.store(part_at + share * FEATURES * ROWS, total)
        tl.debug_barrier()  # all threads have stored before one of them says so
        is_last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SHARES - 1
        if is_last:
            total = tl.zeros([FEATURES, ROWS], tl.float32)
            for other in range(SHARES):
                total += tl.load(part_at + other * FEATURES * ROWS, cache_modifier=".cg")
            tl.store(counters + tile, 0)
    if is_last:
        if not IN_BLOCKS:
            total *= tl.load(scales + feature, mask=real_feature, other=0.0)[:, None]
            if ROUNDED:
                total *= tl.load(x_scales + row, mask=real_row, other=0.0)[None, :]
        at = out + row.to(tl.int64)[None, :] * features + feature[:, None]
        real = real_feature[:, None] & real_row[None, :]
        tl.store(at, total.to(out.dtype.element_ty), mask=real)
