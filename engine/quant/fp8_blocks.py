"""FP8 weights (e4m3) with a scale for each block of rows and columns (arXiv 2412.19437, 3.3).

As DeepSeek V3's own checkpoints hold them, and compressed-tensors where the strategy is "block":

    weight                             [out, in] float8_e4m3fn
    weight_scale_inv or weight_scale   [out / rows, in / columns] float, both rounded up: what the
                                       weight is multiplied with
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.parameter import Weight
from engine.quant.base import Quantization
from engine.quant.fp8 import FP8, DrawnFp8, Fp8
from kernels import quantized
from kernels.experts import ExpertMatrices, Fp8Experts
from kernels.reference import dequantize_fp8
from kernels.rounded import Activations


class Fp8Blocks(Quantization):
    skipped = Fp8.skipped

    def __init__(
        self,
        block: tuple[int, int],
        *,
        scale_name: str = "weight_scale_inv",
        unquantized: Sequence[str] = (),
    ) -> None:
        """block: rows and columns that share a scale. scale_name: the checkpoint's."""
        self._block, self._scale_name = block, scale_name
        self.unquantized = unquantized

    def weight(self, linear: Linear) -> QuantizedWeight:
        return Fp8BlockWeight(linear, self._block, self._scale_name)


class Fp8BlockWeight(QuantizedWeight):
    weight: Weight

    def __init__(self, linear: Linear, block: tuple[int, int], scale_name: str) -> None:
        rows, columns = block
        self._dtype = linear.dtype
        shape = sum(linear.parts.values()), linear.in_features
        self.weight = DrawnFp8(torch.empty(shape, dtype=FP8, device=linear.device), linear.parts)
        # Parts of a matrix may begin in the middle of what would be its blocks.
        starts = [*accumulate(linear.parts.values())][:-1]
        stored_rows = math.gcd(rows, *starts)
        self.block = stored_rows, columns
        shape = -(-shape[0] // stored_rows), -(-shape[1] // columns)
        self._scale = BlockScale(
            torch.empty(shape, dtype=torch.float32, device=linear.device),
            linear.parts,
            rows,
            stored_rows,
            columns_cut=linear.in_features % columns != 0,
        )
        setattr(self, scale_name, self._scale)

    @property
    def scale(self) -> torch.Tensor:
        """[out / block rows, in / block columns] float32, both rounded up"""
        return self._scale.data

    def prepare(self) -> bool:
        return quantized.serves_fp8_blocks(self.weight.data, self.block)

    def dequantize(self) -> torch.Tensor:
        return dequantize_fp8(self.weight.data, self.scale, self.block).to(self._dtype)

    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        linears = [weight for weight in weights if isinstance(weight, Fp8BlockWeight)]
        data = [linear.weight.data.view(torch.uint8) for linear in linears]
        scales = [linear.scale for linear in linears]
        return Fp8Experts(torch.stack(data).view(FP8), torch.stack(scales), self.block)

    def linear(self, x: Activations, bias: torch.Tensor | None) -> torch.Tensor:
        return quantized.fp8_linear(x, self.weight.data, self.scale, bias, block=self.block)

    def gated_linear(
        self, x: Activations, bias: torch.Tensor | None, *, round_out: bool = False
    ) -> Activations:
        return quantized.fp8_gated_linear(
            x, self.weight.data, self.scale, bias, block=self.block, round_out=round_out
        )


class BlockScale(Weight):
    """Of blocks of ``rows`` in the checkpoint, and of ``stored_rows``, a divisor, here."""

    __slots__ = ("_is_cut", "_repeats", "_rows_each")

    def __init__(
        self,
        data: torch.Tensor,
        parts: Mapping[str, int],
        rows: int,
        stored_rows: int,
        *,
        columns_cut: bool,
    ) -> None:
        """parts: rows of the weight. columns_cut: its last block of columns is not a whole one."""
        super().__init__(data, {name: -(-size // stored_rows) for name, size in parts.items()})
        self._repeats = rows // stored_rows
        self._rows_each = {name: -(-size // rows) for name, size in parts.items()}
        self._is_cut = {name: (size % rows != 0, columns_cut) for name, size in parts.items()}

    def is_cut(self, part: str, dim: int) -> bool:
        return self._is_cut[part][dim]

    def shapes(self, part: str) -> list[list[int]]:
        return [[self._rows_each[part], self.data.shape[1]]]

    def load(self, part: str, tensor: torch.Tensor) -> None:
        place = self.part(part)
        place.copy_(tensor.repeat_interleave(self._repeats, 0)[: len(place)])

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.fill_(deviation)
