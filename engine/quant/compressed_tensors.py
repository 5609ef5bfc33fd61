"""Checkpoints in the compressed-tensors layout, as llm-compressor writes them: FP8 and INT4.

FP8: as in ``fp8``. INT4 (pack-quantized): weight_packed: [out, in / 8] int32; weight_scale: [out,
groups]; weight_zero_point: [out / 8, groups] int32; weight_g_idx: [in] int32. Integers are signed,
and stored with 8 added.
"""

from __future__ import annotations

from collections.abc import Sequence

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

_OFFSET = 8


class PackQuantized(Quantization):
    skipped = (".weight_shape", ".k_scale", ".v_scale")

    def __init__(
        self,
        group_size: int,
        *,
        symmetric: bool = True,
        ordered: bool = False,
        unquantized: Sequence[str] = (),
    ) -> None:
        """symmetric: there are no zero points. ordered: inputs have been put into another order,
        which weight_g_idx tells."""
        self._group_size, self._symmetric, self._ordered = group_size, symmetric, ordered
        self.unquantized = unquantized

    def weight(self, linear: Linear) -> QuantizedWeight:
        return PackQuantizedWeight(
            linear, self._group_size, symmetric=self._symmetric, ordered=self._ordered
        )


class PackQuantizedWeight(Int4Weight):
    def __init__(self, linear: Linear, group_size: int, *, symmetric: bool, ordered: bool) -> None:
        super().__init__(linear, group_size)
        rows, num_groups = self.out_features, self.num_groups

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=linear.device)

        self.weight_packed: Weight = PackedWeight(empty(rows, self.in_features // 8), linear.parts)
        scales = empty(rows, num_groups, dtype=linear.dtype)
        self.weight_scale: Weight = GroupScale(scales, linear.parts)
        self.weight_zero_point: Weight | None = None
        if not symmetric:
            zeros = empty(rows // 8, num_groups)
            self.weight_zero_point = PackedWeight(zeros, divided(linear.parts))
        self.weight_g_idx: Weight | None = None
        if ordered:
            self.weight_g_idx = GroupIndex(linear, self.group_size)

    def unpack(self) -> UnpackedInt4:
        scales, zero_points = self.weight_scale.data, self.weight_zero_point
        return UnpackedInt4(
            unpack_columns(self.weight_packed.data),
            scales,
            torch.full(scales.shape, _OFFSET, dtype=torch.uint8, device=scales.device)
            if zero_points is None
            else unpack_columns(zero_points.data.T).T,
            None if self.weight_g_idx is None else self.weight_g_idx.data,
        )
