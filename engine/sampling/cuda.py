"""Sampling in one kernel: the parameters of all rows stay on the GPU, drawn tokens too."""

from __future__ import annotations

import numpy as np
import torch

from engine.messages import SamplingParams
from engine.sampling.sampler import DeviceRows, Ints, RowMask, Sampler
from kernels import cuda
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
        self._table: torch.Tensor | None = None
        """``cuda.SAMPLING_ROW`` of each row; None: out of date."""

    def admit(
        self, row: int, request_id: str, params: SamplingParams, num_prompt_tokens: int
    ) -> None:
        super().admit(row, request_id, params, num_prompt_tokens)
        self._table = None

    def sample(
        self, logits: torch.Tensor, rows: Ints, positions: Ints, mask: RowMask | None
    ) -> torch.Tensor:
        return self._sample(None, logits, rows, positions, mask, None)

    def sample_into(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
        on_device: DeviceRows | None = None,
    ) -> torch.Tensor:
        return self._sample(tokens, logits, rows, positions, mask, on_device)

    def _sample(
        self,
        tokens: torch.Tensor | None,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
        on_device: DeviceRows | None,
    ) -> torch.Tensor:
        if logits.dtype == torch.float16:
            logits = logits.float()  # HELD_BACK is out of its range
        logits = self._constrain(logits, rows, positions, mask)
        if self._table is None:
            self._table = self._upload()
        if on_device is None:
            sent = to_device(np.stack((rows, positions)).astype(np.int32), self._device)
            on_device = DeviceRows(sent[0], sent[1])
        return cuda.sample_rows(logits, self._table, on_device.rows, on_device.positions, tokens)

    def _upload(self) -> torch.Tensor:
        table = np.zeros(len(self._temperature), cuda.SAMPLING_ROW)
        table["temperature"] = self._temperature
        table["top_p"] = self._top_p
        table["min_p"] = self._min_p
        table["top_k"] = self._top_k
        table["seed"] = self._seeds
        return to_device(cuda.sampling_bytes(table), self._device)
