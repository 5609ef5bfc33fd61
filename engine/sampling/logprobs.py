"""Log-probabilities as the model gives them, before any sampling parameter takes effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.messages import TokenLogprobs
from kernels import ops
from kernels.transfer import pinned


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The log-probabilities to report of n tokens, each at its own place in its own text."""

    token_ids: torch.Tensor
    """[n] int64"""
    logprobs: torch.Tensor
    """[n] float32"""
    ranks: torch.Tensor
    """[n] int64, from 1 on"""
    top_ids: torch.Tensor
    """[n, k] int64: the likeliest tokens there"""
    top_logprobs: torch.Tensor
    """[n, k] float32"""

    @classmethod
    def of(cls, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> TokenScores:
        """logits: [n, vocab], any float dtype; token_ids: [n] int64."""
        k = min(num_top, logits.shape[1])
        return cls(token_ids, *ops.token_logprobs(logits, token_ids, k))

    @classmethod
    def join(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Concatenate ``parts`` with the same k."""
        columns = zip(*(part._columns() for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def on_host(self) -> TokenScores:
        """A copy in pinned memory, valid once the device's stream has reached this point."""
        return TokenScores(*(pinned(column) for column in self._columns()))

    def read(self, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """The records, with ``num_top`` of the likeliest tokens for each. Only when in host
        memory."""
        lists = (column.tolist() for column in self._columns())
        return [
            TokenLogprobs(token_id, logprob, rank, list(zip(ids[:k], values[:k], strict=True)))
            for token_id, logprob, rank, ids, values, k in zip(*lists, num_top, strict=True)
        ]

    def _columns(self) -> tuple[torch.Tensor, ...]:
        return self.token_ids, self.logprobs, self.ranks, self.top_ids, self.top_logprobs
