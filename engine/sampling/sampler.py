"""The order of sampling, and the sampling parameters of the running requests.

raw logits → logit_bias → penalties → bad words and, until min_tokens, stop tokens held back →
allowed_token_ids → grammar mask → temperature → top-k, top-p, min-p → Gumbel argmax with a
counter-based generator keyed by (seed, position).

No step of it looks at another row, so a request's tokens do not depend on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.penalties import Penalties
from engine.sampling.processors import (
    AllowedTokens,
    BadWords,
    Ints,
    LogitBias,
    LogitsProcessor,
    MinTokens,
)
from engine.sampling.seeds import request_seed
from engine.sampling_params import SamplingParams
from kernels import ops
from kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class RowMask:
    """Grammar masks for some of the sampled rows."""

    indices: Ints
    """[n]: indices into the sampled rows."""
    bitmask: npt.NDArray[np.int32]
    """[n, ceil(vocab_size / 32)], as in ``TokenMask``."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The sampled rows, in device memory."""

    rows: torch.Tensor
    """[num_rows] int32"""
    positions: torch.Tensor
    """[num_rows] int32"""


class Sampler:
    """Keeps parameters by row of the runner, set when a request takes the row."""

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        self._vocab_size = vocab_size
        self._engine_seed = seed
        self._device = device
        self._temperature = np.zeros(max_num_rows, np.float32)
        self._top_k = np.zeros(max_num_rows, np.int64)
        self._top_p = np.zeros(max_num_rows, np.float32)
        self._min_p = np.zeros(max_num_rows, np.float32)
        self._seeds = np.zeros(max_num_rows, np.uint64)
        self._arithmetic: tuple[LogitsProcessor, ...] = (
            LogitBias(device),
            Penalties(max_num_rows, device),
        )
        """The processors that need float32 precision."""
        self._processors: tuple[LogitsProcessor, ...] = (
            *self._arithmetic,
            BadWords(device),
            MinTokens(device, vocab_size, eos_token_ids),
            AllowedTokens(device, vocab_size, eos_token_ids),
        )

    def admit(
        self, row: int, request_id: str, params: SamplingParams, num_prompt_tokens: int
    ) -> None:
        self._temperature[row] = params.temperature
        unlimited = params.top_k <= 0
        self._top_k[row] = self._vocab_size if unlimited else min(params.top_k, self._vocab_size)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = (
            request_seed(self._engine_seed, request_id) if params.seed is None else params.seed
        )
        for processor in self._processors:
            processor.admit(row, params, num_prompt_tokens)

    def release(self, row: int) -> None:
        for processor in self._processors:
            processor.release(row)

    def sample_into(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
        on_device: DeviceRows | None = None,
        host: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``sample``, and store the sampled tokens at ``tokens[row, position]``.

        on_device: rows and positions in device memory, if they are there. host: [num_rows] int64,
        pinned if the device is a GPU, which has the tokens once the device has got here, and must
        live until then.
        """
        token_ids = self.sample(tokens, logits, rows, positions, mask)
        where = self._tensor(np.stack((rows, positions)))
        tokens[where[0], where[1]] = token_ids
        if host is not None:
            host.copy_(token_ids, non_blocking=True)
        return token_ids

    def sample(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
    ) -> torch.Tensor:
        """Sample the token at ``positions`` of each of ``rows``: [num_rows] int64, on the device.

        tokens: [max_num_rows, max_len] int64, known before each position. logits: [num_rows,
        vocab], any float dtype, overwritten.
        """
        logits = self.process(tokens, logits, rows, positions, mask)
        temperature = self._temperature[rows]
        if not temperature.any():
            return logits.argmax(-1)
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        return ops.sample(
            logits,
            self._tensor(temperature),
            self._tensor(top_k) if (top_k < self._vocab_size).any() else None,
            self._tensor(top_p) if (top_p < 1).any() else None,
            self._tensor(min_p) if (min_p > 0).any() else None,
            self._tensor(self._seeds[rows].view(np.int64)),
            self._tensor(positions),
        )

    def process(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
    ) -> torch.Tensor:
        """Everything that precedes the temperature: [num_rows, vocab] float32.

        Arguments as for ``sample``. A row may occur several times, with ascending positions, if
        ``tokens`` holds what precedes each of them.
        """
        return self._process(tokens, logits.float(), rows, positions, mask)

    def _process(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
    ) -> torch.Tensor:
        """``process`` in place, with the precision of ``logits``."""
        for processor in self._processors:
            processor.apply(tokens, logits, rows, positions)
        if mask is not None:
            ops.apply_token_bitmask(logits, self._tensor(mask.bitmask), self._tensor(mask.indices))
        return logits

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self._device)
