"""AWQ checkpoints (arXiv 2306.00978), as AutoAWQ's "gemm" version lays them out.

qweight: [in, out / 8] int32; qzeros: [groups, out / 8] int32; scales: [groups, out].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.parameter import Weight
from engine.quant.base import Quantization
from engine.quant.int4 import (
    GroupScale,
    Int4Weight,
    PackedWeight,
    UnpackedInt4,
    divided,
    unpack_columns,
)

NIBBLE_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of each of the eight columns that share a word."""


class Awq(Quantization):
    def __init__(self, group_size: int, *, unquantized: Sequence[str] = ()) -> None:
        self._group_size = group_size
        self.unquantized = ("lm_head", *unquantized)

    def weight(self, linear: Linear) -> QuantizedWeight:
        return AwqWeight(linear, self._group_size)


class AwqWeight(Int4Weight):
    def __init__(self, linear: Linear, group_size: int) -> None:
        super().__init__(linear, group_size)
        words = self.out_features // 8

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=linear.device)

        parts = divided(linear.parts)
        self.qweight: Weight = PackedWeight.by_column(empty(self.in_features, words), parts)
        self.qzeros: Weight = PackedWeight.by_column(empty(self.num_groups, words), parts)
        scales = empty(self.num_groups, self.out_features, dtype=linear.dtype)
        self.scales: Weight = GroupScale.by_column(scales, linear.parts)

    def unpack(self) -> UnpackedInt4:
        return UnpackedInt4(
            unpack_columns(self.qweight.data, NIBBLE_OF_COLUMN).T,
            self.scales.data.T,
            unpack_columns(self.qzeros.data, NIBBLE_OF_COLUMN).T,
        )
