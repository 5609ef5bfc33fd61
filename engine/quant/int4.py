"""Weights of four bits with 16-bit activations, in groups that share a scale and a zero point.

    weight[out, in] = (nibble[out, in] - zero[out, group of in]) * scale[out, group of in]

Checkpoints lay these numbers out in different ways; ``UnpackedInt4`` is what all have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.errors import ModelLoadError
from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.parameter import Weight
from kernels import quantized
from kernels.experts import ExpertMatrices, Int4Experts
from kernels.reference import matrix_of

PER_WORD = 8
"""Nibbles in an int32."""


@dataclass(frozen=True, slots=True)
class UnpackedInt4:
    nibbles: torch.Tensor
    """[out, in] uint8, in [0, 15]"""
    scales: torch.Tensor
    """[out, groups] float"""
    zeros: torch.Tensor
    """[out, groups] uint8, in [0, 16]"""
    groups: torch.Tensor | None = None
    """[parts, in] int32: which group each input belongs to, for each part of the rows. None: as
    many neighbours as there are make a group."""


class Int4Weight(QuantizedWeight):
    """A subclass adds the checkpoint's tensors."""

    def __init__(self, linear: Linear, group_size: int) -> None:
        self._dtype = linear.dtype
        self._parts = linear.parts
        self.out_features, self.in_features = sum(linear.parts.values()), linear.in_features
        self.group_size = self.in_features if group_size == -1 else group_size
        if self.in_features % self.group_size:
            raise ValueError(f"group_size {group_size} does not divide {self.in_features} inputs")
        for size in (self.in_features, *linear.parts.values()):
            if size % PER_WORD:
                raise ValueError(f"{size} features are no multiple of {PER_WORD}")
        self.num_groups = self.in_features // self.group_size
        self._packed: quantized.Int4Matrix | None = None

    @abstractmethod
    def unpack(self) -> UnpackedInt4:
        """The checkpoint's tensors, which are given up with this call."""

    def prepare(self) -> bool:
        if not quantized.serves(next(self.named_weights())[1].data):
            return False
        unpacked = self.unpack()
        order = None if unpacked.groups is None else self._order(unpacked.groups)
        nibbles = unpacked.nibbles if order is None else unpacked.nibbles[:, order]
        self._packed = quantized.Int4Matrix.of(
            nibbles, unpacked.scales.to(self._dtype), unpacked.zeros, order
        )
        for name, value in list(vars(self).items()):
            if isinstance(value, Weight):
                delattr(self, name)
        return True

    def dequantize(self) -> torch.Tensor:
        unpacked = self.unpack()
        rows = [slice(0, self.out_features)]
        groups = torch.arange(self.in_features, device=unpacked.scales.device)[None]
        groups = groups // self.group_size
        if unpacked.groups is not None:
            groups, rows, start = unpacked.groups.long(), [], 0
            for size in self._parts.values():
                rows.append(slice(start, start + size))
                start += size
        out = torch.empty(unpacked.nibbles.shape, dtype=self._dtype, device=groups.device)
        for part, group in zip(rows, groups, strict=True):
            centred = unpacked.nibbles[part].float() - unpacked.zeros[part].float()[:, group]
            out[part] = (centred * unpacked.scales[part].float()[:, group]).to(self._dtype)
        return out

    def stack(self, weights: Sequence[QuantizedWeight]) -> ExpertMatrices:
        packed = [weight._packed for weight in weights if isinstance(weight, Int4Weight)]
        matrices = [matrix for matrix in packed if matrix is not None]
        if any(matrix.order is not None for matrix in matrices):
            raise ModelLoadError(
                "quantization: inputs in another order (desc_act) are not supported for experts"
            )
        made = Int4Experts(
            torch.stack([matrix.packed for matrix in matrices]),
            torch.stack([matrix.groups for matrix in matrices]),
        )
        if self.group_size % 32 == 0:
            return made
        whole = [matrix_of(made, expert, self._dtype) for expert in range(len(made))]
        return torch.stack(whole)

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert self._packed is not None
        return quantized.int4_linear(x, self._packed, bias)

    def gated_linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert self._packed is not None
        return quantized.int4_gated_linear(x, self._packed, bias)

    def _order(self, groups: torch.Tensor) -> torch.Tensor | None:
        """In which inputs of one group are neighbours; None: they are already."""
        if not bool((groups == groups[0]).all()):
            raise ModelLoadError(
                f"quantization: the inputs of {', '.join(self._parts)} are in different orders "
                "(desc_act), which the GPU's product does not support"
            )
        counts = torch.bincount(groups[0].long(), minlength=self.num_groups)
        if not bool((counts == self.group_size).all()):
            raise ModelLoadError(f"quantization: g_idx: groups must have {self.group_size} inputs")
        if bool((groups[0].diff() >= 0).all()):
            return None
        return groups[0].argsort(stable=True)


class PackedWeight(Weight):
    """Integers, several in a word."""

    def draw(self, deviation: float, generator: torch.Generator) -> None:
        self.data.random_(generator=generator)


class GroupScale(Weight):
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
