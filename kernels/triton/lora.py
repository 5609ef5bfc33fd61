# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""Low-rank GEMMs of many adapters in one batch (Punica, arXiv 2310.18547; S-LoRA, 2311.03285).

Two launches serve all parts of a linear layer: one shrinks every token to its adapter's rank, one
expands that to the layer's output and adds it there. Both walk the tiles of ``AdapterTiles`` until
there are no more: a CUDA graph holds them, and costs little where few tokens have an adapter.

The inputs are split among programs. The last one to end adds up what all have found, in a fixed
order, so that a token's result does not depend on the others.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import ops
from kernels.lora import FEW_TOKENS, RANK_STEP, AdapterTiles, LoraMatrices

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_SPLIT_WIDTH = 512
"""Inputs of a split, or a multiple of it."""
_MAX_SPLITS = 16
_MAX_WALKERS = 16
"""Programs that share the tiles of a batch that decodes."""
_NUM_COUNTERS = 1 << 16


def register() -> None:
    """Serve ``ops.shrink_lora`` and ``ops.expand_lora`` on GPUs."""
    ops.register("shrink_lora", "triton", shrink_lora, dtypes=FLOATS)
    ops.register("expand_lora", "triton", expand_lora, dtypes=FLOATS)


@dataclass(frozen=True, slots=True)
class _Launch:
    columns: int
    """Features of a program."""
    num_warps: int
    num_stages: int = 1
    depth: int = 64
    """Inputs read at a time."""
    sums: int = 1
    """Splits added up at a time."""


_SHRINK_FEW = _Launch(16, 4, depth=512, sums=_MAX_SPLITS)
_SHRINK_MANY = _Launch(64, 4, num_stages=3)
_EXPAND_FEW = _Launch(128, 4)
_EXPAND_MANY = _Launch(128, 4)


def shrink_lora(x: torch.Tensor, matrices: LoraMatrices, tiles: AdapterTiles) -> torch.Tensor:
    """See ``reference.shrink_lora``."""
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
    low = x.new_empty(tiles.num_tokens, num_columns)
    sums = low if splits == 1 else low.new_empty(splits, *low.shape, dtype=torch.float32)
    walkers = _walkers(tiles)
    if walkers == 0:
        return low
    assert len(tiles.slots) * groups <= _NUM_COUNTERS
    _shrink[(walkers, groups, splits)](
        low,
        sums,
        _counters(x.device),
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
        SUMS=how.sums,
        STEP=RANK_STEP,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=how.num_warps,
        num_stages=how.num_stages,
    )
    return low


def expand_lora(
    out: torch.Tensor, low: torch.Tensor, matrices: LoraMatrices, tiles: AdapterTiles
) -> None:
    """See ``reference.expand_lora``."""
    assert out.is_contiguous()
    how = _EXPAND_FEW if tiles.num_tokens <= FEW_TOKENS else _EXPAND_MANY
    _, num_parts, max_rank, _ = matrices.down.shape
    walkers = _walkers(tiles)
    if walkers == 0:
        return
    _expand[(walkers, triton.cdiv(max(matrices.parts), how.columns), num_parts)](
        out,
        low,
        matrices.up,
        matrices.ranks,
        matrices.ends,
        tiles.slots,
        tiles.tokens,
        len(tiles.slots),
        out.shape[1],
        matrices.ranks.stride(0),
        PARTS=num_parts,
        MAX_RANK=max_rank,
        RANKS=min(64, triton.next_power_of_2(max_rank)),
        ROWS=tiles.tokens.shape[1],
        COLUMNS=how.columns,
        STEP=RANK_STEP,
        ALIGNED=math.gcd(16, *matrices.parts),
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
        num_warps=how.num_warps,
        num_stages=how.num_stages,
    )


def _walkers(tiles: AdapterTiles) -> int:
    """Programs that walk the tiles: one for each, but where there are mostly far fewer than can
    be."""
    num_tiles = len(tiles.slots)
    return min(num_tiles, _MAX_WALKERS) if tiles.num_tokens <= FEW_TOKENS else num_tiles


def _splits_of_many(num_programs: int) -> int:
    """As many as it takes to keep a GPU busy. Where a batch decodes, its size must not matter."""
    return min(8, max(1, 256 // max(1, num_programs)))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


@functools.cache
def _counters(device: torch.device) -> torch.Tensor:
    """How many of the splits of a tile are done: 0 between launches, which follow one another."""
    return torch.zeros(_NUM_COUNTERS, dtype=torch.int32, device=device)


@triton.jit(do_not_specialize=["num_tiles", "num_tokens", "steps", "rank_stride"])
def _shrink(
    low,
    sums,
    counters,
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
    SUMS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Columns are the ranks of all parts, one part after the other. ``steps`` of DEPTH inputs are a
    split."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split, splits = tl.program_id(2), tl.num_programs(2)
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
            both = real[:, None] & used[None, :]
            place = token.to(tl.int64)[:, None] * (PARTS * MAX_RANK) + column[None, :]
            if splits > 1:
                own_sums = sums + split.to(tl.int64) * num_tokens * (PARTS * MAX_RANK)
                tl.store(own_sums + place, acc, mask=both)
                tl.debug_barrier()
                counter = counters + tile * tl.num_programs(1) + tl.program_id(1)
                if tl.atomic_add(counter, 1) == splits - 1:
                    acc = _sum(sums, place, both, splits, num_tokens * (PARTS * MAX_RANK), SUMS)
                    tl.store(low + place, acc.to(low.dtype.element_ty), mask=both)
                    tl.store(counter, 0)
            else:
                tl.store(low + place, acc.to(low.dtype.element_ty), mask=both)
        tile += tl.num_programs(0)
        slot = tl.load(slots + tile, mask=tile < num_tiles, other=-1)


@triton.jit
def _sum(sums, place, there, splits, stride, SUMS: tl.constexpr):
    """Of all splits, in their order. Past the first cache, which may hold what was there before."""
    total = tl.zeros(place.shape, tl.float32)
    for start in tl.range(0, splits, SUMS):
        split = start + tl.arange(0, SUMS)[:, None, None]
        some = tl.load(
            sums + split.to(tl.int64) * stride + place[None, :, :],
            mask=(split < splits) & there[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )
        total += tl.sum(some, 0)
    return total


@triton.jit(do_not_specialize=["num_tiles", "rank_stride"])
def _expand(
    out,
    low,
    up,
    ranks,
    ends,
    slots,
    tokens,
    num_tiles,
    features,
    rank_stride,
    PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiplies RANKS of the ranks at a time."""
    part = tl.program_id(2)
    begin = tl.multiple_of(tl.load(ends + part), ALIGNED)
    end = tl.multiple_of(tl.load(ends + part + 1), ALIGNED)
    column = begin + tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < end
    tile = tl.program_id(0)
    slot = tl.load(slots + tile)
    if begin + tl.program_id(1) * COLUMNS >= end:
        slot = -1
    while slot >= 0:
        token = tl.load(tokens + tile * ROWS + tl.arange(0, ROWS))
        own = slot.to(tl.int64)
        rank = (tl.load(ranks + own * rank_stride + part) + STEP - 1) // STEP * STEP
        if rank > 0:
            real = token >= 0
            row = token.to(tl.int64)[:, None]
            out_at = out + row * features + column[None, :]
            both = real[:, None] & inside[None, :]
            before = tl.load(out_at, mask=both, other=0.0)
            low_at = low + row * (PARTS * MAX_RANK) + part * MAX_RANK
            up_at = up + (own * features + column)[:, None] * MAX_RANK
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            for first in tl.range(0, rank, RANKS):
                ranked = (first + tl.arange(0, RANKS))[None, :]
                a = tl.load(low_at + ranked, mask=real[:, None] & (ranked < rank), other=0.0)
                b = tl.load(up_at + ranked, mask=inside[:, None] & (ranked < rank), other=0.0)
                acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
            tl.store(out_at, (before + acc).to(before.dtype), mask=both)
        tile += tl.num_programs(0)
        slot = tl.load(slots + tile, mask=tile < num_tiles, other=-1)
