"""Divides the query tokens of a step into tiles for the prefill kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def tile_list(query_lens: Ints, seq_lens: Ints, group: int, rows: int) -> npt.NDArray[np.int32]:
    """All tiles of the sequences with a query: [num_tiles, 2] of (sequence, tile), longest first.

    The tiles that see the most keys start first, so that short ones fill the gaps at the end.
    """
    num_tiles = -(-query_lens * group // rows)
    sequence = np.repeat(np.arange(len(query_lens)), num_tiles)
    tile = np.arange(len(sequence)) - np.repeat(num_tiles.cumsum() - num_tiles, num_tiles)
    last_query = np.minimum((tile + 1) * rows // group, query_lens[sequence])
    keys = (seq_lens - query_lens)[sequence] + last_query
    order = np.argsort(-keys, kind="stable")
    return np.stack((sequence[order], tile[order]), 1).astype(np.int32)
