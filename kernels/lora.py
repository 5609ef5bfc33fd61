"""The low-rank matrices of several adapters, and the tokens of a step grouped by adapter.

Tokens are sorted by adapter and divided into tiles; a tile never contains tokens of two adapters.
All tiles are one array of integers, so that one copy sends them to where a CUDA graph reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.transfer import to_device

Ints = npt.NDArray[np.int64]

RANK_STEP = 16
"""Ranks are padded to multiples of this, the depth of a tensor core instruction."""
FEW_TOKENS = 256
"""Up to this many tokens, tiles are as small as possible: such a step decodes, and usually has many
adapters with few tokens each."""


def padded_rank(rank: int) -> int:
    """The next multiple of ``RANK_STEP``."""
    return -(-rank // RANK_STEP) * RANK_STEP


@dataclass(frozen=True, slots=True)
class LoraMatrices:
    """The matrices of one linear layer, in slots for adapters.

    A layer's output has parts, such as queries, keys and values, each with matrices of its own.
    """

    down: torch.Tensor
    """[num_slots, num_parts, max_rank, in_features]"""
    up: torch.Tensor
    """[num_slots, out_features, max_rank]"""
    ranks: torch.Tensor
    """[num_slots, num_parts] int32; 0: the adapter does not change this part. Behind the rank,
    ``down`` and ``up`` are 0 up to the next multiple of ``RANK_STEP``; what follows is not read."""
    ends: torch.Tensor
    """[num_parts + 1] int32: part i is the features from ``ends[i]`` to ``ends[i + 1]``."""
    parts: tuple[int, ...]
    """Features of each part."""

    @classmethod
    def empty(
        cls,
        ranks: torch.Tensor,
        in_features: int,
        parts: tuple[int, ...],
        max_rank: int,
        *,
        dtype: torch.dtype,
    ) -> LoraMatrices:
        """Matrices without any adapter: all ranks are 0."""
        device, (num_slots, num_parts) = ranks.device, ranks.shape
        assert num_parts == len(parts)
        max_rank = padded_rank(max_rank)
        down = num_slots, num_parts, max_rank, in_features
        up = num_slots, sum(parts), max_rank
        return cls(
            torch.empty(down, dtype=dtype, device=device),
            torch.empty(up, dtype=dtype, device=device),
            ranks,
            torch.tensor([0, *np.cumsum(parts)], dtype=torch.int32, device=device),
            parts,
        )


@dataclass(frozen=True, slots=True)
class AdapterTiles:
    """The tokens of a step that have an adapter."""

    num_tokens: int
    """Tokens of the step, including those without an adapter."""
    slots: torch.Tensor
    """[num_tiles] int32: the slot of each tile's adapter; -1 from the first unused tile on."""
    tokens: torch.Tensor
    """[num_tiles, rows] int32: the tokens of each tile, padded with -1."""

    @classmethod
    def of(cls, slots: Ints, device: torch.device) -> AdapterTiles:
        """Group tokens by slot. slots: [num_tokens], -1 for none."""
        rows = tile_rows(len(slots))
        return cls.view(to_device(tile_table(slots, rows), device), len(slots), rows)

    @classmethod
    def view(cls, table: torch.Tensor, num_tokens: int, rows: int) -> AdapterTiles:
        """Views of a table that ``tile_table`` made."""
        num_tiles = len(table) // (1 + rows)
        return cls(num_tokens, table[:num_tiles], table[num_tiles:].view(num_tiles, rows))


def tile_rows(num_tokens: int) -> int:
    """Tokens in a tile, for a step of this many tokens."""
    return 16 if num_tokens <= FEW_TOKENS else 64


def max_tiles(num_tokens: int, num_slots: int) -> int:
    """An upper bound of the number of tiles: in the worst case each slot has one partly filled
    tile."""
    return num_tokens // tile_rows(num_tokens) + min(num_slots, num_tokens)


def tile_table(slots: Ints, rows: int, num_tiles: int | None = None) -> npt.NDArray[np.int32]:
    """``AdapterTiles.slots``, then ``tokens``, as one array: [num_tiles * (1 + rows)].

    slots: [num_tokens], -1 for none. num_tiles: of the result, at least as many as needed; None:
    exactly as many."""
    order = np.argsort(slots, kind="stable")
    used, counts = np.unique(slots, return_counts=True)
    firsts = counts.cumsum() - counts
    if len(used) and used[0] < 0:
        used, counts, firsts = used[1:], counts[1:], firsts[1:]
    tiles_each = -(-counts // rows)
    needed = int(tiles_each.sum())
    num_tiles = needed if num_tiles is None else num_tiles
    table = np.full(num_tiles * (1 + rows), -1, np.int32)
    table[:needed] = np.repeat(used, tiles_each)
    tile = np.arange(needed) - np.repeat(tiles_each.cumsum() - tiles_each, tiles_each)
    place = tile[:, None] * rows + np.arange(rows)
    there = place < np.repeat(counts, tiles_each)[:, None]
    place += np.repeat(firsts, tiles_each)[:, None]
    tokens = table[num_tiles:].reshape(num_tiles, rows)[:needed]
    tokens[there] = order[place[there]]
    return table
