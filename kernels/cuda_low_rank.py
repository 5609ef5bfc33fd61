"""Python face of the CUDA kernels for adapters of few tokens; ``cuda.load`` comes before."""

from __future__ import annotations

import functools

import torch

from kernels import cuda
from kernels.low_rank import AdapterTiles, LowRankMatrices

HALVES = frozenset({torch.bfloat16, torch.float16})
MAX_TOKENS = 16
SLICES = 4
"""Of the inputs, whose sums are added up where they are used."""


def serves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether ``linear`` can compute this."""
    features, k = weight.shape
    return (
        x.is_cuda
        and len(x) <= MAX_TOKENS
        and x.dtype in HALVES
        and weight.dtype == x.dtype
        and features % 16 == 0
        and k % 64 == 0
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
    """``x @ weight.T + bias`` with what each token's adapter adds to it, in one launch.

    x: [num_tokens, k], what ``serves`` says; weight: [features, k]. gated: features are
    [gate | up], and the result is ``silu(gate) * up``. See ``reference.shrink_low_rank`` and
    ``reference.expand_low_rank``.
    """
    features = weight.shape[0]
    out = x.new_empty(len(x), features // 2 if gated else features)
    columns = matrices.down.shape[1] * matrices.down.shape[2]
    low = x.new_empty(SLICES, len(x), columns, dtype=torch.float32)
    torch.ops.sluice_cuda.low_rank_linear(
        out,
        low,
        _counters(x.device),
        x,
        weight,
        bias,
        matrices.down,
        matrices.up,
        matrices.ranks,
        matrices.ends,
        tiles.slots,
        tiles.tokens,
        gated,
    )
    return out


@functools.cache
def _counters(device: torch.device) -> torch.Tensor:
    """Counters of the kernel: 0 between launches, which all run on one stream."""
    return torch.zeros(2, dtype=torch.int32, device=device)
