"""Weights of four bits with 16-bit activations, in groups that share a scale and a zero point.

    weight[out, in] = (nibble[out, in] - zero[out, group of in]) * scale[out, group of in]

Checkpoints lay these numbers out in different ways; ``UnpackedInt4`` is what all have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from engine.errors import ModelLoadError
from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.parameter import Weight
from kernels import quantized
from kernels.experts import ExpertMatrices, Int4Experts
from kernels.rounded import Activations

PER_WORD = 8
"""Nibbles in an int32."""


@dataclass(frozen=True, slots=True)
class UnpackedInt4:
    """An INT4 weight in a form that is independent of the checkpoint's layout."""

    nibbles: torch.Tensor
    """[out, in] uint8, in [0, 15]"""
    scales: torch.Tensor
    """[out, groups] float"""
    zeros: torch.Tensor
    """[out, groups] uint8, in [0, 16]"""
    groups: torch.Tensor | None = None
    """[parts, in] int32: the group of each input, for each part of the rows (GPTQ's g_idx). None:
    consecutive inputs make a group."""


class Int4Weight(QuantizedWeight):
    """An INT4 weight; a subclass for each layout adds the checkpoint's tensors."""

    def __init__(self, linear: Linear, group_size: int) -> None:
        self._dtype = linear.dtype
        self._parts = linear.parts
        self.out_features, self.in_features = sum(linear.parts.values()), linear.in_features
        self.group_size = self.in_features if group_size == -1 else group_size
        if self.in_features % self.group_size:
            raise ValueError(f"group_size {group_size} does not divide {self.in_features} inputs")
        for size in (self.in_features, self.group_size, *linear.parts.values()):
            if size % PER_WORD:
                raise ValueError(f"{size} features are no multiple of {PER_WORD}")
        self.num_groups = self.in_features // self.group_size
        self._packed: list[quantized.Int4Matrix] = []
        """Filled by ``prepare``: one matrix, or one for each part if their inputs are in different
        orders."""

    @abstractmethod
    def unpack(self) -> UnpackedInt4:
        """Unpack the checkpoint's tensors; they are not used any more after this call."""

    def prepare(self) -> bool:
        data = next(self.named_weights())[1].data
        if self.in_features % quantized.INT4_INPUTS or not quantized.serves(data):
            return False
        unpacked = self.unpack()
        self._packed = [self._matrix(unpacked, *part) for part in self._ordered_parts(unpacked)]
        for name, value in list(vars(self).items()):
            if isinstance(value, Weight):
                delattr(self, name)
        return True

    def _matrix(
        self, unpacked: UnpackedInt4, rows: slice, groups: torch.Tensor | None
    ) -> quantized.Int4Matrix:
        order = None if groups is None else self._order(groups)
        nibbles = unpacked.nibbles[rows] if order is None else unpacked.nibbles[rows][:, order]
        scales, zeros = unpacked.scales[rows].to(self._dtype), unpacked.zeros[rows]
        return quantized.Int4Matrix.of(nibbles, scales, zeros, order)

    def _ordered_parts(self, unpacked: UnpackedInt4) -> list[tuple[slice, torch.Tensor | None]]:
        """(rows, groups) of the parts whose inputs are in one order. groups: [in], the group of
        each input; None: consecutive inputs make a group."""
        groups = unpacked.groups
        if groups is None:
            return [(slice(0, self.out_features), None)]
        if bool((groups == groups[0]).all()):
            return [(slice(0, self.out_features), groups[0])]
        return list(zip(self._rows(), groups, strict=True))

    def _rows(self) -> list[slice]:
        """The rows of each part."""
        ends = list(accumulate(self._parts.values()))
        return [slice(*ends) for ends in pairwise([0, *ends])]

    def dequantize(self) -> torch.Tensor:
        unpacked = self.unpack()
        rows = [slice(0, self.out_features)]
        groups = torch.arange(self.in_features, device=unpacked.scales.device)[None]
        groups = groups // self.group_size
        if unpacked.groups is not None:
            groups, rows = unpacked.groups.long(), self._rows()
        out = torch.empty(unpacked.nibbles.shape, dtype=self._dtype, device=groups.device)
        for part, group in zip(rows, groups, strict=True):
            centred = unpacked.nibbles[part].float() - unpacked.zeros[part].float()[:, group]
            out[part] = (centred * unpacked.scales[part].float()[:, group]).to(self._dtype)
        return out

    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        experts = [weight for weight in weights if isinstance(weight, Int4Weight)]
        matrices = [expert._packed[0] for expert in experts]
        ordered = any(matrix.order is not None for matrix in matrices)
        if ordered or self.group_size % 32:  # The kernel for experts supports neither.
            return torch.stack([expert._dequantized() for expert in experts])
        return Int4Experts(
            torch.stack([matrix.packed for matrix in matrices]),
            torch.stack([matrix.groups for matrix in matrices]),
        )

    def _dequantized(self) -> torch.Tensor:
        """As ``dequantize``, once prepared."""
        return torch.cat([matrix.dequantize() for matrix in self._packed])

    def linear(self, x: Activations, bias: torch.Tensor | None) -> torch.Tensor:
        assert isinstance(x, torch.Tensor), "rounded, though nobody asked"
        if len(self._packed) == 1:
            return quantized.int4_linear(x, self._packed[0], bias)
        out = torch.cat([quantized.int4_linear(x, matrix, None) for matrix in self._packed], 1)
        return out if bias is None else out.add_(bias)

    def gated_linear(
        self, x: Activations, bias: torch.Tensor | None, *, round_out: bool = False
    ) -> Activations:
        if len(self._packed) == 1 and isinstance(x, torch.Tensor):
            return quantized.int4_gated_linear(x, self._packed[0], bias)
        return super().gated_linear(x, bias, round_out=round_out)

    def _order(self, groups: torch.Tensor) -> torch.Tensor | None:
        """[in] int64: in which inputs of one group are neighbours; None: they are already.

        groups: [in], the group of each input.
        """
        counts = torch.bincount(groups.long(), minlength=self.num_groups)
        if not bool((counts == self.group_size).all()):
            raise ModelLoadError(f"quantization: g_idx: groups must have {self.group_size} inputs")
        if bool((groups.diff() >= 0).all()):
            return None
        return groups.argsort(stable=True)


class PackedWeight(Weight):
    """Integers, several in a word."""

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.random_(generator=generator)


class GroupScale(Weight):
    """The scales of groups."""

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.fill_(deviation / 4)


class GroupIndex(Weight):
    """[parts, in] int32, in the checkpoint one vector for each part."""

    def __init__(self, linear: Linear, group_size: int) -> None:
        shape = len(linear.parts), linear.in_features
        data = torch.empty(shape, dtype=torch.int32, device=linear.device)
        super().__init__(data)
        self.parts = {name: (i, slice(None)) for i, name in enumerate(linear.parts)}
        self._group_size = group_size

    def load(self, part: str, tensor: torch.Tensor) -> None:
        """A shard of the inputs begins with a later group, and has no part of a group."""
        groups = tensor - tensor.min()
        if groups.max() >= -(-len(groups) // self._group_size):
            raise ModelLoadError(
                "quantization: g_idx: a rank would have parts of groups, because of act-order: set "
                "tensor_parallel_size to 1, or take a checkpoint without act-order"
            )
        super().load(part, groups)

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.copy_(torch.arange(self.data.shape[1]) // self._group_size)


def divided(parts: Mapping[str, int]) -> dict[str, int]:
    """The parts of a tensor with ``PER_WORD`` of their features in a word."""
    return {name: size // PER_WORD for name, size in parts.items()}


def unpack_columns(words: torch.Tensor, order: Sequence[int] = range(PER_WORD)) -> torch.Tensor:
    """words: [rows, columns] int32; returns [rows, columns * 8] uint8.

    order: which nibble of a word, counted from the lowest, holds each of its eight columns.
    """
    shifts = torch.tensor([4 * nibble for nibble in order], device=words.device)
    nibbles = (words.unsqueeze(-1) >> shifts.to(torch.int32)) & 15
    return nibbles.to(torch.uint8).flatten(-2)
