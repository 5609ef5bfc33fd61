"""Penalties for tokens that occurred before."""

from __future__ import annotations

import numpy as np
import torch

from engine.sampling.processors import Ints, Places
from engine.sampling_params import SamplingParams
from kernels import ops
from kernels.transfer import to_device


class Penalties:
    """A ``LogitsProcessor``: repetition over prompt and output, frequency and presence over the
    output alone, in this order."""

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._device = device
        self._num_active = 0
        self._active = np.zeros(max_num_rows, bool)
        self._num_prompt_tokens = np.zeros(max_num_rows, np.int64)
        self._strengths = np.zeros((3, max_num_rows), np.float32)
        """[3, max_num_rows]: repetition, frequency and presence."""

    def admit(self, row: int, params: SamplingParams, num_prompt_tokens: int) -> None:
        self.release(row)
        self._num_prompt_tokens[row] = num_prompt_tokens
        wanted = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._strengths[:, row] = wanted
        if wanted != (1.0, 0.0, 0.0):
            self._active[row] = True
            self._num_active += 1

    def release(self, row: int) -> None:
        self._num_active -= int(self._active[row])
        self._active[row] = False

    def concerns(self, rows: Ints) -> bool:
        return self._num_active > 0 and bool(self._active[rows].any())

    def apply(self, logits: torch.Tensor, at: Places) -> None:
        if self._num_active == 0:
            return
        indices = np.flatnonzero(self._active[at.rows])
        if len(indices) == 0:
            return
        rows, positions = at.rows[indices], at.positions[indices]
        where = np.stack((indices, rows, positions, self._num_prompt_tokens[rows]))
        ops.apply_penalties(
            logits,
            at.tokens,
            to_device(where, self._device),
            to_device(self._strengths[:, rows], self._device),
            max_len=int(positions.max()),
        )
