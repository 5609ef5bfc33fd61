"""The order of sampling, and the sampling parameters of the running requests.

raw logits → stop tokens held back until min_tokens → grammar mask → temperature → top-k, top-p,
min-p → Gumbel argmax with a counter-based generator keyed by (seed, position).

No step of it looks at another row, so a request's tokens do not depend on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.messages import SamplingParams
from engine.sampling.seeds import request_seed
from kernels import ops
from kernels.transfer import to_device

HELD_BACK = -1e30
"""The logit of a stop token before min_tokens. Finite: where the grammar allows nothing but the
end, the grammar wins."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowMask:
    """Grammar masks of some of the rows being sampled."""

    indices: Ints
    """[n]: which of the rows."""
    bitmask: npt.NDArray[np.int32]
    """[n, ceil(vocab_size / 32)], as in ``TokenMask``."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The rows being sampled, in device memory."""

    rows: torch.Tensor
    """[num_rows] int32"""
    positions: torch.Tensor
    """[num_rows] int32"""


@dataclass(frozen=True, slots=True)
class _HeldStops:
    """A request that must not stop before the position ``until``."""

    until: int
    token_ids: list[int]


class Sampler:
    """Parameters live in one slot per row of the runner, written when a request takes the row."""

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
        self._eos_token_ids = eos_token_ids
        self._engine_seed = seed
        self._device = device
        self._temperature = np.zeros(max_num_rows, np.float32)
        self._top_k = np.zeros(max_num_rows, np.int64)
        self._top_p = np.zeros(max_num_rows, np.float32)
        self._min_p = np.zeros(max_num_rows, np.float32)
        self._seeds = np.zeros(max_num_rows, np.uint64)
        self._held_stops: dict[int, _HeldStops] = {}

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
        self._held_stops.pop(row, None)
        if params.min_tokens > 0:
            stops = self._eos_token_ids.union(params.stop_token_ids)
            self._held_stops[row] = _HeldStops(
                until=num_prompt_tokens + params.min_tokens,
                token_ids=[i for i in sorted(stops) if 0 <= i < self._vocab_size],
            )

    def release(self, row: int) -> None:
        self._held_stops.pop(row, None)

    def sample_into(
        self,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        rows: Ints,
        positions: Ints,
        mask: RowMask | None,
        on_device: DeviceRows | None = None,
    ) -> torch.Tensor:
        """``sample``, and store what is drawn at ``tokens[row, position]``.

        tokens: [max_num_rows, max_len] int64. on_device: rows and positions, if they are there.
        """
        token_ids = self.sample(logits, rows, positions, mask)
        where = self._tensor(np.stack((rows, positions)))
        tokens[where[0], where[1]] = token_ids
        return token_ids

    def sample(
        self, logits: torch.Tensor, rows: Ints, positions: Ints, mask: RowMask | None
    ) -> torch.Tensor:
        """Draw the token at ``positions`` of each of ``rows``: int64 [num_rows], on the device.

        logits: [num_rows, vocab], any float dtype, overwritten.
        """
        logits = self._constrain(logits.float(), rows, positions, mask)
        random = np.flatnonzero(self._temperature[rows])
        if len(random) == 0:
            return logits.argmax(-1)
        if len(random) == len(rows):
            return self._draw(logits, rows, positions)
        token_ids = logits.argmax(-1)
        chosen = self._tensor(random)
        token_ids[chosen] = self._draw(logits[chosen], rows[random], positions[random])
        return token_ids

    def _constrain(
        self, logits: torch.Tensor, rows: Ints, positions: Ints, mask: RowMask | None
    ) -> torch.Tensor:
        """Forbid what min_tokens and grammars forbid, in place."""
        if self._held_stops:
            self._hold_back_stops(logits, rows, positions)
        if mask is not None:
            ops.apply_token_bitmask(logits, self._tensor(mask.bitmask), self._tensor(mask.indices))
        return logits

    def _hold_back_stops(self, logits: torch.Tensor, rows: Ints, positions: Ints) -> None:
        indices: list[int] = []
        tokens: list[int] = []
        for i, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            held = self._held_stops.get(row)
            if held is not None and position < held.until:
                indices += [i] * len(held.token_ids)
                tokens += held.token_ids
        if indices:
            where = self._tensor(np.array(indices)), self._tensor(np.array(tokens))
            logits[where] = HELD_BACK

    def _draw(self, logits: torch.Tensor, rows: Ints, positions: Ints) -> torch.Tensor:
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        return ops.sample(
            logits,
            self._tensor(self._temperature[rows]),
            self._tensor(top_k) if (top_k < self._vocab_size).any() else None,
            self._tensor(top_p) if (top_p < 1).any() else None,
            self._tensor(min_p) if (min_p > 0).any() else None,
            self._tensor(self._seeds[rows].view(np.int64)),
            self._tensor(positions),
        )

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self._device)
