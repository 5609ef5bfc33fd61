"""The stacked matrices of a mixture's experts, quantized or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Fp8Experts:
    """FP8 weights of all experts of a layer."""

    weight: torch.Tensor
    """[num_experts, features, k] float8_e4m3fn"""
    scale: torch.Tensor
    """[num_experts, ceil(features / rows), ceil(k / columns)] float32: the scale of each block"""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale; None: one row, all columns."""

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def features(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class Int4Experts:
    """INT4 weights of all experts of a layer."""

    packed: torch.Tensor
    """[num_experts, features, k / 8] int32, see ``reference.dequantize_int4``."""
    groups: torch.Tensor
    """[num_experts, features, num_groups, 2] of the activations' dtype: scale, zero"""

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def features(self) -> int:
        return self.packed.shape[1]


MXFP4_BLOCK = 32
"""Numbers of a row that share a scale."""


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """MXFP4 weights of all experts of a layer."""

    packed: torch.Tensor
    """[num_experts, features, k / 2] uint8, see ``reference_experts.dequantize_mxfp4``."""
    scale: torch.Tensor
    """[num_experts, features, k / 32] uint8: exponents of two plus 127"""

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def features(self) -> int:
        return self.packed.shape[1]


@dataclass(frozen=True, slots=True)
class BiasedSwiglu:
    """What gpt-oss's experts compute between and around their matrices, in place of ``silu(gate) *
    up``: ``(clip(up, -limit, limit) + 1) * g * sigmoid(alpha * g)`` with ``g = min(gate, limit)``,
    after biases were added."""

    gate_up_bias: torch.Tensor
    """[num_experts, 2 * inner], gate first, of the activations' dtype"""
    down_bias: torch.Tensor
    """[num_experts, hidden]"""
    alpha: float
    limit: float

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[pairs, 2 * inner], biases included; returns [pairs, inner]."""
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


ExpertMatrices = torch.Tensor | Fp8Experts | Int4Experts | Mxfp4Experts
"""A plain tensor is [num_experts, features, k]."""


def features_of(matrices: ExpertMatrices) -> int:
    """Rows of each expert's matrix."""
    return matrices.shape[1] if isinstance(matrices, torch.Tensor) else matrices.features


@dataclass(frozen=True, slots=True)
class PairTiles:
    """The (token, expert) pairs of a step, sorted by expert and divided into tiles. A pair's number
    is ``token * top_k + place``."""

    rows: int
    """Pairs in a tile."""
    order: torch.Tensor
    """[num_pairs] int32: the pairs, sorted by expert."""
    tiles: torch.Tensor
    """[3, ``max_tiles``] int32: a tile's expert (num_experts: no tile), its first place in
    ``order``, and where its expert's pairs end there."""


def tile_rows(num_pairs: int, num_experts: int) -> int:
    """Pairs in a tile: the fewest possible while experts get few pairs, else so many that most
    experts need one tile. (Each tile reads its expert's whole matrix.)"""
    return 16 if num_pairs <= 8 * num_experts else 64


def max_tiles(num_pairs: int, num_experts: int, rows: int) -> int:
    """An upper bound of the number of tiles: in the worst case each expert has one partly filled
    tile."""
    return num_pairs // rows + min(num_experts, num_pairs)
