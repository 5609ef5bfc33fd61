"""Mixtures of experts by the CUDA kernels."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels import ops, reference_experts
from kernels.cuda import native
from kernels.experts import (
    BiasedSwiglu,
    ExpertMatrices,
    Fp8Experts,
    Int4Experts,
    PairTiles,
    features_of,
    max_tiles,
)

HALVES = frozenset({torch.bfloat16, torch.float16})
FLOATS = HALVES | {torch.float32}
MAX_EXPERTS = 512
MAX_CHOSEN = 32
"""The most experts of a token, and the most groups of experts."""


def register() -> None:
    """Serve mixtures of experts on GPUs."""
    ops.register("route_experts", "cuda", route_experts, dtypes=FLOATS)
    ops.register("group_pairs", "cuda", group_pairs)
    ops.register("combine_experts", "cuda", native.combine_experts, dtypes=HALVES)
    ops.register("apply_experts", "cuda", apply_experts, dtypes=HALVES)


@functools.wraps(reference_experts.route_experts)
def route_experts(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    top_k: int,
    num_groups: int = 1,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference_experts.route_experts``, which serves what is too large for the kernel."""
    large = logits.shape[1] > MAX_EXPERTS or max(top_k, num_groups) > MAX_CHOSEN
    route: Any = reference_experts.route_experts if large else native.route_experts
    chosen: tuple[torch.Tensor, torch.Tensor] = route(
        logits, bias, top_k=top_k, num_groups=num_groups, **options
    )
    return chosen


def group_pairs(experts: torch.Tensor, num_experts: int, rows: int) -> PairTiles:
    """See ``reference_experts.group_pairs``, which serves more experts than the kernel; pairs of
    one expert come in any order."""
    if num_experts > MAX_EXPERTS or experts.shape[1] > MAX_CHOSEN:
        return reference_experts.group_pairs(experts, num_experts, rows)
    num_tiles = max_tiles(experts.numel(), num_experts, rows)
    return PairTiles(rows, *native.group_pairs(experts, num_experts, rows, num_tiles))


def apply_experts(
    x: torch.Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    experts: torch.Tensor,
    weights: torch.Tensor,
    swiglu: BiasedSwiglu | None = None,
) -> torch.Tensor:
    """See ``reference_experts.apply_experts``. What ``serves`` excludes goes to the next
    backend."""
    if swiglu is not None or not serves(x, gate_up, down, experts):
        behind = ops.resolve("apply_experts", "cuda", x.dtype, behind="cuda")
        made: torch.Tensor = behind(x, gate_up, down, experts, weights, swiglu)
        return made
    inner = linear(x, gate_up, experts, pairs_per_row=experts.shape[1], gated=True)
    weight, scales = _stored(down)
    out: torch.Tensor = native.expert_sum(inner, weight, experts=experts, shares=weights, **scales)
    return out


def serves(
    x: torch.Tensor, gate_up: ExpertMatrices, down: ExpertMatrices, experts: torch.Tensor
) -> bool:
    """Whether there are so few tokens that they rarely share an expert."""
    return (
        (len(x) == 1 or 2 * experts.numel() <= len(gate_up))
        and experts.shape[1] <= MAX_CHOSEN
        and _is_whole(gate_up, x.shape[1])
        and _is_whole(down, features_of(gate_up) // 2)
    )


def linear(
    x: torch.Tensor,
    matrices: ExpertMatrices,
    experts: torch.Tensor,
    *,
    pairs_per_row: int = 1,
    gated: bool = False,
) -> torch.Tensor:
    """For each pair its expert's matrix times its row of x: [num_pairs, features].

    x: [num_pairs / pairs_per_row, k]. See ``native.expert_linear``; pairs of the expert
    ``num_experts``, which does not exist, are skipped.
    """
    weight, scales = _stored(matrices)
    out: torch.Tensor = native.expert_linear(
        x, weight, experts=experts, pairs_per_row=pairs_per_row, gated=gated, **scales
    )
    return out


def _stored(matrices: ExpertMatrices) -> tuple[torch.Tensor, dict[str, Any]]:
    """The matrices as the kernels' ``weight``, and their arguments for its scales."""
    match matrices:
        case Fp8Experts():
            rows, columns = matrices.block or (1, matrices.weight.shape[2])
            scales = {"scales": matrices.scale, "block_rows": rows, "group_size": columns}
            return matrices.weight, scales
        case Int4Experts():
            group_size = matrices.packed.shape[2] * 8 // matrices.groups.shape[2]
            return matrices.packed, {"scales": matrices.groups, "group_size": group_size}
    assert isinstance(matrices, torch.Tensor), "gpt-oss's, for another backend"
    return matrices, {}


def _is_whole(matrices: ExpertMatrices, k: int) -> bool:
    """Whether features and inputs are multiples of a CTA's tile, and groups of a chunk."""
    k_multiple, group_multiple = 64, 1
    match matrices:
        case Fp8Experts():
            group_multiple = 64
        case Int4Experts():
            k_multiple, group_multiple = 128, 32
    is_grouped = _stored(matrices)[1].get("group_size", 1) % group_multiple == 0
    return features_of(matrices) % 16 == 0 == k % k_multiple and is_grouped
