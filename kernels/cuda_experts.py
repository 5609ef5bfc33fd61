"""Python face of the CUDA kernels for mixtures of experts; ``cuda.load`` comes before."""

from __future__ import annotations

import torch

from kernels import ops
from kernels.experts import ExpertMatrices, PairTiles, max_tiles

HALVES = frozenset({torch.bfloat16, torch.float16})
FLOATS = HALVES | {torch.float32}
MAX_EXPERTS = 512
TILE_ROWS = 16
"""Pairs of one expert that a CTA multiplies at once."""
MAX_SHARE = 16
"""Pairs an expert gets on average, up to which these products serve."""
MAX_LOOSE_TOKENS = 1
"""Tokens whose pairs are not sorted by expert, and whose experts are summed up on the way."""
_SHORT = 1024
"""Inputs of a matrix that four warps of a CTA share, in place of eight."""


def register() -> None:
    """Serve mixtures of experts on GPUs."""
    ops.register("route_experts", "cuda", route_experts, dtypes=FLOATS)
    ops.register("group_pairs", "cuda", group_pairs)
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
    """See ``reference.route_experts``. Up to 512 experts, of which up to 32 are chosen."""
    shape, device = (len(logits), top_k), logits.device
    experts = torch.empty(shape, dtype=torch.int64, device=device)
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    torch.ops.sluice_cuda.route_experts(
        experts, weights, logits, bias, sigmoid, renormalize, scale, num_groups, top_k_groups
    )
    return experts, weights


def group_pairs(experts: torch.Tensor, num_experts: int, rows: int) -> PairTiles:
    """See ``reference.group_pairs``; pairs of one expert come in any order. Up to 512 experts."""
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
    """See ``reference.apply_experts``; ``experts`` and ``weights`` are those of ``route_experts``,
    which ran right before. Many tokens and quantized weights are for the backend behind."""
    if (
        not isinstance(gate_up, torch.Tensor)
        or not isinstance(down, torch.Tensor)
        or experts.numel() > MAX_SHARE * len(gate_up)
        or not _is_whole(gate_up)
        or not _is_whole(down)
    ):
        behind = ops.resolve("apply_experts", "cuda", x.dtype, behind="cuda")
        made: torch.Tensor = behind(x, gate_up, down, experts, weights)
        return made
    num_tokens, top_k = experts.shape
    loose = num_tokens <= MAX_LOOSE_TOKENS
    tiles = None if loose else ops.group_pairs(experts, len(gate_up), TILE_ROWS)
    inner = linear(x, gate_up, experts, tiles, pairs_per_row=top_k, gated=True)
    out = x.new_empty(num_tokens, down.shape[1])
    if loose:
        torch.ops.sluice_cuda.expert_sum(out, inner, down, experts, weights)
    else:
        each = linear(inner, down, experts, tiles, routed=True)
        torch.ops.sluice_cuda.combine_experts(out, each, weights)
    return out


def linear(
    x: torch.Tensor,
    matrices: torch.Tensor,
    experts: torch.Tensor,
    tiles: PairTiles | None,
    *,
    pairs_per_row: int = 1,
    gated: bool = False,
    routed: bool = False,
    warps: int | None = None,
) -> torch.Tensor:
    """Of each pair: its expert's matrix times its row of x, [num_pairs, features].

    x: [num_pairs / pairs_per_row, k]; matrices: [num_experts, features, k]. tiles: of
    ``TILE_ROWS`` rows at most; None: every pair is multiplied alone. gated: features are
    [gate | up], and the result is ``silu(gate) * up``. routed: what made x began only after
    ``experts`` and ``tiles`` were complete.
    """
    features = matrices.shape[1] // (2 if gated else 1)
    out = x.new_empty(experts.numel(), features)
    torch.ops.sluice_cuda.expert_linear(
        out,
        x,
        matrices,
        experts,
        None if tiles is None else tiles.order,
        None if tiles is None else tiles.tiles,
        pairs_per_row,
        gated,
        routed,
        warps or (4 if x.shape[1] <= _SHORT else 8),
    )
    return out


def _is_whole(matrices: torch.Tensor) -> bool:
    """Whether features and inputs are multiples of what a CTA multiplies at once."""
    return matrices.shape[1] % 16 == 0 and matrices.shape[2] % 64 == 0
