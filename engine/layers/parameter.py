"""Weights that know which parts of a checkpoint they are made of."""

from __future__ import annotations

from collections.abc import Mapping

import torch

Index = slice | tuple[int, slice]


class Weight:
    """A parameter made of ``parts``: ranges of its first dimension, by checkpoint name.

    A fused QKV weight, say, has the parts q_proj, k_proj and v_proj; a plain one has the part "".
    """

    __slots__ = ("data", "parts")

    def __init__(self, data: torch.Tensor, parts: Mapping[str, int] | None = None) -> None:
        """parts: rows of each part, in their order; None: one part, the whole."""
        self.data = data
        self.parts: dict[str, Index] = dict(_ranges(parts or {"": data.shape[0]}))

    @classmethod
    def stacked(cls, data: torch.Tensor, parts: Mapping[str, int]) -> Weight:
        """data: [count, rows, ...], each with the ``parts``: "0.gate_proj", "0.up_proj", ..."""
        weight = cls(data)
        weight.parts = {
            f"{i}.{name}": (i, rows)
            for i in range(data.shape[0])
            for name, rows in _ranges(parts).items()
        }
        return weight

    def part(self, name: str) -> torch.Tensor:
        """The view a checkpoint tensor is copied to. Raises ``KeyError`` for an unknown part."""
        return self.data[self.parts[name]]


def _ranges(parts: Mapping[str, int]) -> dict[str, slice]:
    ranges, start = {}, 0
    for name, rows in parts.items():
        ranges[name] = slice(start, start + rows)
        start += rows
    return ranges
