"""Sampling in one kernel: all rows' parameters stay on the GPU, and so do sampled tokens."""

from __future__ import annotations

import numpy as np
import torch

from engine.sampling.processors import Ints
from engine.sampling.sampler import DeviceRows, RowMask, Sampler
from engine.sampling_params import SamplingParams
from kernels import cuda_sampling
from kernels.transfer import to_device


class CudaSampler(Sampler):
    """Draws the same tokens as ``Sampler``, from logits of any float dtype."""

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(max_num_rows, vocab_size, eos_token_ids, seed=seed, device=device)
        shape = (max_num_rows, cuda_sampling.SAMPLING_ROW.itemsize)
        self._table = torch.zeros(shape, dtype=torch.uint8, device=device)
        """The ``cuda_sampling.SAMPLING_ROW`` of each row; valid if ``_is_current``."""
        self._is_current = False

    def admit(
        self, row: int, request_id: str, params: SamplingParams, num_prompt_tokens: int
    ) -> None:
        super().admit(row, request_id, params, num_prompt_tokens)
        self._is_current = False

    def sample(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
    ) -> torch.Tensor:
        logits = self._constrain(tokens, logits, rows, positions, mask)
        return self._draw_rows(None, logits, self._on_device(rows, positions))

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
        logits = self._constrain(tokens, logits, rows, positions, mask)
        at = on_device or self._on_device(rows, positions)
        return self._draw_rows(tokens, logits, at, host)

    def _constrain(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
    ) -> torch.Tensor:
        """As ``process``, but in the logits' own dtype where that loses nothing."""
        # HELD_BACK exceeds float16's range.
        if logits.dtype == torch.float16 or any(p.concerns(rows) for p in self._arithmetic):
            logits = logits.float()
        return self._process(tokens, logits, rows, positions, mask)

    def _on_device(self, rows: Ints, positions: Ints) -> DeviceRows:
        sent = to_device(np.stack((rows, positions)).astype(np.int32), self._device)
        return DeviceRows(sent[0], sent[1])

    def _draw_rows(
        self,
        tokens: torch.Tensor | None,
        logits: torch.Tensor,
        at: DeviceRows,
        host: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return cuda_sampling.sample_rows(logits, self.table(), at.rows, at.positions, tokens, host)

    def table(self) -> torch.Tensor:
        """The rows' current sampling parameters, for ``cuda_sampling.sample_rows``. Always the same
        memory."""
        if not self._is_current:
            self._table.copy_(self._upload())
            self._is_current = True
        return self._table

    def _upload(self) -> torch.Tensor:
        table = np.zeros(len(self._temperature), cuda_sampling.SAMPLING_ROW)
        table["temperature"] = self._temperature
        table["top_p"] = self._top_p
        table["min_p"] = self._min_p
        table["top_k"] = self._top_k
        table["seed"] = self._seeds
        return to_device(cuda_sampling.sampling_bytes(table), self._device)
