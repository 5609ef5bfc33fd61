"""Python face of the CUDA kernels for mixtures of experts; ``cuda.load`` comes before."""

from __future__ import annotations

import torch

from kernels import ops, reference_experts
from kernels.experts import ExpertMatrices, PairTiles, max_tiles

HALVES = frozenset({torch.bfloat16, torch.float16})
FLOATS = HALVES | {torch.float32}
MAX_EXPERTS = 512
MAX_CHOSEN = 32
"""Most experts of a token, and most groups of experts."""


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
) -> torch.Tensor:
    """See ``reference_experts.apply_experts``. More tokens than ``serves`` says, and quantized
    weights, are for the backend behind."""
    if not serves(x, gate_up, down, experts):
        behind = ops.resolve("apply_experts", "cuda", x.dtype, behind="cuda")
        made: torch.Tensor = behind(x, gate_up, down, experts, weights)
        return made
    assert isinstance(gate_up, torch.Tensor)
    assert isinstance(down, torch.Tensor)
    inner = linear(x, gate_up, experts, pairs_per_row=experts.shape[1], gated=True)
    out = x.new_empty(len(x), down.shape[1])
    torch.ops.sluice_cuda.expert_sum(out, inner, down, experts, weights)
    return out


def serves(
    x: torch.Tensor, gate_up: ExpertMatrices, down: ExpertMatrices, experts: torch.Tensor
) -> bool:
    """Whether tokens are so few that they rarely share an expert."""
    return (
        isinstance(gate_up, torch.Tensor)
        and isinstance(down, torch.Tensor)
        and (len(x) == 1 or 2 * experts.numel() <= len(gate_up))
        and experts.shape[1] <= MAX_CHOSEN
        and _is_whole(gate_up)
        and _is_whole(down)
    )


def linear(
    x: torch.Tensor,
    matrices: torch.Tensor,
    experts: torch.Tensor,
    *,
    pairs_per_row: int = 1,
    gated: bool = False,
) -> torch.Tensor:
    """For each pair its expert's matrix times its row of x: [num_pairs, features].

    x: [num_pairs / pairs_per_row, k] bfloat16 or float16; matrices: [num_experts, features, k],
    features a multiple of 16 and k of 64. gated: features are [gate | up], and the result is
    ``silu(gate) * up``. Pairs of the expert ``num_experts``, which does not exist, are skipped.
    """
    features = matrices.shape[1] // (2 if gated else 1)
    out = x.new_empty(experts.numel(), features)
    torch.ops.sluice_cuda.expert_linear(out, x, matrices, experts, pairs_per_row, gated)
    return out


def combine_experts(each: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """See ``reference_experts.combine_experts``; rows are multiples of 8 elements."""
    out = each.new_empty(len(weights), each.shape[1])
    torch.ops.sluice_cuda.combine_experts(out, each, weights)
    return out


def _is_whole(matrices: torch.Tensor) -> bool:
    """Whether features and inputs are multiples of a CTA's tile."""
    return matrices.shape[1] % 16 == 0 and matrices.shape[2] % 64 == 0
