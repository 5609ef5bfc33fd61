"""Adapters by the CUDA kernels."""

from __future__ import annotations

import functools

import torch

from kernels import cuda, ops
from kernels.cuda import native
from kernels.lora import AdapterTiles, LoraMatrices

HALVES = frozenset({torch.bfloat16, torch.float16})
MAX_TOKENS = 8
"""The most tokens for ``linear``. With more, it is faster to run the kernels below beside a
GEMM."""
MOST_TOKENS = 1024
"""The most tokens for ``shrink_lora`` and ``expand_lora``. From about 2,000 on Triton's
kernels are faster."""
SLICES = 4
"""The number of slices that the inputs are split into; the partial sums are added where they are
used."""


def register() -> None:
    """Serve ``ops.shrink_lora`` and ``ops.expand_lora`` in 16-bit floats."""
    ops.register("shrink_lora", "cuda", shrink_lora, dtypes=HALVES)
    ops.register("expand_lora", "cuda", expand_lora, dtypes=HALVES)


def shrink_lora(x: torch.Tensor, matrices: LoraMatrices, tiles: AdapterTiles) -> torch.Tensor:
    """See ``reference.shrink_lora``; here the sums over each slice of the inputs: [SLICES,
    num_tokens, num_parts * max_rank] float32."""
    if not takes(matrices, tiles.num_tokens):
        other = ops.resolve("shrink_lora", "cuda", x.dtype, behind="cuda")
        found: torch.Tensor = other(x, matrices, tiles)
        return found
    x = x if x.stride(1) == 1 and x.stride(0) % 8 == 0 else x.contiguous()
    low: torch.Tensor = native.shrink_lora(x, *described(matrices, tiles))
    return low


def expand_lora(
    out: torch.Tensor, low: torch.Tensor, matrices: LoraMatrices, tiles: AdapterTiles
) -> None:
    """See ``reference.expand_lora``."""
    if takes(matrices, tiles.num_tokens):
        native.expand_lora(out, low, *described(matrices, tiles))
    else:
        ops.resolve("expand_lora", "cuda", out.dtype, behind="cuda")(out, low, matrices, tiles)


def takes(matrices: LoraMatrices, num_tokens: int) -> bool:
    """Whether our ``shrink_lora`` and ``expand_lora`` serve this number of tokens."""
    whole = matrices.down.shape[-1] % 64 == 0 and all(size % 8 == 0 for size in matrices.parts)
    return num_tokens <= MOST_TOKENS and whole


def described(matrices: LoraMatrices, tiles: AdapterTiles) -> tuple[torch.Tensor, ...]:
    """The tensors of both, in the order of the kernels' arguments."""
    m = matrices
    return m.down, m.up, m.ranks, m.ends, tiles.slots, tiles.tokens


def serves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether ``linear`` supports these arguments."""
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
    matrices: LoraMatrices,
    tiles: AdapterTiles,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """``x @ weight.T + bias`` with what each token's adapter adds to it, in one launch.

    x: [num_tokens, k], what ``serves`` says; weight: [features, k]. gated: features are
    [gate | up], and the result is ``silu(gate) * up``. See ``reference.shrink_lora`` and
    ``reference.expand_lora``.
    """
    columns = matrices.down.shape[1] * matrices.down.shape[2]
    low = x.new_empty(SLICES, len(x), columns, dtype=torch.float32)
    adapters = described(matrices, tiles)
    out: torch.Tensor = native.lora_linear(
        low, _counters(x.device), x, weight, bias, *adapters, gated=gated
    )
    return out


@functools.cache
def _counters(device: torch.device) -> torch.Tensor:
    """Counters of the kernel: 0 between launches, which all run on one stream."""
    return torch.zeros(2, dtype=torch.int32, device=device)
