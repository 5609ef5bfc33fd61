"""The batched low-rank product: every token with its own adapter's matrices, or with none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from kernels.transfer import to_device

if TYPE_CHECKING:
    from kernels.triton.grouped_gemm import Groups


@dataclass(frozen=True, slots=True)
class Runs:
    """The tokens of each adapter in a step, known to the host: one product for each adapter."""

    by_slot: list[tuple[int, slice | torch.Tensor]]
    """(slot, its tokens: where they stand together, or [n] int64)"""


@dataclass(slots=True)
class StepAdapters:
    """What all layers share: which tokens of the step at hand have which adapter."""

    tokens: Runs | Groups | None = None
    """None: no token has one."""


class LowRankPart:
    """The matrices of all slots for one range of a linear layer's output."""

    def __init__(
        self,
        columns: slice,
        in_features: int,
        num_slots: int,
        max_rank: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.columns = columns
        out_features = columns.stop - columns.start
        self.down = torch.zeros(num_slots, max_rank, in_features, dtype=dtype, device=device)
        self.up = torch.zeros(num_slots, out_features, max_rank, dtype=dtype, device=device)
        self.ranks = [0] * num_slots
        """0: the adapter leaves this part alone."""

    def fill(self, slot: int, down: torch.Tensor, up: torch.Tensor) -> None:
        rank = len(down)
        self.clear(slot)
        self.down[slot, :rank].copy_(down, non_blocking=True)
        self.up[slot, :, :rank].copy_(up, non_blocking=True)
        self.ranks[slot] = rank

    def clear(self, slot: int) -> None:
        if self.ranks[slot]:
            self.down[slot].zero_()
            self.up[slot].zero_()
            self.ranks[slot] = 0


class LowRankAddition:
    """What the adapters add to the output of one linear layer."""

    def __init__(self, parts: list[LowRankPart], step: StepAdapters) -> None:
        self._parts = parts
        self._step = step

    @property
    def is_active(self) -> bool:
        return self._step.tokens is not None

    def __call__(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Adds to ``out`` [num_tokens, out_features] in place; x: [num_tokens, in_features]."""
        tokens = self._step.tokens
        if isinstance(tokens, Runs):
            self._add_by_slot(out, x, tokens)
        elif tokens is not None:
            self._add_grouped(out, x, tokens)
        return out

    def _add_by_slot(self, out: torch.Tensor, x: torch.Tensor, runs: Runs) -> None:
        for slot, tokens in runs.by_slot:
            rows = x[tokens]
            for part in self._parts:
                rank = part.ranks[slot]
                if not rank:
                    continue
                low, up = rows @ part.down[slot, :rank].T, part.up[slot, :, :rank].T
                if isinstance(tokens, slice):
                    out[tokens, part.columns].addmm_(low, up)
                else:
                    out[:, part.columns].index_add_(0, tokens, low @ up)

    def _add_grouped(self, out: torch.Tensor, x: torch.Tensor, groups: Groups) -> None:
        from kernels.triton.grouped_gemm import product

        x = x.contiguous()
        for part in self._parts:
            if any(part.ranks):
                # Tokens without an adapter are in no group, and keep the zeros.
                low = x.new_zeros(len(x), part.down.shape[1])
                product(low, x, part.down, groups)
                high = x.new_zeros(len(x), part.up.shape[1])
                product(high, low, part.up, groups)
                out[:, part.columns] += high


def runs_of(slots: npt.NDArray[np.int64], device: torch.device) -> Runs:
    """slots: [num_tokens], -1 for none."""
    return Runs(
        [
            (int(slot), _tokens(np.flatnonzero(slots == slot), device))
            for slot in np.unique(slots)
            if slot >= 0
        ]
    )


def _tokens(index: npt.NDArray[np.int64], device: torch.device) -> slice | torch.Tensor:
    first, end = int(index[0]), int(index[-1]) + 1
    return slice(first, end) if end - first == len(index) else to_device(index, device)


def groups_of(slots: npt.NDArray[np.int64], num_slots: int, device: torch.device) -> Groups:
    """The same for the Triton kernel, in which ``num_slots`` stands for none."""
    from kernels.triton.grouped_gemm import Groups

    slots = np.where(slots < 0, num_slots, slots)
    return Groups.of(to_device(slots, device).unsqueeze(1), num_slots)
