"""Python bindings of the CUDA kernels for mixtures of experts. ``cuda.load`` must run before."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import ops, reference_experts
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
    ops.register("combine_experts", "cuda", combine_experts, dtypes=HALVES)
    ops.register("apply_experts", "cuda", apply_experts, dtypes=HALVES)


def route_experts(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    top_k: int,
    sigmoid: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
    num_groups: int = 1,
    top_k_groups: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference_experts.route_experts``, which serves what is too large for the kernel."""
    if logits.shape[1] > MAX_EXPERTS or max(top_k, num_groups) > MAX_CHOSEN:
        return reference_experts.route_experts(
            logits,
            bias,
            top_k=top_k,
            sigmoid=sigmoid,
            renormalize=renormalize,
            scale=scale,
            num_groups=num_groups,
            top_k_groups=top_k_groups,
        )
    shape, device = (len(logits), top_k), logits.device
    experts = torch.empty(shape, dtype=torch.int64, device=device)
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    torch.ops.sluice_cuda.route_experts(
        experts, weights, logits, bias, sigmoid, renormalize, scale, num_groups, top_k_groups
    )
    return experts, weights


def group_pairs(experts: torch.Tensor, num_experts: int, rows: int) -> PairTiles:
    """See ``reference_experts.group_pairs``, which serves more experts than the kernel; pairs of
    one expert come in any order."""
    if num_experts > MAX_EXPERTS or experts.shape[1] > MAX_CHOSEN:
        return reference_experts.group_pairs(experts, num_experts, rows)
    num_pairs = experts.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=experts.device)
    tiles = order.new_empty(3, max_tiles(num_pairs, num_experts, rows))
    torch.ops.sluice_cuda.group_pairs(order, tiles, experts, num_experts, rows)
    return PairTiles(rows, order, tiles)


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
    stored = _stored(down)
    out = x.new_empty(len(x), features_of(down))
    torch.ops.sluice_cuda.expert_sum(
        out,
        inner,
        stored.weight,
        stored.scales,
        experts,
        weights,
        stored.block_rows,
        stored.group_size,
    )
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

    x: [num_pairs / pairs_per_row, k] bfloat16 or float16; matrices: of features a multiple of 16
    and k of 64, in INT4 of 128. gated: features are [gate | up], and the result is ``silu(gate) *
    up``. Pairs of the expert ``num_experts``, which does not exist, are skipped.
    """
    stored = _stored(matrices)
    out = x.new_empty(experts.numel(), features_of(matrices) // (2 if gated else 1))
    torch.ops.sluice_cuda.expert_linear(
        out,
        x,
        stored.weight,
        stored.scales,
        experts,
        pairs_per_row,
        gated,
        stored.block_rows,
        stored.group_size,
    )
    return out


def combine_experts(each: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """See ``reference_experts.combine_experts``; rows are multiples of 8 elements."""
    out = each.new_empty(len(weights), each.shape[1])
    torch.ops.sluice_cuda.combine_experts(out, each, weights)
    return out


@dataclass(frozen=True, slots=True)
class _Stored:
    """The matrices as arguments of the kernels."""

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    block_rows: int = 1
    group_size: int = 1


def _stored(matrices: ExpertMatrices) -> _Stored:
    match matrices:
        case Fp8Experts():
            rows, columns = matrices.block or (1, matrices.weight.shape[2])
            return _Stored(matrices.weight, matrices.scale, rows, columns)
        case Int4Experts():
            group_size = matrices.packed.shape[2] * 8 // matrices.groups.shape[2]
            return _Stored(matrices.packed, matrices.groups, 1, group_size)
    assert isinstance(matrices, torch.Tensor), "gpt-oss's, for another backend"
    return _Stored(matrices)


def _is_whole(matrices: ExpertMatrices, k: int) -> bool:
    """Whether features and inputs are multiples of a CTA's tile, and groups of a chunk."""
    k_multiple, group_multiple = 64, 1
    match matrices:
        case Fp8Experts():
            group_multiple = 64
        case Int4Experts():
            k_multiple, group_multiple = 128, 32
    is_grouped = _stored(matrices).group_size % group_multiple == 0
    return features_of(matrices) % 16 == 0 == k % k_multiple and is_grouped
