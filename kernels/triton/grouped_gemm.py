# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""GEMMs of many small groups of rows, each with a matrix of its own: mixtures of experts.

The (token, expert) pairs are sorted by expert and cut into tiles; a tile never crosses experts.
How many tiles an expert gets is decided on the device, so a CUDA graph can hold all of it: the
grid has room for the worst case, and tiles past the real ones return at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels import ops
from kernels.experts import (
    BiasedSwiglu,
    ExpertMatrices,
    Fp8Experts,
    Int4Experts,
    Mxfp4Experts,
    PairTiles,
    features_of,
    tile_rows,
)
from kernels.triton.fp8 import from_fp8

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


def register() -> None:
    """Serve ``ops.apply_experts`` on GPUs."""
    ops.register("apply_experts", "triton", apply_experts, dtypes=FLOATS)


def apply_experts(
    x: torch.Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    experts: torch.Tensor,
    weights: torch.Tensor,
    swiglu: BiasedSwiglu | None = None,
) -> torch.Tensor:
    """See ``reference_experts.apply_experts``. INT4: groups of a multiple of 32 inputs."""
    num_tokens, top_k = experts.shape
    rows = tile_rows(experts.numel(), len(gate_up))
    groups = ops.group_pairs(experts, len(gate_up), rows)
    inner = x.new_empty(num_tokens * top_k, features_of(gate_up))
    out = x.new_empty(num_tokens * top_k, features_of(down))
    if swiglu is None:
        grouped_gemm(inner, x, gate_up, groups, pairs_per_row=top_k)
        grouped_gemm(out, ops.silu_mul(inner), down, groups)
    else:
        grouped_gemm(inner, x, gate_up, groups, pairs_per_row=top_k, bias=swiglu.gate_up_bias)
        grouped_gemm(out, swiglu.activate(inner), down, groups, bias=swiglu.down_bias)
    return ops.combine_experts(out, weights)


def grouped_gemm(
    out: torch.Tensor,
    x: torch.Tensor,
    matrices: ExpertMatrices,
    groups: PairTiles,
    *,
    pairs_per_row: int = 1,
    bias: torch.Tensor | None = None,
) -> None:
    """out[pair] = matrix[expert of pair] @ x[pair // pairs_per_row] + bias[expert of pair].

    All contiguous; pairs of the expert ``num_experts``, which is none, are left alone.
    """
    features, width, columns = features_of(matrices), x.shape[1], 64
    depth = 32 if x.dtype == torch.float32 else 64
    group_size, block_rows = width, 1
    factors: torch.Tensor | None = None
    match matrices:
        case Fp8Experts():
            weight, factors, kind = matrices.weight.view(torch.uint8), matrices.scale, "fp8"
            if matrices.block is not None:
                (block_rows, group_size), kind = matrices.block, "fp8 blocks"
                assert group_size % depth == 0, f"blocks of {group_size} columns"
        case Int4Experts():
            weight, factors, kind = matrices.packed, matrices.groups, "int4"
            group_size = width // factors.shape[2]
            depth = 32 if group_size % 64 else depth
            assert group_size % depth == 0, f"groups of {group_size} inputs"
        case Mxfp4Experts():
            weight, factors, kind = matrices.packed, matrices.scale, "mxfp4"
            depth = 32 if width % 64 else depth
        case _:
            weight, kind = matrices, "plain"
    grid = (groups.tiles.shape[1], triton.cdiv(features, columns))
    _kernel[grid](
        out,
        x,
        weight,
        factors,
        bias,
        groups.order,
        groups.tiles,
        groups.tiles.shape[1],
        features,
        width,
        len(matrices),
        pairs_per_row,
        group_size,
        block_rows,
        ROWS=groups.rows,
        COLUMNS=columns,
        DEPTH=depth,
        KIND=kind,
        HAS_BIAS=bias is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )


@triton.jit
def _int4_block(
    packed,
    groups,
    feature,
    in_features,
    start,
    width,
    group_size,
    DEPTH: tl.constexpr,
    like,
):
    """Inputs [start, start + DEPTH) of some features, of one group, dequantized."""
    word = tl.arange(0, DEPTH // 8)
    words_at = packed + feature[:, None] * (width // 8) + start // 8 + word[None, :]
    words = tl.load(words_at, mask=in_features[:, None], other=0)
    # [feature, block, word, eight, half]; the eights come first in the order of the inputs.
    words = tl.reshape(words, (words.shape[0], DEPTH // 32, 4, 1, 1))
    eight, half = tl.arange(0, 4), tl.arange(0, 2)
    shift = 4 * eight[None, None, None, :, None] + 16 * half[None, None, None, None, :]
    nibbles = ((words >> shift) & 15).to(tl.float32)
    group = (feature * (width // group_size) + start // group_size) * 2
    scale = tl.load(groups + group, mask=in_features, other=0.0).to(tl.float32)
    zero = tl.load(groups + group + 1, mask=in_features, other=0.0).to(tl.float32)
    exact = (nibbles - zero[:, None, None, None, None]) * scale[:, None, None, None, None]
    ordered = tl.permute(exact.to(like.dtype.element_ty), (0, 1, 3, 2, 4))
    return tl.reshape(ordered, (words.shape[0], DEPTH))


@triton.jit
def _mxfp4_block(
    packed,
    scales,
    feature,
    in_features,
    start,
    width,
    DEPTH: tl.constexpr,
    like,
):
    """Inputs [start, start + DEPTH) of some features, dequantized exactly."""
    byte = tl.arange(0, DEPTH // 2)
    bytes_at = packed + feature[:, None] * (width // 2) + start // 2 + byte[None, :]
    pairs = tl.load(bytes_at, mask=in_features[:, None], other=0).to(tl.int32)
    numbers = tl.reshape(tl.join(pairs & 15, pairs >> 4), (pairs.shape[0], DEPTH))
    exponent, mantissa = (numbers >> 1) & 3, numbers & 1
    # A float's bits: an exponent of 0 is a subnormal, which is 0 or 0.5 here.
    normal = ((exponent + 126) << 23) | (mantissa << 22)
    bits = tl.where(exponent > 0, normal, mantissa * (126 << 23)) | ((numbers & 8) << 28)
    values = tl.reshape(bits.to(tl.float32, bitcast=True), (pairs.shape[0], DEPTH // 32, 32))
    block = tl.arange(0, DEPTH // 32)
    scales_at = scales + feature[:, None] * (width // 32) + start // 32 + block[None, :]
    powers = tl.load(scales_at, mask=in_features[:, None], other=0).to(tl.int32) << 23
    values *= powers.to(tl.float32, bitcast=True)[:, :, None]
    return tl.reshape(values, (pairs.shape[0], DEPTH)).to(like.dtype.element_ty)


@triton.jit
def _kernel(
    out,
    x,
    weight,
    factors,
    bias,
    order,
    tiles,
    max_tiles,
    features,
    width,
    num_experts,
    pairs_per_row,
    group_size,
    block_rows,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(0)
    expert = tl.load(tiles + tile)
    if expert >= num_experts:
        return
    place = tl.load(tiles + max_tiles + tile) + tl.arange(0, ROWS)
    real = place < tl.load(tiles + 2 * max_tiles + tile)
    pair = tl.load(order + place, mask=real, other=0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_features = column < features
    depth = tl.arange(0, DEPTH)
    x_at = x + (pair // pairs_per_row)[:, None] * width + depth[None, :]
    feature = expert.to(tl.int64) * features + column
    w_at = weight + feature[:, None] * width + depth[None, :]
    blocks_each = tl.cdiv(features, block_rows)
    blocks_at = factors
    if KIND == "fp8 blocks":
        block = expert.to(tl.int64) * blocks_each + column // block_rows
        blocks_at += block * tl.cdiv(width, group_size)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, width, DEPTH):
        inside = (start + depth < width)[None, :]
        a = tl.load(x_at + start, mask=real[:, None] & inside, other=0.0)
        if KIND == "int4":
            b = _int4_block(
                weight, factors, feature, in_features, start, width, group_size, DEPTH, x
            )
        elif KIND == "mxfp4":
            b = _mxfp4_block(weight, factors, feature, in_features, start, width, DEPTH, x)
        else:
            b = tl.load(w_at + start, mask=in_features[:, None] & inside, other=0)
            if KIND == "fp8" or KIND == "fp8 blocks":
                b = from_fp8(b, x.dtype.element_ty)
        if KIND == "fp8 blocks":
            factor = tl.load(blocks_at + start // group_size, mask=in_features, other=0.0)
            acc += tl.dot(a, tl.trans(b), input_precision=PRECISION) * factor[None, :]
        else:
            acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    if KIND == "fp8":
        acc *= tl.load(factors + feature, mask=in_features, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + feature, mask=in_features, other=0.0).to(tl.float32)[None, :]
    at = out + pair[:, None] * features + column[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=real[:, None] & in_features[None, :])
