"""GPTQ checkpoints (arXiv 2210.17323), as AutoGPTQ and GPTQModel lay them out.

qweight: [in / 8, out] int32; qzeros: [groups, out / 8] int32; scales: [groups, out]; g_idx: [in]
int32, the group of each input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.parameter import Weight
from engine.quant.base import Quantization
from engine.quant.int4 import (
    GroupIndex,
    GroupScale,
    Int4Weight,
    PackedWeight,
    UnpackedInt4,
    divided,
    unpack_columns,
)


class Gptq(Quantization):
    def __init__(
        self, group_size: int, *, zero_offset: int = 1, unquantized: Sequence[str] = ("lm_head",)
    ) -> None:
        """zero_offset: what the format takes off a zero point before it is stored."""
        self._group_size, self._zero_offset = group_size, zero_offset
        self.unquantized = unquantized

    def weight(self, linear: Linear) -> QuantizedWeight:
        return GptqWeight(linear, self._group_size, self._zero_offset)

    def skips(self, tensor: str, known: Callable[[str], bool]) -> bool:
        """Exporters write biases of zeros for layers that have none."""
        return tensor.endswith(".bias") and not known(tensor)


class GptqWeight(Int4Weight):
    def __init__(self, linear: Linear, group_size: int, zero_offset: int) -> None:
        super().__init__(linear, group_size)
        self._zero_offset = zero_offset
        in_features, out_features = self.in_features, self.out_features

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=linear.device)

        self.qweight: Weight = PackedWeight.by_column(
            empty(in_features // 8, out_features), linear.parts
        )
        self.qzeros: Weight = PackedWeight.by_column(
            empty(self.num_groups, out_features // 8), divided(linear.parts)
        )
        scales = empty(self.num_groups, out_features, dtype=linear.dtype)
        self.scales: Weight = GroupScale.by_column(scales, linear.parts)
        self.g_idx: Weight = GroupIndex(linear, self.group_size)

    def unpack(self) -> UnpackedInt4:
        return UnpackedInt4(
            unpack_columns(self.qweight.data.T),
            self.scales.data.T,
            unpack_columns(self.qzeros.data).T + self._zero_offset,
            self.g_idx.data,
        )
