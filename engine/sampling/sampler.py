"""The order of sampling, and the sampling parameters of the running requests.

raw logits → logit_bias → penalties → bad words and, until min_tokens, stop tokens held back →
allowed_token_ids → grammar mask → top-n-sigma → temperature → top-k, top-p, min-p → Gumbel argmax
with a counter-based generator keyed by (seed, position).

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
    Places,
    TopNSigma,
)
from engine.sampling.seeds import request_seed
from engine.sampling_params import SamplingParams
from kernels import ops
from kernels.sampling_row import SAMPLING_ROW, sampling_table
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
        self._rows = np.zeros(max_num_rows, SAMPLING_ROW)
        self._table = sampling_table(self._rows).clone().to(device)
        """``_rows`` on the device; valid if ``_is_current``."""
        self._is_current = True
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
        self._behind_mask: tuple[LogitsProcessor, ...] = (TopNSigma(device),)

    def admit(
        self, row: int, request_id: str, params: SamplingParams, num_prompt_tokens: int
    ) -> None:
        unlimited = params.top_k <= 0
        top_k = self._vocab_size if unlimited else min(params.top_k, self._vocab_size)
        seed = request_seed(self._engine_seed, request_id) if params.seed is None else params.seed
        self._rows[row] = params.temperature, params.top_p, params.min_p, top_k, seed, 0
        self._is_current = False
        for processor in (*self._processors, *self._behind_mask):
            processor.admit(row, params, num_prompt_tokens)

    def release(self, row: int) -> None:
        for processor in (*self._processors, *self._behind_mask):
            processor.release(row)

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
        logits = self._constrain(logits, Places(tokens, rows, positions), mask)
        at = self._on_device(rows, positions)
        return ops.sample_rows(logits, self.table(), at.rows, at.positions)

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
        logits = self._constrain(logits, Places(tokens, rows, positions), mask)
        at = on_device or self._on_device(rows, positions)
        return ops.sample_rows(logits, self.table(), at.rows, at.positions, tokens, host)

    def table(self) -> torch.Tensor:
        """The rows' current sampling parameters, for ``ops.sample_rows``. Always the same
        memory."""
        if not self._is_current:
            self._table.copy_(self._tensor(sampling_table(self._rows).numpy()))
            self._is_current = True
        return self._table

    def _on_device(self, rows: Ints, positions: Ints) -> DeviceRows:
        sent = self._tensor(np.stack((rows, positions)).astype(np.int32))
        return DeviceRows(sent[0], sent[1])

    def _constrain(self, logits: torch.Tensor, at: Places, mask: RowMask | None) -> torch.Tensor:
        """As ``process``, but on a GPU in the logits' own dtype where that loses nothing."""
        # HELD_BACK exceeds float16's range.
        is_narrow = not logits.is_cuda or logits.dtype == torch.float16
        if is_narrow or any(processor.concerns(at.rows) for processor in self._arithmetic):
            logits = logits.float()
        return self._process(logits, at, mask)

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
        return self._process(logits.float(), Places(tokens, rows, positions), mask)

    def _process(self, logits: torch.Tensor, at: Places, mask: RowMask | None) -> torch.Tensor:
        """``process`` in place, with the precision of ``logits``."""
        for processor in self._processors:
            processor.apply(logits, at)
        if mask is not None:
            ops.apply_token_bitmask(logits, self._tensor(mask.bitmask), self._tensor(mask.indices))
        for processor in self._behind_mask:
            processor.apply(logits, at)
        return logits

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self._device)
