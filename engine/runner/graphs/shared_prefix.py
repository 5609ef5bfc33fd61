"""Which sequences of a decode step start with the same blocks, and how to read those only once.

    sorted block ids     in common with the next     groups
    3 4 5 9              3                           the first two share 3 4 5,
    3 4 5 7              1                           or all three share 3:
    3 8 6 2              -                           whatever saves more reads

The sequences that agree on their first n blocks, for every n, are the nodes of a tree. A node of m
sequences that agree on n blocks saves (m - 1) * n reads, and excludes its subtree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine.runner.rows import Ints

Blocks = npt.NDArray[np.int32]

TILE = 64
"""Shared keys come in whole tiles of the decode kernel."""
MIN_SAVED_TOKENS = 16384
"""A second pass must save reading at least this many tokens' keys and values to pay."""
MAX_SPLITS = 16
_LAUNCH_TILES = 2
"""The cost of starting and finishing a tile, in steps of 128 keys."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that begin with the same blocks."""

    members: Ints
    """Indices into the step's sequences."""
    num_tokens: int
    """Leading keys that all members share; a multiple of ``TILE``."""


def find_groups(block_ids: Blocks, num_blocks: Ints, block_size: int) -> list[Group]:
    """The groups that save most reads. A sequence is in at most one.

    block_ids: [batch, width]. num_blocks: [batch], the leading blocks of each that may be shared.
    """
    if not block_ids.size:
        return []  # nobody has a whole block
    order = np.array(sorted(range(len(block_ids)), key=lambda i: block_ids[i].tobytes()), np.int64)
    ids = block_ids[order]
    differs = ids[1:] != ids[:-1]
    common = np.where(differs.any(1), differs.argmax(1), ids.shape[1])
    usable = num_blocks[order]
    common = np.minimum(common, np.minimum(usable[1:], usable[:-1]))
    _, spans = _best(common * block_size // TILE * TILE, 0, len(order))
    return [Group(np.sort(order[start:end]), tokens) for start, end, tokens in spans]


def _best(common: Ints, start: int, end: int) -> tuple[int, list[tuple[int, int, int]]]:
    """The best grouping of the sorted sequences [start, end): tokens saved, and (start, end,
    tokens) of each group.

    common[i]: leading tokens that sequences i and i + 1 share.
    """
    if end - start < 2:
        return 0, []
    within = common[start : end - 1]
    tokens = int(within.min())
    cuts = [start, *(start + 1 + np.flatnonzero(within == tokens)).tolist(), end]
    saved, groups = 0, []
    for low, high in pairwise(cuts):
        below, found = _best(common, low, high)
        saved += below
        groups += found
    whole = (end - start - 1) * tokens
    return (whole, [(start, end, tokens)]) if whole > saved else (saved, groups)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the groups of a step are cut into work, as it is sent to the device in one piece.

    tiles | tile_splits | skipped | splits | members | num_tiles    (see ``cuda.SharedPrefixes``)

    Tiles are read 16 bytes at a time, so they come first.
    """

    batch: int
    max_tiles: int
    max_splits: int

    @property
    def size(self) -> int:
        return 3 * self.batch + 1 + 5 * self.max_tiles

    def parts(self) -> list[slice]:
        """The six parts, in the order above."""
        sizes = [4 * self.max_tiles, self.max_tiles, *[self.batch] * 3, 1]
        ends = np.cumsum(sizes).tolist()
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def fill(self, into: Blocks, groups: list[Group], per_tile: int, heads: int, sms: int) -> None:
        """Write the work for ``groups``. per_tile: members in one tile; heads: KV heads."""
        into[:] = 0
        tiles, tile_splits, skipped, splits, members, num_tiles = (into[p] for p in self.parts())
        keys = self._keys_per_split(groups, per_tile, heads, sms)
        rows: list[tuple[int, int, int, int, int]] = []
        first = 0
        for group in groups:
            count = len(group.members)
            members[first : first + count] = group.members
            skipped[group.members] = group.num_tokens
            splits[group.members] = -(-group.num_tokens // keys)
            rows += [
                (member, min(per_tile, first + count - member), begin, end, begin // keys)
                for begin in range(0, group.num_tokens, keys)
                for end in (min(begin + keys, group.num_tokens),)
                for member in range(first, first + count, per_tile)
            ]
            first += count
        rows.sort(key=lambda row: row[2] - row[3])  # the longest first
        assert len(rows) <= self.max_tiles, "_keys_per_split counts them"
        num_tiles[0] = len(rows)
        cut = np.array(rows, np.int32)
        tiles[: 4 * len(rows)] = cut[:, :4].ravel()
        tile_splits[: len(rows)] = cut[:, 4]

    def _keys_per_split(self, groups: list[Group], per_tile: int, heads: int, sms: int) -> int:
        """The length of a tile that lets the GPU finish first."""
        longest = max(group.num_tokens for group in groups)
        best, best_cost = longest, float("inf")
        for splits in range(1, self.max_splits + 1):
            keys = -(-longest // splits // 128) * 128
            if -(-longest // keys) > self.max_splits:
                continue
            num = sum(
                -(-len(group.members) // per_tile) * -(-group.num_tokens // keys)
                for group in groups
            )
            cost = -(-num * heads // sms) * (keys / 128 + _LAUNCH_TILES)
            if num <= self.max_tiles and cost < best_cost:
                best, best_cost = keys, cost
        return best
