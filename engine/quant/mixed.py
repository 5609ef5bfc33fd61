"""Checkpoints whose layers are stored in more than one way: INT4, say, but the head in FP8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.quant.base import CheckpointQuantization, Quantization, matches

ALL_LINEAR = "Linear"
"""The target that stands for every linear layer no other group names."""


@dataclass(frozen=True, slots=True)
class Group:
    targets: Sequence[str]
    """``ALL_LINEAR``, or layers as in ``Quantization.unquantized``."""
    quantization: Quantization


class Mixed(CheckpointQuantization):
    def __init__(self, groups: Sequence[Group]) -> None:
        """Of groups that name a layer, the first counts."""
        self._groups = groups
        self.skipped = sorted({end for group in groups for end in group.quantization.skipped})

    def of(self, name: str) -> Quantization | None:
        group = self._naming(name) or self._with_all()
        return None if group is None else group.quantization.of(name)

    def _naming(self, name: str) -> Group | None:
        for group in self._groups:
            if any(t != ALL_LINEAR and matches(t, name) for t in group.targets):
                return group
        return None

    def _with_all(self) -> Group | None:
        return next((group for group in self._groups if ALL_LINEAR in group.targets), None)
