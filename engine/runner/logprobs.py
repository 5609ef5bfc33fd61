"""Log-probabilities of a step: which rows ask for them, and their way to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from engine.messages import TokenLogprobs
from engine.runner.inputs import ChunkFields
from engine.runner.rows import Ints
from engine.sampling.logprobs import TokenScores
from engine.scheduler.plan import Admission
from kernels.transfer import to_device

LOGITS_AT_ONCE = 256
"""Prompt tokens whose logits are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class KeptLogits:
    """Raw logits of the rows that ask for log-probabilities, kept until their tokens are
    sampled."""

    logits: torch.Tensor
    """[n, vocab]"""
    indices: Ints
    """[n]: indices into the sampled rows."""
    num_top: Ints
    """[n]"""

    def of(self, token_ids: torch.Tensor, chunks: Ints) -> Reading:
        """The log-probabilities of what was sampled. token_ids, chunks: of all sampled rows."""
        chosen = token_ids[to_device(self.indices, token_ids.device)]
        scores = TokenScores.of(self.logits, chosen, int(self.num_top.max()))
        return Reading.start(scores, chunks[self.indices], self.num_top)


@dataclass(frozen=True, slots=True)
class Reading:
    """Log-probabilities of n tokens on their way to the host."""

    scores: TokenScores
    chunks: Ints
    """[n]: the chunk of each."""
    num_top: Ints
    """[n]: how many of the likeliest tokens to report with each."""

    @classmethod
    def start(cls, scores: TokenScores, chunks: Ints, num_top: Ints) -> Reading:
        return cls(scores.on_host() if scores.token_ids.is_cuda else scores, chunks, num_top)

    def by_chunk(self) -> dict[int, list[TokenLogprobs]]:
        """The records of each chunk. Call it only when the device has done its work."""
        found: dict[int, list[TokenLogprobs]] = {}
        records = self.scores.read(self.num_top.tolist())
        for chunk, record in zip(self.chunks.tolist(), records, strict=True):
            found.setdefault(chunk, []).append(record)
        return found


class LogprobRows:
    """How many log-probabilities the request of each row asked for."""

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._num_output = np.full(max_num_rows, -1)
        """-1: none at all."""
        self._num_prompt = np.full(max_num_rows, -1)
        self._prompt_lens = np.zeros(max_num_rows, np.int64)
        self._asking: set[int] = set()
        """Rows that asked for any: seldom one."""

    def admit(self, admission: Admission) -> None:
        params, row = admission.params, admission.row
        self.release(row)
        if params.logprobs is None and params.prompt_logprobs is None:
            return
        self._asking.add(row)
        self._num_output[row] = self._number(params.logprobs)
        # A request that has generated before has reported its prompt already.
        is_new = len(admission.token_ids) == admission.num_prompt_tokens
        self._num_prompt[row] = self._number(params.prompt_logprobs if is_new else None)
        self._prompt_lens[row] = admission.num_prompt_tokens

    def release(self, row: int) -> None:
        if row in self._asking:
            self._asking.remove(row)
            self._num_output[row] = self._num_prompt[row] = -1

    def _number(self, asked: int | None) -> int:
        if asked is None:
            return -1
        return self._vocab_size if asked == -1 else asked

    def keep(self, logits: torch.Tensor, rows: Ints) -> KeptLogits | None:
        """A copy of the logits that sampling is about to overwrite; None if no row asks for it.
        logits: [num_rows, vocab], of ``rows``."""
        if not self._asking:
            return None
        num_top = self._num_output[rows]
        indices = np.flatnonzero(num_top >= 0)
        if len(indices) == 0:
            return None
        kept = logits[to_device(indices, logits.device)]
        return KeptLogits(kept, indices, num_top[indices])

    def wants_prompts(self, fields: ChunkFields) -> bool:
        """Whether ``of_prompts`` may need the hidden states of all tokens."""
        return bool(self._asking) and bool(self._num_prompt[fields.rows].max() >= 0)

    def of_prompts(
        self,
        fields: ChunkFields,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> Reading | None:
        """Log-probabilities of the prompt tokens that a step's tokens predict, None if no row asks.

        hidden: [num_tokens, hidden_size], where ``wants_prompts``. tokens: [max_num_rows, max_len]
        int64. logits_of: maps rows of ``hidden`` to logits.
        """
        if not self.wants_prompts(fields):
            return None
        num_top = self._num_prompt[fields.rows]
        left = self._prompt_lens[fields.rows] - 1 - fields.computed
        counts = np.where(num_top >= 0, np.minimum(fields.query_lens, left), 0).clip(min=0)
        if not counts.any():
            return None
        chunks = np.arange(len(counts)).repeat(counts)
        offsets = np.arange(len(chunks)) - (counts.cumsum() - counts)[chunks]
        indices = (fields.query_lens.cumsum() - fields.query_lens)[chunks] + offsets
        places = (indices, fields.rows[chunks], fields.computed[chunks] + offsets + 1)
        index, row, position = to_device(np.stack(places), hidden.device)
        targets = tokens[row, position]
        most = int(num_top[counts > 0].max())
        parts = [
            TokenScores.of(logits_of(hidden[index[rows]]), targets[rows], most)
            for rows in (
                slice(start, start + LOGITS_AT_ONCE)
                for start in range(0, len(chunks), LOGITS_AT_ONCE)
            )
        ]
        return Reading.start(TokenScores.join(parts), chunks, num_top[chunks])
