"""The adapters of a step, in the memory that CUDA graphs read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kernels.lora import AdapterTiles, max_tiles, tile_rows, tile_table
from kernels.transfer import write


class StaticTiles:
    """Memory for the tiles of steps of at most ``max_tokens`` tokens."""

    def __init__(self, max_tokens: int, num_slots: int, device: torch.device) -> None:
        self._num_slots = num_slots
        size = max(self._size(num_tokens) for num_tokens in range(1, max_tokens + 1))
        self._table = torch.full((size,), -1, dtype=torch.int32, device=device)

    def of(self, num_tokens: int) -> AdapterTiles:
        """The tiles that a graph of ``num_tokens`` reads; none until ``send``."""
        table = self._table[: self._size(num_tokens)]
        return AdapterTiles.view(table, num_tokens, tile_rows(num_tokens))

    def send(self, slots: npt.NDArray[np.int64], num_tokens: int) -> None:
        """slots: of the leading tokens, -1 for none; tokens after those, up to ``num_tokens``, have
        none."""
        tiles = max_tiles(num_tokens, self._num_slots)
        table = tile_table(slots, tile_rows(num_tokens), tiles)
        write(self._table[: len(table)], table)

    def _size(self, num_tokens: int) -> int:
        return max_tiles(num_tokens, self._num_slots) * (1 + tile_rows(num_tokens))
