"""Tiles cover every query once, the longest first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.tiles import tile_list


def test_tiles_cover_every_query_longest_first() -> None:
    tiles = tile_list(np.array([100, 1, 33]), np.array([100, 900, 33]), 4, 128)
    assert sorted(map(tuple, tiles.tolist())) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 0),
        (2, 0),
        (2, 1),
    ]
    assert tiles[0].tolist() == [1, 0]
    assert tiles[1].tolist() == [0, 3]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=6),
    st.integers(1, 9),
    st.sampled_from([16, 128]),
)
def test_tiles_hold_all_rows(chunks: list[tuple[int, int]], group: int, rows: int) -> None:
    queries = np.array([queries for queries, _ in chunks])
    tiles = tile_list(queries, queries + [before for _, before in chunks], group, rows)
    assert len(tiles) == len(set(map(tuple, tiles.tolist())))
    for sequence, (count, _) in enumerate(chunks):
        mine = tiles[tiles[:, 0] == sequence, 1]
        assert sorted(mine) == list(range(-(-count * group // rows)))
    seen = []
    for sequence, tile in tiles.tolist():
        count, before = chunks[sequence]
        last_row = min((tile + 1) * rows, count * group) - 1
        seen.append(before + last_row // group + 1)
    # To one key: that of a query whose heads are in two tiles counts for the second.
    assert all(first >= second - 1 for first, second in pairwise(seen)), "longest first"
