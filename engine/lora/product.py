"""What adapters add to the output of a linear layer: for each token that of its own adapter, if
any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.lora.adapter import LoraPair
from kernels import cuda_lora, ops
from kernels.lora import AdapterTiles, LoraMatrices, padded_rank

Product = Callable[[torch.Tensor], torch.Tensor]
"""The product of a linear layer itself: [num_tokens, in_features] to [num_tokens, out_features]."""


@dataclass(slots=True)
class StepAdapters:
    """Shared by all layers: which tokens of the current step have which adapter."""

    tiles: AdapterTiles | None = None
    """None: no token has an adapter."""
    wanted: AdapterTiles | None = None
    """The adapters of the wanted tokens alone (``StepContext.wanted``), for the last layer."""

    def of(self, num_tokens: int) -> AdapterTiles | None:
        """The adapters for a product of ``num_tokens`` tokens: all of the step, or the wanted
        ones."""
        if self.tiles is None or self.tiles.num_tokens == num_tokens:
            return self.tiles
        assert self.wanted is not None
        assert self.wanted.num_tokens == num_tokens
        return self.wanted


class LoraAddition:
    """The matrices of all adapter slots for one linear layer; the layer's ``Addition``."""

    def __init__(
        self, matrices: LoraMatrices, names: Mapping[str, slice], step: StepAdapters
    ) -> None:
        """names: the target modules that are fused in the layer, in order, with their
        output features. step: shared by all layers."""
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
        """Layers of the same kind use the same compiled kernels."""
        return self.in_features, self._matrices.parts

    @property
    def is_active(self) -> bool:
        return self._step.tiles is not None

    def operands(self, num_tokens: int) -> tuple[torch.Tensor, ...] | None:
        """See ``linear.Addition``."""
        tiles = self._step.of(num_tokens)
        if tiles is None:
            return ()
        floats = self._matrices.down.dtype in cuda_lora.HALVES
        if not (floats and cuda_lora.takes(self._matrices, num_tokens)):
            return None
        return cuda_lora.described(self._matrices, tiles)

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
        tiles = self._step.of(len(x))
        if tiles is None:
            out = product(x)
        elif weight is not None and cuda_lora.serves(x, weight):
            return cuda_lora.linear(x, weight, bias, self._matrices, tiles, gated=gated)
        else:
            out = self._around(x, product, tiles)
        return ops.silu_mul(out) if gated else out

    def _around(self, x: torch.Tensor, product: Product, tiles: AdapterTiles) -> torch.Tensor:
        """``product(x)``, with what the adapters add, added in place.

        The shrinking runs first: a product whose kernel may start early loads its weights
        meanwhile."""
        low = ops.shrink_lora(x, self._matrices, tiles)
        out = product(x)
        ops.expand_lora(out, low, self._matrices, tiles)
        return out

    def fill(self, slot: int, pairs: Mapping[str, LoraPair]) -> list[int]:
        """Copy an adapter's matrices, by the name of their target module, into a slot.

        Returns the rank of each part, 0 where the adapter has no matrices; the caller puts them
        into the slot's ``ranks``.
        """
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
