"""Token embeddings."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.parallel.group import ALONE, Group

_FEW = 16
"""Rows that ``F.embedding`` takes one after the other on a GPU: 11.9 us, an index 2.6."""

_ROWS_MULTIPLE = 16
"""Kernels of quantized heads need a multiple of this many rows."""


class Embedding(Module):
    """Looks up token embeddings, scaled by ``multiplier`` (Gemma, Granite)."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        multiplier: float = 1.0,
        group: Group = ALONE,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """group: the ranks among which the rows are divided."""
        num_rows = rows_of_rank(vocab_size, group)
        self._group = group
        self.weight = Weight(torch.empty(num_rows, hidden_size, dtype=dtype, device=device))
        # Rounded to the weights' dtype, as transformers does.
        self.multiplier = torch.tensor(multiplier, dtype=dtype).item()

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: [num_tokens] int64; returns [num_tokens, hidden]."""
        embedded = self._rows(token_ids) if self._group.size == 1 else self._gathered(token_ids)
        return embedded if self.multiplier == 1 else embedded.mul_(self.multiplier)

    def _rows(self, rows: torch.Tensor) -> torch.Tensor:
        if 1 < len(rows) <= _FEW:
            return self.weight.data[rows]
        return F.embedding(rows, self.weight.data)

    def _gathered(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Each rank adds zeros for the tokens whose rows another one has."""
        num_rows = len(self.weight.data)
        rows = token_ids - self._group.rank * num_rows
        is_here = (rows >= 0) & (rows < num_rows)
        found = self._rows(rows.clamp(0, num_rows - 1))
        return self._group.all_reduce(found * is_here[:, None])


def rows_of_rank(vocab_size: int, group: Group) -> int:
    """Rows of an embedding or a head that each rank has; what exceeds the vocabulary is padding."""
    each = -(-vocab_size // group.size)
    return each if group.size == 1 else -(-each // _ROWS_MULTIPLE) * _ROWS_MULTIPLE
