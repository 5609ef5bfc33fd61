"""The persistent state of running requests: one row each of known tokens and block ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.scheduler.plan import Admission

Ints = npt.NDArray[np.int64]


class RowTable:
    """Both tables live on the device, so that a step needs only row numbers from the host."""

    def __init__(
        self, max_num_rows: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.tokens = torch.zeros(max_num_rows, max_model_len, dtype=torch.int64, device=device)
        """[max_num_rows, max_model_len] int64: token ids as far as known."""
        self.block_table = torch.zeros(max_num_rows, max_blocks, dtype=torch.int32, device=device)
        """[max_num_rows, max_blocks] int32"""
        self._num_blocks = [0] * max_num_rows

    def admit(self, admission: Admission) -> None:
        row, token_ids = admission.row, admission.token_ids
        self.tokens[row, : len(token_ids)] = torch.tensor(token_ids, dtype=torch.int64)
        self._num_blocks[row] = 0
        self.append_blocks([(row, admission.block_ids)])

    def append_blocks(self, new_blocks: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Append block ids to the block tables of rows."""
        rows: list[int] = []
        columns: list[int] = []
        ids: list[int] = []
        for row, block_ids in new_blocks:
            start = self._num_blocks[row]
            self._num_blocks[row] = end = start + len(block_ids)
            rows += [row] * len(block_ids)
            columns += range(start, end)
            ids += block_ids
        if ids:
            where = torch.tensor([rows, columns], device=self.tokens.device)
            values = torch.tensor(ids, dtype=torch.int32, device=self.tokens.device)
            self.block_table[where[0], where[1]] = values
