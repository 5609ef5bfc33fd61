"""Python face of the CUDA kernels for adapters of few tokens; ``cuda.load`` comes before."""

from __future__ import annotations

import torch

from kernels import cuda
from kernels.low_rank import AdapterTiles, LowRankMatrices

HALVES = frozenset({torch.bfloat16, torch.float16})
MAX_TOKENS = 16
MAX_RANK = 64


def serves(x: torch.Tensor, weight: torch.Tensor, matrices: LowRankMatrices) -> bool:
    """Whether ``linear`` can compute this."""
    features, k = weight.shape
    return (
        x.is_cuda
        and len(x) <= MAX_TOKENS
        and x.dtype in HALVES
        and weight.dtype == x.dtype
        and features % 16 == 0
        and k % 64 == 0
        and matrices.up.shape[2] <= MAX_RANK
        and cuda.available()
    )


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    matrices: LowRankMatrices,
    tiles: AdapterTiles,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """``x @ weight.T + bias`` with what each token's adapter adds to it, in two launches.

    x: [num_tokens, k], what ``serves`` says; weight: [features, k]. gated: features are
    [gate | up], and the result is ``silu(gate) * up``. See ``reference.shrink_low_rank`` and
    ``reference.expand_low_rank``.
    """
    features = weight.shape[0]
    made = x.new_empty(len(x), features)
    low = x.new_empty(len(x), matrices.down.shape[1] * matrices.down.shape[2])
    adapters = matrices.down, matrices.up, matrices.ranks, matrices.ends, tiles.slots, tiles.tokens
    torch.ops.sluice_cuda.low_rank_linear(made, low, x, weight, bias, *adapters)
    out = x.new_empty(len(x), features // 2) if gated else made
    torch.ops.sluice_cuda.expand_low_rank(out, made, low, *adapters, gated)
    return out
