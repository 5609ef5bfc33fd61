"""The reference ops for mixtures of experts."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from kernels import reference
from kernels.experts import (
    MXFP4_BLOCK,
    BiasedSwiglu,
    ExpertMatrices,
    Fp8Experts,
    Int4Experts,
    Mxfp4Experts,
    PairTiles,
    max_tiles,
)


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
    """Each token's best experts: [num_tokens, top_k] int64, the best first, and their weights.

    logits: [num_tokens, num_experts]; the scores are their softmax or ``sigmoid``. bias:
    [num_experts] float32, added to choose by, not to weigh (arXiv 2408.15664). Experts are chosen
    from the best ``top_k_groups`` of ``num_groups`` groups of neighbours only (arXiv 2405.04434); a
    group counts its best expert, with a bias its two best. Weights, float32: the scores,
    ``renormalize``d to a sum of 1 or not, times ``scale``.
    """
    logits = logits.float()
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    wanted = scores if bias is None else scores + bias
    if num_groups > 1:
        grouped = wanted.view(len(wanted), num_groups, -1)
        best = grouped.topk(1 if bias is None else 2, dim=-1).values.sum(-1)
        kept = best.topk(top_k_groups, dim=-1).indices
        lost = torch.ones_like(best, dtype=torch.bool).scatter_(1, kept, False)
        wanted = grouped.masked_fill(lost.unsqueeze(-1), float("-inf")).view_as(wanted)
    experts = wanted.topk(top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * scale


def group_pairs(experts: torch.Tensor, num_experts: int, rows: int) -> PairTiles:
    """experts: [num_tokens, top_k] int64; ``num_experts``: none. Nothing waits for the device."""
    pairs = experts.reshape(-1)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=pairs.device)
    counts.scatter_add_(0, pairs, torch.ones_like(pairs))
    tiles_each = (counts + rows - 1) // rows
    tile_ends, pair_ends = tiles_each.cumsum(0), counts.cumsum(0)
    tile = torch.arange(max_tiles(len(pairs), num_experts, rows), device=pairs.device)
    expert = torch.searchsorted(tile_ends[:num_experts].contiguous(), tile, right=True)
    local = tile - (tile_ends - tiles_each)[expert]
    first = (pair_ends - counts)[expert] + local * rows
    tiles = torch.stack((expert, first, pair_ends[expert])).to(torch.int32)
    return PairTiles(rows, pairs.argsort(stable=True).to(torch.int32), tiles)


def apply_experts(
    x: torch.Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    experts: torch.Tensor,
    weights: torch.Tensor,
    swiglu: BiasedSwiglu | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``down(silu(gate(x)) * up(x))`` each, or with
    ``swiglu`` what that says.

    x: [num_tokens, hidden]; gate_up: [num_experts, 2 * inner, hidden], gate first; down:
    [num_experts, hidden, inner], either of them quantized or not; experts: [num_tokens, top_k]
    int64; weights: the same float32. The expert ``num_experts`` is none, of the weight 0.
    """
    out = torch.zeros_like(x)
    for expert in torch.unique(experts).tolist():
        if expert == len(gate_up):
            continue
        tokens, places = (experts == expert).nonzero(as_tuple=True)
        first, second = (matrix_of(each, expert, x.dtype) for each in (gate_up, down))
        if swiglu is None:
            made = F.linear(reference.silu_mul(F.linear(x[tokens], first)), second)
        else:
            inner = swiglu.activate(F.linear(x[tokens], first, swiglu.gate_up_bias[expert]))
            made = F.linear(inner, second, swiglu.down_bias[expert])
        weighted = made * weights[tokens, places].unsqueeze(1)
        out.index_add_(0, tokens, weighted.to(x.dtype))
    return out


def combine_experts(each: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum what each token's experts made, times their weights.

    each: [num_tokens * top_k, width], the rows of a token next to each other; weights: [num_tokens,
    top_k] float32. Returns [num_tokens, width] of ``each``'s dtype, rounded once.
    """
    made = each.view(*weights.shape, -1).masked_fill((weights == 0).unsqueeze(-1), 0)
    return (made * weights.unsqueeze(-1)).sum(1).to(each.dtype)


def matrix_of(matrices: ExpertMatrices, expert: int, dtype: torch.dtype) -> torch.Tensor:
    """One expert's matrix: [features, k] of ``dtype``."""
    match matrices:
        case Fp8Experts():
            weight, scale = matrices.weight[expert], matrices.scale[expert]
            return reference.dequantize_fp8(weight, scale, matrices.block).to(dtype)
        case Int4Experts():
            return reference.dequantize_int4(matrices.packed[expert], matrices.groups[expert]).to(
                dtype
            )
        case Mxfp4Experts():
            return dequantize_mxfp4(matrices.packed[expert], matrices.scale[expert]).to(dtype)
    return matrices[expert]


def dequantize_mxfp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """packed: [..., k / 2] uint8, the lower four bits of a byte first; a number is a sign, two bits
    of exponent and one of mantissa (E2M1). scale: [..., k / 32] uint8, an exponent of two plus 127
    (E8M0) for each block. Returns [..., k] float32, exact (OCP Microscaling Formats 1.0)."""
    sizes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    numbers = torch.tensor([*sizes, *(-size for size in sizes)], device=packed.device)
    nibbles = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    blocks = numbers[nibbles.int()].view(*scale.shape, MXFP4_BLOCK)
    return torch.ldexp(blocks, scale.int().unsqueeze(-1) - 127).flatten(-2)
