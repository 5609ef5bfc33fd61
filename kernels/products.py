"""Matrix products with weights: the library's, or our own for few rows where it measured faster.

``measure`` tries both on the weights of a model; until it has, the library serves. That is cuBLAS,
torch's choice, or for more rows cuBLASLt where ``measure_libraries`` found it faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F

from kernels import cuda, ops, reference

_ROWS = (1, 2, 4, 8, 16)
_MANY_ROWS = (32, 64, 128, 256, 512, 2048, 8192)
_REPEATS = 9
_LT_SHARE = 0.98
"""Of cuBLAS's time that cuBLASLt may take to be chosen: less is noise."""
_FLUSHED_BYTES = 256 * 1024 * 1024
"""Several times the L2 of any GPU: in a model every weight comes from memory."""

_Kind = tuple[torch.Size, torch.dtype, bool]
_faster: dict[_Kind, set[int]] = {}
"""By shape, dtype and whether gated: the numbers of rows, as in ``_ROWS``, that our own serves."""
_faster_lt: dict[tuple[torch.Size, torch.dtype], set[int]] = {}
"""By shape and dtype: the numbers of rows, as in ``_MANY_ROWS``, that cuBLASLt serves."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``; x: [rows, k], weight: [features, k]."""
    if _prefers_own(x, weight, gated=False):
        return cuda.skinny_linear(x, weight, bias)
    if _prefers_lt(x, weight):
        with _cublaslt():
            return F.linear(x, weight, bias)
    return F.linear(x, weight, bias)


def gated_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``silu_mul`` of ``linear``: the features are [gate | up]."""
    if _prefers_own(x, weight, gated=True):
        return cuda.skinny_linear(x, weight, bias, gated=True)
    return ops.silu_mul(linear(x, weight, bias))


def normed_linear(
    x: torch.Tensor,
    sums: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """``reference.normed_linear`` of few rows; gated: ``silu_mul`` of it."""
    if x.is_cuda:
        return cuda.skinny_normed_linear(x, sums, norm, eps, weight, bias, gated=gated)
    out = reference.normed_linear(x, sums, norm, eps, weight, bias)
    return ops.silu_mul(out) if gated else out


def linear_add(
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``reference.linear_add`` of few rows."""
    if x.is_cuda:
        return cuda.skinny_linear_add(residual, x, weight, bias)
    return reference.linear_add(residual, x, weight, bias)


def _prefers_own(x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> bool:
    rows = x.shape[0]
    if rows > cuda.MAX_SKINNY_TOKENS or not _faster:
        return False
    sizes = _faster.get((weight.shape, weight.dtype, gated))
    return sizes is not None and next(size for size in _ROWS if size >= rows) in sizes


def _prefers_lt(x: torch.Tensor, weight: torch.Tensor) -> bool:
    if not _faster_lt:
        return False
    sizes = _faster_lt.get((weight.shape, weight.dtype))
    rows = min(x.shape[0], _MANY_ROWS[-1])
    if sizes is None or rows <= cuda.MAX_SKINNY_TOKENS:
        return False
    return next(size for size in _MANY_ROWS if size >= rows) in sizes


@contextmanager
def _cublaslt() -> Iterator[None]:
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library("default")


@torch.inference_mode()
def measure_libraries(weight: torch.Tensor) -> None:
    """Find out which of the libraries is faster for each larger number of rows of this shape."""
    kind = weight.shape, weight.dtype
    if kind in _faster_lt or weight.dtype not in cuda.DECODE_DTYPES:
        return
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=weight.device)
    sizes = set()
    for rows in _MANY_ROWS:
        # No zeros, with which a GPU multiplies faster.
        x = torch.randn(rows, weight.shape[1], dtype=weight.dtype, device=weight.device)

        def default(x: torch.Tensor = x) -> torch.Tensor:
            return F.linear(x, weight)

        def other(x: torch.Tensor = x) -> torch.Tensor:
            with _cublaslt():
                return F.linear(x, weight)

        if _microseconds(other, flushed) < _LT_SHARE * _microseconds(default, flushed):
            sizes.add(rows)
    _faster_lt[kind] = sizes


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
