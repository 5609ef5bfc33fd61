"""What adapters add to the output of a linear layer: every token its own adapter's, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.lora.adapter import LowRankPair
from kernels import cuda_low_rank, ops
from kernels.low_rank import AdapterTiles, LowRankMatrices, padded_rank

Product = Callable[[torch.Tensor], torch.Tensor]
"""Of a linear layer alone: [num_tokens, in_features] to [num_tokens, out_features]."""


@dataclass(slots=True)
class StepAdapters:
    """What all layers share: which tokens of the step at hand have which adapter."""

    tiles: AdapterTiles | None = None
    """None: no token has one."""
    beside: torch.cuda.Stream | None = None
    """Where tokens are shrunk while the layer's own product runs."""


class LowRankAddition:
    """The adapters' share in one linear layer."""

    def __init__(
        self, matrices: LowRankMatrices, names: Mapping[str, slice], step: StepAdapters
    ) -> None:
        """names: of the places that are the layer's parts, in their order, and their features."""
        self._matrices = matrices
        self._names = names
        self._step = step

    @property
    def in_features(self) -> int:
        return self._matrices.down.shape[-1]

    @property
    def out_features(self) -> int:
        return self._matrices.up.shape[1]

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """Layers of one kind are computed alike."""
        return self.in_features, self._matrices.parts

    @property
    def is_active(self) -> bool:
        return self._step.tiles is not None

    def __call__(
        self,
        x: torch.Tensor,
        product: Product,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
    ) -> torch.Tensor:
        """See ``linear.Addition``. x: [num_tokens, in_features]."""
        tiles = self._step.tiles
        if tiles is None:
            out = product(x)
        elif weight is not None and cuda_low_rank.serves(x, weight):
            return cuda_low_rank.linear(x, weight, bias, self._matrices, tiles, gated=gated)
        else:
            out = self._beside(x, product, tiles)
        return ops.silu_mul(out) if gated else out

    def _beside(self, x: torch.Tensor, product: Product, tiles: AdapterTiles) -> torch.Tensor:
        """``product(x)``, to which the adapters' share is added in place."""
        beside = self._step.beside
        if beside is None:
            out = product(x)
            low = ops.shrink_low_rank(x, self._matrices, tiles)
        else:
            current = torch.cuda.current_stream()
            beside.wait_stream(current)
            with torch.cuda.stream(beside):
                low = ops.shrink_low_rank(x, self._matrices, tiles)
            out = product(x)
            current.wait_stream(beside)
        ops.expand_low_rank(out, low, self._matrices, tiles)
        return out

    def fill(self, slot: int, pairs: Mapping[str, LowRankPair]) -> list[int]:
        """Copy an adapter's matrices, by the places' names, into a slot. Returns the ranks of the
        parts, 0 where it has none: they belong into the slot's ``ranks``."""
        ranks = []
        for part, (name, columns) in enumerate(self._names.items()):
            pair = pairs.get(name)
            rank = 0
            if pair is not None:
                rank = len(pair.down)
                behind = slice(rank, padded_rank(rank))
                down, up = self._matrices.down[slot, part], self._matrices.up[slot, columns]
                down[:rank].copy_(pair.down, non_blocking=True)
                up[:, :rank].copy_(pair.up, non_blocking=True)
                if rank < behind.stop:
                    down[behind].zero_()
                    up[:, behind].zero_()
            ranks.append(rank)
        return ranks
