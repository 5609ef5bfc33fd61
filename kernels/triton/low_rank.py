# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Low-rank products of many adapters in one batch (Punica, arXiv 2310.18547; S-LoRA, 2311.03285).

Two launches serve all parts of a linear layer: one shrinks every token to its adapter's rank, one
expands that to the layer's output and adds it there. Both walk the tiles of ``AdapterTiles`` until
there are no more: a CUDA graph holds them, and costs little where few tokens have an adapter. The
inputs are split among programs, whose sums the second launch adds up in a fixed order:
a token's result does not depend on the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import ops
from kernels.low_rank import FEW_TOKENS, RANK_STEP, AdapterTiles, LowRankMatrices

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_SPLIT_WIDTH = 512
"""Inputs of a split, or a multiple of it."""
_MAX_SPLITS = 32
_MAX_WALKERS = 16
"""Programs that share the tiles of a batch that decodes."""


def register() -> None:
    """Serve ``ops.add_low_rank`` on GPUs."""
    ops.register("add_low_rank", "triton", add_low_rank, dtypes=FLOATS)


@dataclass(frozen=True, slots=True)
class _Launch:
    columns: int
    """Features of a program."""
    depth: int
    """Inputs (shrink), or sums of inputs (expand), read at a time."""
    num_warps: int
    num_stages: int


_SHRINK_FEW = _Launch(16, 512, 4, 1)
_SHRINK_MANY = _Launch(64, 64, 4, 3)
_EXPAND_FEW = _Launch(64, _MAX_SPLITS, 4, 1)
_EXPAND_MANY = _Launch(128, 1, 4, 1)


def add_low_rank(
    out: torch.Tensor, x: torch.Tensor, matrices: LowRankMatrices, tiles: AdapterTiles
) -> None:
    """See ``reference.add_low_rank``."""
    if len(tiles.slots):
        expand(out, shrink(x, matrices, tiles), matrices, tiles)


def shrink(x: torch.Tensor, matrices: LowRankMatrices, tiles: AdapterTiles) -> torch.Tensor:
    """Of every token that has an adapter, ``down @ x``: [splits, num_tokens, num_parts * max_rank]
    float32, of which the sum over the splits counts."""
    x = x.contiguous()
    few, width = tiles.num_tokens <= FEW_TOKENS, x.shape[1]
    how = _SHRINK_FEW if few else _SHRINK_MANY
    depth = min(64, how.depth) if x.dtype == torch.float32 else how.depth
    _, num_parts, max_rank, _ = matrices.down.shape
    num_columns = num_parts * max_rank
    groups = triton.cdiv(num_columns, how.columns)
    most = _MAX_SPLITS if few else _splits_of_many(len(tiles.slots) * groups)
    split_width = max(_SPLIT_WIDTH, _round_up(triton.cdiv(width, most), _SPLIT_WIDTH))
    splits = triton.cdiv(width, split_width)
    low = torch.empty(splits, tiles.num_tokens, num_columns, dtype=torch.float32, device=x.device)
    dependent = _starts_early(x.device)
    _shrink[(_walkers(tiles), groups, splits)](
        low,
        x,
        matrices.down,
        matrices.ranks,
        tiles.slots,
        tiles.tokens,
        len(tiles.slots),
        tiles.num_tokens,
        width,
        split_width // depth,
        matrices.ranks.stride(0),
        PARTS=num_parts,
        MAX_RANK=max_rank,
        ROWS=tiles.tokens.shape[1],
        COLUMNS=how.columns,
        DEPTH=depth,
        STEP=RANK_STEP,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        DEPENDENT=dependent,
        num_warps=how.num_warps,
        num_stages=how.num_stages,
    )
    return low


def expand(
    out: torch.Tensor, low: torch.Tensor, matrices: LowRankMatrices, tiles: AdapterTiles
) -> None:
    """Add ``up @ low`` to ``out``, of every token that has an adapter. low: as ``shrink`` returns
    it."""
    assert out.is_contiguous()
    how = _EXPAND_FEW if tiles.num_tokens <= FEW_TOKENS else _EXPAND_MANY
    _, num_parts, max_rank, _ = matrices.down.shape
    grid = _walkers(tiles), triton.cdiv(max(matrices.parts), how.columns), num_parts
    dependent = _starts_early(out.device)
    _expand[grid](
        out,
        low,
        matrices.up,
        matrices.ranks,
        matrices.ends,
        tiles.slots,
        tiles.tokens,
        len(tiles.slots),
        tiles.num_tokens,
        low.shape[0],
        out.shape[1],
        matrices.ranks.stride(0),
        PARTS=num_parts,
        MAX_RANK=max_rank,
        ROWS=tiles.tokens.shape[1],
        COLUMNS=how.columns,
        SPLITS=how.depth,
        STEP=RANK_STEP,
        ALIGNED=math.gcd(16, *matrices.parts),
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        DEPENDENT=dependent,
        num_warps=how.num_warps,
        num_stages=how.num_stages,
        **({"launch_pdl": True} if dependent else {}),
    )


PDL = False


def _starts_early(device: torch.device) -> bool:
    return PDL and torch.cuda.get_device_capability(device) >= (9, 0)


def _walkers(tiles: AdapterTiles) -> int:
    """Programs that walk the tiles: one for each, but where there are mostly far fewer than can
    be."""
    num_tiles = len(tiles.slots)
    return min(num_tiles, _MAX_WALKERS) if tiles.num_tokens <= FEW_TOKENS else num_tiles


def _splits_of_many(num_programs: int) -> int:
    """As many as it takes to keep a GPU busy. Where a batch decodes, its size must not matter."""
    return min(8, max(1, 256 // num_programs))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


@triton.jit(do_not_specialize=["num_tiles", "num_tokens", "steps", "rank_stride"])
def _shrink(
    low,
    x,
    down,
    ranks,
    slots,
    tokens,
    num_tiles,
    num_tokens,
    width,
    steps,
    rank_stride,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Columns are the ranks of all parts, one part after the other. ``steps`` of DEPTH inputs are a
    split."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    inside = column < PARTS * MAX_RANK
    depth = tl.arange(0, DEPTH)
    tile = tl.program_id(0)
    slot = tl.load(slots + tile)
    while slot >= 0:
        token = tl.load(tokens + tile * ROWS + tl.arange(0, ROWS))
        own = slot.to(tl.int64)
        rank = tl.load(ranks + own * rank_stride + column // MAX_RANK, mask=inside, other=0)
        used = column % MAX_RANK < (rank + STEP - 1) // STEP * STEP
        if tl.max(used.to(tl.int32), 0) > 0:
            real = token >= 0
            x_at = x + token.to(tl.int64)[:, None] * width + depth[None, :]
            down_at = down + (own * PARTS * MAX_RANK + column)[:, None] * width + depth[None, :]
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            for step in tl.range(0, steps):
                start = (split * steps + step) * DEPTH
                there = (start + depth < width)[None, :]
                a = tl.load(x_at + start, mask=real[:, None] & there, other=0.0)
                b = tl.load(down_at + start, mask=used[:, None] & there, other=0.0)
                acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
            row = split * num_tokens + token
            low_at = low + row.to(tl.int64)[:, None] * (PARTS * MAX_RANK) + column[None, :]
            tl.store(low_at, acc, mask=real[:, None] & used[None, :])
        tile += tl.num_programs(0)
        slot = tl.load(slots + tile, mask=tile < num_tiles, other=-1)


@triton.jit(do_not_specialize=["num_tiles", "num_tokens", "splits", "rank_stride"])
def _expand(
    out,
    low,
    up,
    ranks,
    ends,
    slots,
    tokens,
    num_tiles,
    num_tokens,
    splits,
    features,
    rank_stride,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    STEP: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Adds up SPLITS of the splits at a time, and multiplies STEP of the ranks."""
    part = tl.program_id(2)
    begin = tl.multiple_of(tl.load(ends + part), ALIGNED)
    end = tl.multiple_of(tl.load(ends + part + 1), ALIGNED)
    column = begin + tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < end
    split = tl.arange(0, SPLITS)
    tile = tl.program_id(0)
    slot = tl.load(slots + tile)
    if begin + tl.program_id(1) * COLUMNS >= end:
        slot = -1
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    while slot >= 0:
        token = tl.load(tokens + tile * ROWS + tl.arange(0, ROWS))
        own = slot.to(tl.int64)
        rank = tl.load(ranks + own * rank_stride + part)
        if rank > 0:
            real = token >= 0
            out_at = out + token.to(tl.int64)[:, None] * features + column[None, :]
            both = real[:, None] & inside[None, :]
            before = tl.load(out_at, mask=both, other=0.0)
            up_at = up + (own * features + column)[:, None] * MAX_RANK
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            for first in tl.range(0, rank, STEP):
                ranked = first + tl.arange(0, STEP)
                total = tl.zeros([ROWS, STEP], tl.float32)
                for start in tl.range(0, splits, SPLITS):
                    row = (start + split)[:, None] * num_tokens + token[None, :]
                    place = row.to(tl.int64) * (PARTS * MAX_RANK) + part * MAX_RANK
                    there = (start + split < splits)[:, None] & real[None, :]
                    some = tl.load(
                        low + place[:, :, None] + ranked[None, None, :],
                        mask=there[:, :, None],
                        other=0.0,
                    )
                    total += tl.sum(some, 0)
                b = tl.load(up_at + ranked[None, :], mask=inside[:, None], other=0.0)
                acc = tl.dot(total.to(b.dtype), tl.trans(b), acc, input_precision=PRECISION)
            tl.store(out_at, (before + acc).to(before.dtype), mask=both)
        tile += tl.num_programs(0)
        slot = tl.load(slots + tile, mask=tile < num_tiles, other=-1)
