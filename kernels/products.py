"""Matrix products with weights: the library's, or our own for few rows where it measured faster.

``measure`` tries both on the weights of a model; until it has, the library serves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from kernels import cuda, ops

_ROWS = (1, 2, 4, 8, 16)
_REPEATS = 9
_FLUSHED_BYTES = 256 * 1024 * 1024
"""Several times the L2 of any GPU: in a model every weight comes from memory."""

_Kind = tuple[torch.Size, torch.dtype, bool]
_faster: dict[_Kind, set[int]] = {}
"""By shape, dtype and whether gated: the numbers of rows, as in ``_ROWS``, that our own serves."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``; x: [rows, k], weight: [features, k]."""
    if _prefers_own(x, weight, gated=False):
        return cuda.skinny_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def gated_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``silu_mul`` of ``linear``: the features are [gate | up]."""
    if _prefers_own(x, weight, gated=True):
        return cuda.skinny_linear(x, weight, bias, gated=True)
    return ops.silu_mul(linear(x, weight, bias))


def _prefers_own(x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> bool:
    rows = x.shape[0]
    if rows > cuda.MAX_SKINNY_TOKENS or not _faster:
        return False
    sizes = _faster.get((weight.shape, weight.dtype, gated))
    return sizes is not None and next(size for size in _ROWS if size >= rows) in sizes


@torch.inference_mode()
def measure(weight: torch.Tensor, *, gated: bool) -> None:
    """Find out which of the two is faster for each small number of rows of this shape."""
    kind = weight.shape, weight.dtype, gated
    features, k = weight.shape
    if kind in _faster or weight.dtype not in cuda.DECODE_DTYPES or features % 16 or k % 64:
        return
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=weight.device)
    sizes = set()
    for rows in _ROWS:
        x = torch.zeros(rows, k, dtype=weight.dtype, device=weight.device)

        def library(x: torch.Tensor = x) -> torch.Tensor:
            out = F.linear(x, weight)
            return ops.silu_mul(out) if gated else out

        def own(x: torch.Tensor = x) -> torch.Tensor:
            return cuda.skinny_linear(x, weight, gated=gated)

        if _microseconds(own, flushed) < _microseconds(library, flushed):
            sizes.add(rows)
    _faster[kind] = sizes


def _microseconds(product: Callable[[], torch.Tensor], flushed: torch.Tensor) -> float:
    times: list[float] = []
    for _ in range(_REPEATS):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        flushed.zero_()
        start.record()
        product()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[_REPEATS // 2]
